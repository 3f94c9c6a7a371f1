"""ByteComp's options of a tensor on two levels, and what they cost: input for the benchmarks.

The tree is in `gradwire.tasks`, and `gradwire.planner.pricing` gives each path's moves and work;
this file has only the times of made-up machines: start-ups, bandwidths, compressors' speeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from gradwire import tasks
from gradwire.planner.links import is_inside, loaded, starts
from gradwire.planner.priced import Priced, PricedMove, Work
from gradwire.planner.pricing import price
from gradwire.planner.timeline import Resource, Stage
from gradwire.tasks import Path
from gradwire.topology import Cluster

DECODE = 0.25
"""The cost of decoding, relative to encoding."""


def paths() -> list[Path]:
    """Returns all 174 paths on one device, uncompressed first; the lane decides where they
    compress."""
    return sorted(tasks.paths(devices=("gpu",)), key=lambda path: path.compressions)


@lru_cache(1 << 20)
def priced(path: Path, elements: int, machines: int, ranks: int, density: float) -> Priced:
    """Prices a path. density: of top-k; 0: one bit and a scale."""
    left = f"topk({density})" if density else "sign(scaled=True)"
    return price(f'{left} | steps("{path}")', [elements], machines * ranks, per_node=ranks)


@dataclass(frozen=True)
class Costs:
    """Times in seconds, bandwidths in bytes per second, rates in elements per second."""

    machines: int
    ranks: int  # per machine
    node_start_seconds: float
    node_bytes_per_second: float
    cross_start_seconds: float
    cross_bytes_per_second: float  # of a machine's network card
    density: float  # of top-k; 0: one bit and a scale
    gpu_start_seconds: float
    gpu_elements_per_second: float
    cpu_start_seconds: float
    cpu_elements_per_second: float

    @property
    def cluster(self) -> Cluster:
        """The machines' links; a start-up's time is their latency."""
        return Cluster(
            self.machines, self.ranks, 8 * self.cross_bytes_per_second, self.cross_start_seconds,
            self.node_bytes_per_second, self.node_start_seconds,
        )  # fmt: skip

    def stages(self, path: Path, elements: int, lane: Resource) -> tuple[Stage, ...]:
        """Returns the stages of a path for a tensor; lane: where it compresses."""
        found = priced(path, elements, self.machines, self.ranks, self.density)
        return tuple(self._stages(found, lane))

    def _stages(self, found: Priced, lane: Resource) -> Iterator[Stage]:
        cluster = self.cluster
        for step in found.steps:
            if isinstance(step, PricedMove):
                yield from _moved(step, cluster)
            else:
                yield self._worked(step, lane)

    def _worked(self, work: Work, lane: Resource) -> Stage:
        gpu, encode = lane == Resource.COMPUTE, work.kind == "encode"
        start = self.gpu_start_seconds if gpu else self.cpu_start_seconds
        rate = self.gpu_elements_per_second if gpu else self.cpu_elements_per_second
        share = 1.0 if encode else DECODE * work.contributions
        return Stage(lane, start + share * work.elements / rate, "encode" if encode else "decode")


def _moved(move: PricedMove, cluster: Cluster) -> Iterator[Stage]:
    link, late, rate = (
        Resource.CROSS,
        cluster.cross_latency_seconds,
        cluster.cross_bits_per_second / 8,
    )
    if is_inside(move, cluster):
        link, late, rate = (
            Resource.NODE,
            cluster.node_latency_seconds,
            cluster.node_bytes_per_second,
        )
    yield Stage(Resource.LATENCY, late * starts(move.name, move.ranks, "gloo"), "wire")
    yield Stage(link, loaded(move, cluster) * move.busiest / rate, "wire")
