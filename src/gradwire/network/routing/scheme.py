"""The base class of routing schemes, and the code that they share."""

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
"""The most parts of one flow: the number of source ports."""


class Share(NamedTuple):
    """Parts of edges, or of other things: the edge, the way it takes, and the size in 1/unit."""

    edge: Ints
    way: Ints
    part: Ints
    unit: int

    @staticmethod
    def joined(shares: Sequence[Share]) -> Share:
        """Concatenates shares, in a common unit."""
        unit = math.lcm(*(own.unit for own in shares))
        return Share(
            np.concatenate([own.edge for own in shares]),
            np.concatenate([own.way for own in shares]),
            np.concatenate([scaled(own.part, unit // own.unit) for own in shares]), unit,
        )  # fmt: skip


class Usable(NamedTuple):
    """The usable paths of each flow: their count, and, unless they are the first of all paths, a
    table of pairs of leaves, [pairs, paths], in which they come first, and each flow's pair."""

    counts: Ints
    table: Ints | None = None
    pair: Ints | None = None

    def path(self, flow: Ints, number: Ints) -> Ints:
        """Returns the usable path of each flow that has this number, from 0."""
        if self.table is None or self.pair is None:
            return number
        return self.table[self.pair[flow], number]

    def of(self, flow: int) -> Ints:
        """Returns all usable paths of a flow."""
        number = np.arange(self.counts[flow])
        return self.path(np.full(len(number), flow), number)


@dataclass(frozen=True, eq=False)
class Crossing:
    """The flows that leave their leaf, and the leaves between which they go."""

    fabric: Fabric
    flows: Flows

    @cached_property
    def which(self) -> Ints:
        """The indices of these flows in `flows`."""
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
        """Both sides of the flows as edges between leaves, which are grouped by pods."""
        pods = self.fabric.pod_of
        return Side.of(self.source, pods), Side.of(self.target, pods)

    @property
    def sizes(self) -> Ints:
        """The size of each flow, in bytes."""
        return self.flows.bytes[self.which]

    @cached_property
    def usable(self) -> Usable:
        """The usable paths of each flow."""
        fabric = self.fabric
        if (fabric.rates > 0).all():
            return Usable(fabric.paths(self.source, self.target))
        ends, pair = fabric.pairs(self.source, self.target)
        works = fabric.path_rates(*ends) > 0
        return Usable(works.sum(1)[pair], np.argsort(~works, axis=1, kind="stable"), pair)

    def pinned(self, path: Ints) -> Routes:
        """Routes each flow whole, on this path."""
        return self.cut(np.arange(len(self.which)), path, self.sizes, 1)

    def hashed(self, parts: int, seed: int) -> Routes:
        """Routes each flow in `parts` equal parts, every one on a random usable path."""
        one = np.repeat(np.arange(len(self.which)), parts)
        counts = self.usable.counts[one]
        path = self.usable.path(one, pick(draws(seed, len(one)), counts))
        return self.cut(one, path, self.sizes[one], parts)

    def cut(self, one: Ints, path: Ints, amount: Ints, unit: int) -> Routes:
        """Routes these pieces, in 1/unit bytes, and flows below a leaf; `one` indexes `which`."""
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
        """Raises NetworkError if a flow's size differs by more than a hundredth from that of the
        flow in `like`, by default the first: so parts of what does not divide evenly count as
        equal."""
        sizes = self.sizes
        like = np.zeros_like(sizes) if like is None else like
        differs = np.flatnonzero(np.abs(sizes - sizes[like]) * 100 > sizes[like])
        if len(differs):
            pair = sorted((int(like[differs[0]]), int(differs[0])))
            first, second = self.flows[self.which[pair]]
            raise NetworkError(
                f"flows that share paths equally must have the same size; got {first.bytes} bytes "
                f"from {first.src} to {first.dst} and {second.bytes} from {second.src} to "
                f"{second.dst}. Route each size alone, or use 'wrap' (cuts) or 'lpt' (whole), "
                "which take any sizes."
            )

    def around_failures(self, one: Ints, path: Ints, amount: Ints, seed: int) -> Ints:
        """Returns the paths, with the least loaded one for each piece whose own path fails."""
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
    """A way to choose paths for flows that start together.

    seeds: how many give the distribution of its time; 1: nothing is left to chance.
    is_planned: whether paths can be pinned by it; the first ones of MEMBERS change least.
    is_hashed: whether switches choose its paths, so no host whose timer ran out can take another.
    is_compared: whether advice compares it by default, as its examples are written.
    """

    seeds: ClassVar[int] = 1
    is_planned: ClassVar[bool] = False
    is_hashed: ClassVar[bool] = False
    is_compared: ClassVar[bool] = True

    @property
    def hashes(self) -> int:
        """The number of equal parts of each flow on hashed paths that `samples` may draw, or 0."""
        return 0

    @abstractmethod
    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        """Chooses paths, the same for the same seed. All flows are between hosts of the fabric,
        and every pair of leaves has a path. Raises NetworkError for flows that it cannot route."""
