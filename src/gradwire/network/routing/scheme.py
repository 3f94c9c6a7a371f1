"""What every scheme is, and what they share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from gradwire.errors import NetworkError
from gradwire.member import Member
from gradwire.network.amounts import reduced, scaled, shrunk
from gradwire.network.checked import Ints
from gradwire.network.colouring import Side
from gradwire.network.dice import draws, pick
from gradwire.network.fabric import BELOW, NO_LINK, Fabric
from gradwire.network.flows import Flows
from gradwire.network.least_loaded import least_loaded
from gradwire.network.loads import add_loads
from gradwire.network.routes import Routes

MOST_PARTS = 1 << 16
"""Of one flow: source ports are as many."""


class Share(NamedTuple):
    """Parts of edges, or of other things: of which, by which way, how much in 1/unit."""

    edge: Ints
    way: Ints
    part: Ints
    unit: int

    @staticmethod
    def joined(shares: Sequence[Share]) -> Share:
        """One after the other, in a unit that all have."""
        unit = math.lcm(*(own.unit for own in shares))
        return Share(
            np.concatenate([own.edge for own in shares]),
            np.concatenate([own.way for own in shares]),
            np.concatenate([scaled(own.part, unit // own.unit) for own in shares]), unit,
        )  # fmt: skip


class Usable(NamedTuple):
    """The paths that work of each flow: how many, and, unless they are the first, a table of
    pairs of leaves, [pairs, paths], in which they come first, and the pair of each flow."""

    counts: Ints
    table: Ints | None = None
    pair: Ints | None = None

    def path(self, flow: Ints, number: Ints) -> Ints:
        """The usable path of flows with a number from 0."""
        if self.table is None or self.pair is None:
            return number
        return self.table[self.pair[flow], number]

    def of(self, flow: int) -> Ints:
        """All of a flow."""
        number = np.arange(self.counts[flow])
        return self.path(np.full(len(number), flow), number)


@dataclass(frozen=True, eq=False)
class Crossing:
    """The flows that leave their leaf: which, and between which leaves."""

    fabric: Fabric
    flows: Flows

    @cached_property
    def which(self) -> Ints:
        """Ints of flows."""
        leaf_of = self.fabric.leaf_of
        return np.flatnonzero(leaf_of[self.flows.src] != leaf_of[self.flows.dst])

    @cached_property
    def source(self) -> Ints:
        """The leaf that each flow leaves."""
        return self.fabric.leaf_of[self.flows.src[self.which]]

    @cached_property
    def target(self) -> Ints:
        """The leaf that each flow goes to."""
        return self.fabric.leaf_of[self.flows.dst[self.which]]

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both sides, as edges between leaves, grouped by pods."""
        pods = self.fabric.pod_of
        return Side.of(self.source, pods), Side.of(self.target, pods)

    @property
    def sizes(self) -> Ints:
        """The size of each, in bytes."""
        return self.flows.bytes[self.which]

    @cached_property
    def usable(self) -> Usable:
        """The paths that work."""
        fabric = self.fabric
        if (fabric.rates > 0).all():
            return Usable(fabric.paths(self.source, self.target))
        ends, pair = fabric.pairs(self.source, self.target)
        works = fabric.path_rates(*ends) > 0
        return Usable(works.sum(1)[pair], np.argsort(~works, axis=1, kind="stable"), pair)

    def pinned(self, path: Ints) -> Routes:
        """A path for each of them, whole."""
        return self.cut(np.arange(len(self.which)), path, self.sizes, 1)

    def hashed(self, parts: int, seed: int) -> Routes:
        """Route in so many equal parts each, every one by a random usable path."""
        one = np.repeat(np.arange(len(self.which)), parts)
        counts = self.usable.counts[one]
        path = self.usable.path(one, pick(draws(seed, len(one)), counts))
        return self.cut(one, path, self.sizes[one], parts)

    def cut(self, one: Ints, path: Ints, amount: Ints, unit: int) -> Routes:
        """Pieces, in 1/unit bytes, of them; `one` counts from the first that leaves its leaf."""
        amount, unit = reduced(amount, unit)
        leaf_of = self.fabric.leaf_of
        stays = np.flatnonzero(leaf_of[self.flows.src] == leaf_of[self.flows.dst])
        return Routes(
            self.fabric, self.flows,
            np.concatenate([self.which[one], stays]),
            np.concatenate([path, np.full(len(stays), BELOW, np.int64)]),
            np.concatenate([amount, scaled(self.flows.bytes[stays], unit)]), unit,
        )  # fmt: skip

    def refuse_unequal(self, like: Ints | None = None) -> None:
        """NetworkError if one's size differs by more than a hundredth from that of the flow that
        it is to be like, by default the first: parts of what does not divide evenly are of one
        size."""
        sizes = self.sizes
        like = np.zeros_like(sizes) if like is None else like
        differs = np.flatnonzero(np.abs(sizes - sizes[like]) * 100 > sizes[like])
        if len(differs):
            pair = sorted((int(like[differs[0]]), int(differs[0])))
            first, second = self.flows[self.which[pair]]
            raise NetworkError(
                f"flows that share paths equally are of one size; got {first.bytes} bytes from "
                f"{first.src} to {first.dst} and {second.bytes} from {second.src} to "
                f"{second.dst}. Route each size alone, or use 'wrap' (cuts) or 'lpt' (whole), "
                "which are for any."
            )

    def around_failures(self, one: Ints, path: Ints, amount: Ints, seed: int) -> Ints:
        """Paths, where those of pieces that fail are others, where least is; the rest stay."""
        source, target = self.source[one], self.target[one]
        amount = shrunk(amount, 1)[0]
        hops = self.fabric.hops(source, target, path)
        fails = ((hops != NO_LINK) & (self.fabric.rates[hops] == 0)).any(1)
        if not fails.any():
            return path
        load = np.zeros(len(self.fabric.rates))
        add_loads(load, hops[~fails], amount[~fails])
        found = path.copy()
        found[fails] = least_loaded(
            self.fabric, source[fails], target[fails], amount[fails], seed, load
        )
        return found


class Scheme(Member):
    """How paths are chosen for flows that start together.

    seeds: what it takes is the distribution over so many of them; 1: nothing is left to chance.
    is_planned: paths can be pinned by it; those of MEMBERS that come first change least.
    is_hashed: switches choose its paths, so no host whose timer ran out can take another.
    is_compared: it stands beside others, unasked, as its examples are written.
    """

    seeds: ClassVar[int] = 1
    is_planned: ClassVar[bool] = False
    is_hashed: ClassVar[bool] = False
    is_compared: ClassVar[bool] = True

    @property
    def hashes(self) -> int:
        """Equal parts of each flow, on hashed paths, of which `samples` may draw many; else 0."""
        return 0

    @abstractmethod
    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        """The same for the same seed. All flows are between hosts of the fabric, and every pair
        of leaves has a path; NetworkError for flows that the scheme is not for."""
