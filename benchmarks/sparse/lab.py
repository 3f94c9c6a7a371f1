"""How long sparse sums take on an emulated network, with all schemes in turn in one job.

    python benchmarks/sparse/lab.py nmt --hosts 8 --rate 1gbit
    python benchmarks/sparse/lab.py nmt --sparse
    python benchmarks/sparse/lab.py nmt --hosts 2 --procs-per-host 2 --strategies \
        "none | allreduce" "nonzero | zen" "nonzero | hierarchical(outer='zen')"

Every rank has one tensor of the preset, scaled to --elements. A round runs every strategy once, in
another order each time, with a barrier before each; medians over the rounds of the slowest rank's
time. The time is what training waits for: from the gradient to the average, compression and all
moves included.

--sparse: gradients as from nn.Embedding(sparse=True), rows and ids in any order (COO), and beside
gradwire torch's all_reduce, which DistributedDataParallel uses for them.

If hosts share cores, local work takes as many times longer as hosts share a core: --slower 4 slows
the links down by that factor, and divides times by it (time dilation). Eight hosts on two cores
with --slower 4 have a core each and links of the given rate.
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

import sparsity
import torch
import torch.distributed as dist
from sparsity.counted import SUMS

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.groups import Machines
from gradwire.lab import Cluster, bytes_sent, parse_rate
from gradwire.report.table import Table
from gradwire.runtime.contexts import make_context
from gradwire.runtime.process_groups import make_parts
from gradwire.runtime.torch_dist import Performer
from gradwire.strategy import StepInfo

TORCH = "torch.distributed.all_reduce"
SPARSE = (
    TORCH, "none | columns", "nonzero | zen", 'nonzero | zen(variant="paper")', "none | allgather",
    "nonzero | sparcml", "nonzero | sparcml_split", "nonzero | sparse_ps", "nonzero | sparse_auto",
)  # fmt: skip
STRATEGIES = (
    "none | allreduce", 'nonzero(index="int32") | allgather', 'nonzero(index="int32") | sparcml',
    'nonzero(index="int32") | sparse_ps', "nonzero | omnireduce", 'nonzero | zen(variant="paper")',
    "nonzero | allgather", "nonzero | sparcml", "nonzero | sparcml_split", "nonzero | sparse_ps",
    "nonzero | union", "nonzero | zen", "nonzero | columns",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("preset", help="of SPARSITY.md, or normal: dense")
    parser.add_argument("--strategies", nargs="*")
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--slower", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--procs-per-host", type=int, default=1)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--elements", type=float, default=20e6)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--folder", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--points", type=Path, help="for `main.py --measured`")
    arguments = parser.parse_args()
    arguments.strategies = arguments.strategies or (SPARSE if arguments.sparse else STRATEGIES)
    if arguments.folder:
        work(arguments)
        return 0
    rate = f"{parse_rate(arguments.rate) / arguments.slower / 1e6:g}mbit"
    cluster = Cluster(arguments.hosts, rate, procs_per_host=arguments.procs_per_host)
    with tempfile.TemporaryDirectory() as folder, cluster as lab:
        for rank, x in enumerate(tensors(arguments, lab.ranks)):
            torch.save(x, f"{folder}/{rank}.pt")
        return lab.run([sys.executable, *sys.argv, "--folder", folder])


def tensors(arguments: argparse.Namespace, ranks: int) -> list[torch.Tensor]:
    """Returns one tensor per rank, of about --elements elements."""
    if arguments.preset == "normal":  # dense: for strategies that select
        return [torch.randn(int(arguments.elements)) for _ in range(ranks)]
    one = sparsity.synthetic(arguments.preset, 1, scale=0.01)[0].numel()
    scale = 0.01 * arguments.elements / one
    return sparsity.synthetic(arguments.preset, ranks, scale=scale)


def work(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.sparse.check_sparse_tensor_invariants.disable()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.load(f"{arguments.folder}/{rank}.pt")
    machines = Machines.even(world, arguments.procs_per_host)
    assert dist.group.WORLD is not None
    performer = Performer(dist.group.WORLD, make_parts(dist.group.WORLD, machines, 300.0))
    x = as_rows(x, rank) if arguments.sparse else x
    runs: dict[str, Run] = {
        text: Torch(x) if text == TORCH else Ours(text, x, machines, performer)
        for text in arguments.strategies
    }
    for number in range(arguments.warm_up + arguments.rounds):
        for run in random.Random(number).sample(list(runs.values()), len(runs)):
            run.once(number, kept=number >= arguments.warm_up)
    if rank == 0:
        report(arguments, x, runs)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 sometimes aborts while it shuts down Gloo's threads


def as_rows(x: torch.Tensor, rank: int) -> torch.Tensor:
    """Returns the nonzero rows, in any order, as words come."""
    ids = x.any(1).nonzero().flatten()
    ids = ids[torch.randperm(ids.numel(), generator=torch.Generator().manual_seed(rank))]
    return torch.sparse_coo_tensor(ids[None], x[ids], x.shape)


class Run:
    """One contestant on one rank."""

    def __init__(self, x: torch.Tensor) -> None:
        self._x = x
        self.seconds: list[float] = []
        self.wire_seconds: list[float] = []  # the part in moves; the mean of ranks
        self.in_moves = float("nan")
        self.bytes: list[float] = []
        self.host_bytes: list[float] = []

    def once(self, step: int, kept: bool) -> None:
        self.prepare()
        dist.barrier()
        before = bytes_sent()
        dist.barrier()  # after it no rank waits for one that reads its counter
        began = time.perf_counter()
        sent = self.sum(step)
        seconds = time.perf_counter() - began
        dist.barrier()
        facts = torch.tensor([seconds, sent, bytes_sent() - before, self.in_moves])
        everybody = [torch.empty_like(facts) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, facts)
        if kept:
            self.seconds.append(max(float(f[0]) for f in everybody))
            self.wire_seconds.append(statistics.mean(float(f[3]) for f in everybody))
            self.bytes.append(statistics.mean(float(f[1]) for f in everybody))
            self.host_bytes.append(statistics.mean(float(f[2]) for f in everybody))

    @property
    def chosen(self) -> str | None:
        """The member that sums, if the strategy chooses one."""
        return None

    def prepare(self) -> None:
        """Prepares a gradient to sum."""

    def sum(self, step: int) -> float:
        """Replaces the gradient by the average. Returns the bytes that this rank sent, NaN if
        unknown."""
        raise NotImplementedError


class Torch(Run):
    """Torch's all_reduce, as DistributedDataParallel runs it on a bucket."""

    def prepare(self) -> None:
        self._out = self._x.clone()

    def sum(self, step: int) -> float:
        dist.all_reduce(self._out)
        self._out /= dist.get_world_size()
        return float("nan")


class Ours(Run):
    """A strategy of gradwire."""

    def __init__(
        self, text: str, x: torch.Tensor, machines: Machines, performer: Performer
    ) -> None:
        super().__init__(x)
        bucket = Bucket((Parameter("x", tuple(x.shape), sparse=x.is_sparse),))
        rank, world = performer.rank, performer.world
        self._context = make_context(Strategy.parse(text), bucket, rank, world, {}, machines)
        self._performer = performer
        self._out = x if x.is_sparse else torch.empty(x.numel())

    @property
    def chosen(self) -> str | None:
        chooser = self._context.memory.get("chooser")
        return str(chooser.member) if chooser else None

    def prepare(self) -> None:
        if self._x.is_sparse:
            self._out = self._x.clone()
        else:
            self._out.copy_(self._x.view(-1))

    def sum(self, step: int) -> float:
        self._context.begin([self._out], [self._out], StepInfo(step))
        rounds, arrived, sent = self._context.strategy.collective.rounds(self._context), None, 0.0
        self.in_moves = 0.0
        while True:
            try:
                move = next(rounds) if arrived is None else rounds.send(arrived)
            except StopIteration:
                break
            sent += self._performer.bytes_sent(move)
            began = time.perf_counter()
            arrived = self._performer.perform(move, "x")
            self.in_moves += time.perf_counter() - began
        self._context.end(skipped=False)
        return sent


def report(arguments: argparse.Namespace, x: torch.Tensor, runs: dict[str, Run]) -> None:
    for run in runs.values():
        run.seconds = [seconds / arguments.slower for seconds in run.seconds]
        run.wire_seconds = [seconds / arguments.slower for seconds in run.wire_seconds]
    first = statistics.median(runs[arguments.strategies[0]].seconds)
    rows = [
        (
            text, f"{1e3 * statistics.median(run.seconds):.1f}",
            f"{1e3 * min(run.seconds):.1f} – {1e3 * max(run.seconds):.1f}",
            f"{statistics.median(run.bytes) / 1e6:.2f}".replace("nan", "–"),
            f"{statistics.median(run.host_bytes) / 1e6:.2f}",
            f"{first / statistics.median(run.seconds):.2f}",
        )
        for text, run in runs.items()
    ]  # fmt: skip
    headers = ("strategy", "ms", "range", "MB sent", "MB out of a host", "× first")
    shape = " × ".join(map(str, x.shape))
    hosts = f"{arguments.hosts} hosts of {arguments.procs_per_host}"
    slower = f", {arguments.slower} times slower" if arguments.slower > 1 else ""
    print(f"{arguments.preset}, {shape}, {hosts}, {arguments.rate}{slower}\n")
    print(Table(headers, rows).as_markdown())
    if arguments.json:
        document = {
            "preset": arguments.preset, "shape": list(x.shape), "hosts": arguments.hosts,
            "procs_per_host": arguments.procs_per_host, "rate": arguments.rate,
            "slower": arguments.slower, "sparse": arguments.sparse,
            "runs": {
                t: {
                    "seconds": r.seconds, "wire_seconds": r.wire_seconds, "bytes": r.bytes,
                    "host_bytes": r.host_bytes, "chosen": r.chosen,
                }
                for t, r in runs.items()
            },
        }  # fmt: skip
        text = json.dumps(document, indent=1).replace("NaN", "null")
        arguments.json.write_text(text + "\n")
    if arguments.points:
        known = json.loads(arguments.points.read_text()) if arguments.points.exists() else []
        known += [
            {"scheme": scheme, "n": dist.get_world_size(), "bytes": statistics.median(run.bytes),
             "seconds": statistics.median(run.seconds)}
            for scheme, text in SUMS.items() if (run := runs.get(text))
        ]  # fmt: skip
        arguments.points.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
