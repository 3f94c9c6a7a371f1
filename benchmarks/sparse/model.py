"""Do latency and bandwidth explain merges in pairs, and allgather? One job measures both.

    python benchmarks/sparse/model.py --hosts 8 --rate 100mbit

α: the time in which a pair swaps 16 bytes; β: bytes per second when it swaps a megabyte. allgather
of messages of b bytes is then α + (n-1)·b/β, a butterfly α + log2(n)·(α + b/β), each after an
announcement of α. Only the moves are timed, without compression and merges. Results are medians
over the rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from math import log2
from statistics import median

import torch
import torch.distributed as dist

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.lab import Cluster
from gradwire.moves import Exchange
from gradwire.report.table import Table
from gradwire.runtime.context import BucketContext
from gradwire.runtime.torch_dist import Performer
from gradwire.strategy import StepInfo

DENSITY = 0.001
ELEMENTS = (2_500_000, 10_000_000, 25_000_000)
MERGED = 'gtopk(variant="butterfly")'
LARGE = 1 << 20
WARM_UP = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--at-work", action="store_true")
    arguments = parser.parse_args()
    if arguments.at_work:
        work(arguments)
        return 0
    with Cluster(arguments.hosts, arguments.rate) as lab:
        return lab.run([sys.executable, *sys.argv, "--at-work"])


def work(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    dist.init_process_group("gloo")
    assert dist.group.WORLD is not None
    performer = Performer(dist.group.WORLD)
    world = performer.world
    swaps = {size: list[float]() for size in (16, LARGE)}
    jobs = [
        Job(f"topk({DENSITY})+ef | {name}", n) for n in ELEMENTS for name in ("allgather", MERGED)
    ]
    for number in range(WARM_UP + arguments.rounds):
        for size, seconds in swaps.items():
            seconds.append(slowest(swap(performer, size)))
        for job in jobs:
            job.seconds.append(slowest(job.once(performer, number)))
    if performer.rank == 0:
        small, large = (median(seconds[WARM_UP:]) for seconds in swaps.values())
        bandwidth = LARGE / (large - small)
        found = f"α {1e3 * small:.2f} ms, β {bandwidth / 1e6:.1f} MB/s"
        print(f"{world} hosts, {arguments.rate}: {found}\n")
        rows = [job.row(world, small, bandwidth) for job in jobs]
        print(
            Table(
                ("strategy", "elements", "KB", "ms", "model", "model / measured"), rows
            ).as_markdown()
        )
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 sometimes aborts while it shuts down Gloo's threads


def swap(performer: Performer, size: int) -> float:
    """Returns the seconds in which neighbours swap `size` bytes, all pairs at once."""
    partner, data = performer.rank ^ 1, torch.zeros(size, dtype=torch.uint8)
    dist.barrier()
    began = time.perf_counter()
    performer.perform(Exchange({partner: data}, {partner: size}), "swap")
    return time.perf_counter() - began


class Job:
    """One strategy on this rank; every rank has other gradients."""

    def __init__(self, text: str, n: int) -> None:
        self.text, self.n, self.bytes = text, n, 0
        rank, world = dist.get_rank(), dist.get_world_size()
        bucket = Bucket((Parameter("x", (n,)),))
        self._context = BucketContext(Strategy.parse(text), bucket, rank, world, {})
        self._gradient = torch.randn(n, generator=torch.Generator().manual_seed(rank))
        self._mean = torch.empty(n)
        self.seconds: list[float] = []

    def once(self, performer: Performer, step: int) -> float:
        """Runs one step and returns the seconds in moves."""
        self._context.begin([self._gradient], [self._mean], StepInfo(step))
        rounds, arrived, spent = self._context.strategy.collective.rounds(self._context), None, 0.0
        while True:
            try:
                move = next(rounds) if arrived is None else rounds.send(arrived)
            except StopIteration:
                break
            if isinstance(move, Exchange):
                self.bytes = max([self.bytes, *map(len, move.sends.values())])
            else:
                self.bytes = max(self.bytes, len(move.data))  # type: ignore[attr-defined]
            dist.barrier()  # the model is of the network, not of slower merges on some ranks
            began = time.perf_counter()
            arrived = performer.perform(move, self.text)
            spent += time.perf_counter() - began
        self._context.end(skipped=False)
        return spent

    def row(self, world: int, latency: float, bandwidth: float) -> tuple[str, ...]:
        """Returns a row of the table: measured and modelled times."""
        one = self.bytes / bandwidth
        if "gtopk" in self.text:
            model = latency + log2(world) * (latency + one)
        else:
            model = latency + (world - 1) * one
        measured = median(self.seconds[WARM_UP:])
        return (
            self.text, f"{self.n / 1e6:g} M", f"{self.bytes / 1e3:.1f}", f"{1e3 * measured:.1f}",
            f"{1e3 * model:.1f}", f"{model / measured:.2f}",
        )  # fmt: skip


def slowest(seconds: float) -> float:
    everybody = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, torch.tensor([seconds]))
    return max(float(s) for s in everybody)


if __name__ == "__main__":
    sys.exit(main())
