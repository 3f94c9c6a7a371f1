"""What every scheme is, and what they share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from gradwire.errors import NetworkError
from gradwire.member import Member
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import BELOW, Routes

Numbers = NDArray[np.int64]


class Usable(NamedTuple):
    """Of pairs of leaves, the paths that work come first; how many; and the pair of each flow."""

    paths: Numbers  # [pairs, paths]
    counts: Numbers
    pair: Numbers

    def path(self, flow: Numbers, number: Numbers) -> Numbers:
        """Of flows, the usable path with a number from 0."""
        return self.paths[self.pair[flow], number]

    def of(self, flow: int) -> Numbers:
        """All of a flow."""
        pair = self.pair[flow]
        return self.paths[pair, : self.counts[pair]]


@dataclass(frozen=True, eq=False)
class Crossing:
    """The flows that leave their leaf: which, and between which leaves."""

    fabric: Fabric
    flows: Flows

    @cached_property
    def which(self) -> Numbers:
        """Numbers of flows."""
        leaf_of = self.fabric.leaf_of
        return np.flatnonzero(leaf_of[self.flows.src] != leaf_of[self.flows.dst])

    @cached_property
    def source(self) -> Numbers:
        return self.fabric.leaf_of[self.flows.src[self.which]]

    @cached_property
    def target(self) -> Numbers:
        return self.fabric.leaf_of[self.flows.dst[self.which]]

    @cached_property
    def usable(self) -> Usable:
        """The paths that work."""
        fabric = self.fabric
        ends, of_flow = fabric.pairs(self.source, self.target)
        pairs = len(ends[0])
        crosses = fabric.pod_of[ends[0]] != fabric.pod_of[ends[1]]
        most = len(fabric.uplinks) * max(fabric.cores, 1)
        paths, counts = np.zeros((pairs, most), np.int64), np.zeros(pairs, np.int64)
        for rows in (np.flatnonzero(crosses), np.flatnonzero(~crosses)):
            works = fabric.path_rates(ends[0][rows], ends[1][rows]) > 0
            paths[rows, : works.shape[1]] = np.argsort(~works, axis=1, kind="stable")
            counts[rows] = works.sum(1)
        return Usable(paths, counts, of_flow)

    def pinned(self, path: Numbers) -> Routes:
        """A path for each of them, whole."""
        sizes = self.flows.bytes[self.which]
        return self.cut(np.arange(len(self.which)), path, sizes, 1)

    def cut(self, one: Numbers, path: Numbers, amount: Numbers, unit: int) -> Routes:
        """Pieces, in 1/unit bytes, of them; `one` counts from the first that leaves its leaf."""
        leaf_of = self.fabric.leaf_of
        stays = np.flatnonzero(leaf_of[self.flows.src] == leaf_of[self.flows.dst])
        return Routes(
            self.fabric, self.flows,
            np.concatenate([self.which[one], stays]),
            np.concatenate([path, np.full(len(stays), BELOW, np.int64)]),
            np.concatenate([amount, self.flows.bytes[stays] * unit]), unit,
        )  # fmt: skip

    def refuse_unequal(self) -> None:
        """NetworkError if their sizes differ."""
        sizes = self.flows.bytes[self.which]
        differs = np.flatnonzero(sizes != sizes[:1])
        if len(differs):
            refuse_unequal(self, 0, int(differs[0]))


def refuse_unequal(crossing: Crossing, one: int, other: int) -> NoReturn:
    """Of the flows that leave their leaf, two that should have the same size."""
    first, second = crossing.flows[crossing.which[sorted((one, other))]]
    raise NetworkError(
        f"flows that share paths equally are of one size; got {first.bytes} bytes from "
        f"{first.src} to {first.dst} and {second.bytes} from {second.src} to {second.dst}. Route "
        "each size alone, or use 'spray' or 'ecmp'."
    )


class Scheme(Member):
    """How paths are chosen for flows that start together."""

    @abstractmethod
    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        """The same for the same seed. All flows are between hosts of the fabric, and every pair
        of leaves has a path; NetworkError for flows that the scheme is not for."""
