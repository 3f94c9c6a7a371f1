"""The functions of gradwire._native for the network, and how arrays are passed to them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from gradwire.extension import TWIN, VARIABLE, extension
from gradwire.network.fabric import Fabric

if TYPE_CHECKING:
    from gradwire.network.checked import Ints

TOO_MANY, TOO_LATE = 1, 2  # why send_packets stopped, else 0


Tiers: TypeAlias = tuple[int, int, int, int, int, int]
Ports: TypeAlias = tuple[int, int, int, int, int, int, int]
Columns: TypeAlias = tuple[int, int, int, int]
Rows: TypeAlias = tuple[int, int]
FlowSet: TypeAlias = tuple[int, Rows, int, int, int, Rows, int]
Paths: TypeAlias = tuple[int, int, int, int, int, int]
Connections: TypeAlias = tuple[int, int, int, int, int, int, int, int, list[Paths]]
Change: TypeAlias = tuple[float, Rows, int, int]
Hosts: TypeAlias = tuple[int, int, int, int, int, int]
Transport: TypeAlias = tuple[
    int, int, int, int, int, int, int, int, int, int, int, int, bool, bool, bool, bool, int
]  # fmt: skip


class NetworkCore(Protocol):
    """The functions of gradwire._native for the network, which take addresses and sizes."""

    def colour_edges(
        self, n: int, left: int, right: int, left_side: tuple[int, int, int],
        right_side: tuple[int, int, int], colours: int, seed: int, colour: int, /,
    ) -> None:  # fmt: skip
        """Colours a bipartite graph's edges equitably."""

    def least_loaded(
        self, pieces: Columns, tiers: Tiers, local: bool, seed: int, load: int, path: int, /
    ) -> None:
        """Chooses the least loaded path of each piece, in order."""

    def sweep_failures(
        self, pieces: Columns, path: int, tiers: Tiers, ports: Ports, sets: tuple[int, int, int],
        seed: int, slowest: int, moved: int, /,
    ) -> None:  # fmt: skip
        """Finds the slowest link, of hosts or switches, for each of many sets of failures."""

    def slowest_links(
        self, flows: Columns, parts: int, tiers: Tiers, ports: Ports, counts: int, pair: int,
        paths: int, most: int, seed: int, samples: int, longest: int, /,
    ) -> None:  # fmt: skip
        """Finds the slowest link for each of many seeds of random paths."""

    def share_links(
        self, flows: FlowSet, links: int, rate: int, tolerance: float, changes: list[Change],
        begin: int, end: int, /,
    ) -> int:  # fmt: skip
        """Simulates flows that share links fairly; returns how often rates were computed."""

    def fair_rates(self, flows: FlowSet, links: int, rate: int, found: int, /) -> None:
        """Finds the max-min fair rates of flows."""

    def send_packets(
        self, connections: Connections, tiers: Tiers, hosts: Hosts, transport: Transport,
        limits: tuple[int, int], end: int, longest: int, /,
    ) -> tuple[int, int, int, int, int]:  # fmt: skip
        """Simulates every packet; returns events, drops, marks, trims and what stopped it."""


def core() -> NetworkCore | None:
    """Returns the extension, or None if the twins must run: their results are as good, 100 times
    slower."""
    if os.environ.get(VARIABLE) == TWIN:
        return None
    found: NetworkCore | None = extension()
    return found


def columns(*given: Ints) -> list[Ints]:
    """Returns columns as the extension reads them: keep them until it is done."""
    return [np.ascontiguousarray(column, np.int64) for column in given]


def tiers(fabric: Fabric) -> Tiers:
    """Returns a fabric as the extension reads it: sizes, and addresses of pods and rates."""
    return (
        fabric.leaves, len(fabric.uplinks), fabric.cores, fabric.pods,
        fabric.pod_of.ctypes.data, fabric.rates.ctypes.data,
    )  # fmt: skip
