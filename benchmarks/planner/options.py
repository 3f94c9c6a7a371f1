"""ByteComp's options of a tensor on two levels, and what they cost: input for the benchmarks.

The tree as our research reconstructed it (174 options on one device, 9 of them uncompressed), the
payload algebra, and start-up plus bandwidth for every cost. A state is (elements, contributions,
compressed); k ranks in a machine share its network card.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradwire.planner.timeline import Lane, Stage

Path = tuple[str, ...]
"""Actions: comp, decomp, or a collective at a level, as "all_to_all node"."""

FIRST = {"reduce_scatter": "all_gather", "reduce": "broadcast"}
FIRST_CODED = {"all_to_all": "all_gather", "gather": "broadcast"}
WHOLE = "whole_all_gather"  # everybody's payload to everybody: not the second half of anything


def paths() -> list[Path]:
    """All 174, uncompressed first."""
    return sorted({*_flat(), *_hierarchical()}, key=lambda path: (path.count("comp"), path))


def _second(p: str, level: str) -> Iterator[Path]:
    yield (f"{p} {level}",)
    yield ("comp", f"{p} {level}", "decomp")


def _second_coded(p: str, level: str) -> Iterator[Path]:
    yield (f"{p} {level}", "decomp")
    yield from (("decomp", *rest) for rest in _second(p, level))


def _cross_second(q: str, p: str) -> Iterator[Path]:
    yield from ((f"{q} cross", *rest) for rest in _second(p, "node"))
    yield from (("comp", f"{q} cross", *rest) for rest in _second_coded(p, "node"))


def _cross(p: str) -> Iterator[Path]:
    yield from (("all_reduce cross", *rest) for rest in _second(p, "node"))
    for f, q in FIRST.items():
        yield from ((f"{f} cross", *rest) for rest in _cross_second(q, p))


def _cross_coded(p: str) -> Iterator[Path]:
    yield from ((f"{WHOLE} cross", *rest) for rest in _second_coded(p, "node"))
    for f, q in FIRST_CODED.items():
        for rest in _second_coded(p, "node"):
            yield (f"{f} cross", f"{q} cross", *rest)
        yield from ((f"{f} cross", "decomp", *rest) for rest in _cross_second(q, p))


def _flat() -> Iterator[Path]:
    yield ("all_reduce flat",)
    for f, p in FIRST.items():
        yield from ((f"{f} flat", *rest) for rest in _second(p, "flat"))
    yield ("comp", f"{WHOLE} flat", "decomp")
    for f, p in FIRST_CODED.items():
        yield from (("comp", f"{f} flat", *rest) for rest in _second_coded(p, "flat"))


def _hierarchical() -> Iterator[Path]:
    for f, p in FIRST.items():
        yield from ((f"{f} node", *rest) for rest in _inner(p))
    for f, p in FIRST_CODED.items():
        yield from (("comp", f"{f} node", *rest) for rest in _cross_coded(p))
        yield from (("comp", f"{f} node", "decomp", *rest) for rest in _inner(p))


def _inner(p: str) -> Iterator[Path]:
    yield from _cross(p)
    yield from (("comp", *rest) for rest in _cross_coded(p))


@dataclass(frozen=True)
class Cluster:
    """Times in seconds, bandwidths in bytes per second, per element where nothing else is said."""

    machines: int
    ranks: int  # of a machine
    node_start_seconds: float
    node_bytes_per_second: float
    cross_start_seconds: float
    cross_bytes_per_second: float  # of a machine's network card
    density: float  # of top-k; 0: one bit and a scale
    gpu_start_seconds: float
    gpu_elements_per_second: float
    cpu_start_seconds: float
    cpu_elements_per_second: float

    def coded_bytes(self, elements: float) -> float:
        return 8 * math.ceil(self.density * elements) if self.density else elements / 8 + 4

    def stages(self, path: Path, elements: int, lane: Lane) -> tuple[Stage, ...]:
        """What a path costs a tensor; lane: where it compresses."""
        walk = _Walk(self, float(elements), lane)
        for action in path:
            walk.act(action)
        return tuple(walk.stages)


class _Walk:
    """The state of a tensor's payload on its path."""

    def __init__(self, cluster: Cluster, elements: float, lane: Lane) -> None:
        self.cluster, self.elements, self.lane = cluster, elements, lane
        self.contributions, self.coded = 1, False
        self.stages: list[Stage] = []

    def act(self, action: str) -> None:
        if action in ("comp", "decomp"):
            self._code(action == "comp")
        else:
            self._move(*action.split())

    def _code(self, encode: bool) -> None:
        c, gpu = self.cluster, self.lane == Lane.COMPUTE
        start = c.gpu_start_seconds if gpu else c.cpu_start_seconds
        rate = c.gpu_elements_per_second if gpu else c.cpu_elements_per_second
        share = 1.0 if encode else 0.25 * self.contributions  # decoding is cheaper
        seconds = start + share * self.elements / rate
        self.stages.append(Stage(self.lane, seconds, "encode" if encode else "decode"))
        self.coded, self.contributions = encode, 1

    def _move(self, name: str, level: str) -> None:
        c = self.cluster
        p = {"node": c.ranks, "cross": c.machines, "flat": c.ranks * c.machines}[level]
        whole = self.contributions * (
            c.coded_bytes(self.elements) if self.coded else 4 * self.elements
        )
        starts, sent = _COSTS[name](p, whole)
        link, start, rate = Lane.CROSS, c.cross_start_seconds, c.cross_bytes_per_second
        if level == "node":
            link, start, rate = Lane.NODE, c.node_start_seconds, c.node_bytes_per_second
        elif level == "cross":
            rate /= c.ranks
        self.stages += [
            Stage(Lane.LATENCY, starts * start, "wire"), Stage(link, sent / rate, "wire")
        ]  # fmt: skip
        self._after(name, p)

    def _after(self, name: str, p: int) -> None:
        if name in ("reduce_scatter", "all_to_all"):
            self.elements /= p
        elif name == "all_gather":
            self.elements *= p
        if name in (*FIRST_CODED, WHOLE):
            self.contributions *= p


_COSTS = {
    "all_reduce": lambda p, b: (2 * (p - 1), 2 * (p - 1) / p * b),
    "reduce_scatter": lambda p, b: (p - 1, (p - 1) / p * b),
    "all_gather": lambda p, b: (p - 1, (p - 1) * b),
    WHOLE: lambda p, b: (p - 1, (p - 1) * b),
    "all_to_all": lambda p, b: (p - 1, (p - 1) / p * b),
    "reduce": lambda p, b: (math.ceil(math.log2(p)), b),
    "broadcast": lambda p, b: (math.ceil(math.log2(p)), b),
    "gather": lambda p, b: (math.ceil(math.log2(p)), (p - 1) * b),
}
