"""How long sparse sums take on an emulated network, all schemes in turn in one job.

    python benchmarks/sparse/lab.py nmt --hosts 8 --rate 1gbit
    python benchmarks/sparse/lab.py nmt --hosts 2 --procs-per-host 2 --strategies \
        "none | allreduce" "nonzero | zen" "nonzero | hierarchical(outer='zen')"

Every rank has one tensor of the preset, scaled to --elements. A round runs every strategy once,
in another order each time, with a barrier before each; medians over the rounds of the slowest
rank's time. What is timed is what training waits for: from the gradient to the average,
compression and all moves included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gradwire import Strategy, sparsity
from gradwire.buckets import Bucket, Parameter
from gradwire.groups import Machines
from gradwire.lab import Cluster, bytes_sent
from gradwire.report.table import Table
from gradwire.runtime.hierarchy import make_context
from gradwire.runtime.process_groups import make_parts
from gradwire.runtime.torch_dist import Performer
from gradwire.strategy import StepInfo

STRATEGIES = (
    "none | allreduce", "nonzero | allgather", "nonzero | sparcml", "nonzero | sparcml_split",
    "nonzero | sparse_ps", "nonzero | omnireduce", "nonzero | union", "nonzero | zen",
    "nonzero | columns",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("preset", help="of gradwire.sparsity, or normal: dense")
    parser.add_argument("--strategies", nargs="*", default=STRATEGIES)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--procs-per-host", type=int, default=1)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--elements", type=float, default=20e6)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--folder", default="")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.folder:
        work(arguments)
        return 0
    cluster = Cluster(
        arguments.hosts, arguments.rate, procs_per_host=arguments.procs_per_host
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, cluster as lab:
        for rank, x in enumerate(tensors(arguments, lab.ranks)):
            torch.save(x, f"{folder}/{rank}.pt")
        return lab.run([sys.executable, *sys.argv, "--folder", folder])


def tensors(arguments: argparse.Namespace, ranks: int) -> list[torch.Tensor]:
    """One per rank, of about that many elements."""
    if arguments.preset == "normal":  # dense: for strategies that select
        return [torch.randn(int(arguments.elements)) for _ in range(ranks)]
    one = sparsity.synthetic(arguments.preset, 1, scale=0.01)[0].numel()
    scale = 0.01 * arguments.elements / one
    return sparsity.synthetic(arguments.preset, ranks, scale=scale)


def work(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.load(f"{arguments.folder}/{rank}.pt")
    machines = Machines.even(world, arguments.procs_per_host)
    assert dist.group.WORLD is not None
    performer = Performer(dist.group.WORLD, make_parts(dist.group.WORLD, machines, 300.0))
    runs = {text: Run(text, x, machines, performer) for text in arguments.strategies}
    for number in range(arguments.warm_up + arguments.rounds):
        for run in random.Random(number).sample(list(runs.values()), len(runs)):
            run.once(number, kept=number >= arguments.warm_up)
    if rank == 0:
        report(arguments, x, runs)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 now and then aborts while it takes Gloo's threads down


class Run:
    """One strategy on one rank."""

    def __init__(
        self, text: str, x: torch.Tensor, machines: Machines, performer: Performer
    ) -> None:
        bucket = Bucket((Parameter("x", tuple(x.shape)),))
        rank, world = performer.rank, performer.world
        self._context = make_context(Strategy.parse(text), bucket, rank, world, {}, machines)
        self._x, self._out = x.view(-1), torch.empty(x.numel())
        self._performer = performer
        self.seconds: list[float] = []
        self.bytes: list[float] = []
        self.host_bytes: list[float] = []

    def once(self, step: int, kept: bool) -> None:
        self._out.copy_(self._x)
        dist.barrier()
        before = bytes_sent()
        dist.barrier()  # after it nobody waits for a rank that reads its counter
        began = time.perf_counter()
        self._context.begin([self._out], [self._out], StepInfo(step))
        rounds, arrived, sent = self._context.strategy.collective.rounds(self._context), None, 0.0
        while True:
            try:
                move = next(rounds) if arrived is None else rounds.send(arrived)
            except StopIteration:
                break
            sent += self._performer.bytes_sent(move)
            arrived = self._performer.perform(move, "x")
        self._context.end(skipped=False)
        seconds = time.perf_counter() - began
        dist.barrier()
        facts = torch.tensor([seconds, sent, bytes_sent() - before])
        everybody = [torch.empty_like(facts) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, facts)
        if kept:
            self.seconds.append(max(float(f[0]) for f in everybody))
            self.bytes.append(statistics.mean(float(f[1]) for f in everybody))
            self.host_bytes.append(statistics.mean(float(f[2]) for f in everybody))


def report(arguments: argparse.Namespace, x: torch.Tensor, runs: dict[str, Run]) -> None:
    dense = statistics.median(runs[arguments.strategies[0]].seconds)
    rows = [
        (
            text, f"{1e3 * statistics.median(run.seconds):.0f}",
            f"{1e3 * min(run.seconds):.0f} – {1e3 * max(run.seconds):.0f}",
            f"{statistics.median(run.bytes) / 1e6:.2f}",
            f"{statistics.median(run.host_bytes) / 1e6:.2f}",
            f"{dense / statistics.median(run.seconds):.2f}",
        )
        for text, run in runs.items()
    ]  # fmt: skip
    headers = ("strategy", "ms", "range", "MB sent", "MB out of a host", "× dense")
    shape = " × ".join(map(str, x.shape))
    hosts = f"{arguments.hosts} hosts of {arguments.procs_per_host}"
    print(f"{arguments.preset}, {shape}, {hosts}, {arguments.rate}\n")
    print(Table(headers, rows).as_markdown())
    if arguments.json:
        document = {
            "preset": arguments.preset, "shape": list(x.shape), "hosts": arguments.hosts,
            "procs_per_host": arguments.procs_per_host, "rate": arguments.rate,
            "runs": {
                t: {"seconds": r.seconds, "bytes": r.bytes, "host_bytes": r.host_bytes}
                for t, r in runs.items()
            },
        }  # fmt: skip
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
