"""Models with real lookups by every exchange of rows: step time, bytes, and the same losses?

    python benchmarks/sparse/lookups.py --json benchmarks/sparse/results/lookups.json
    python benchmarks/sparse/lookups.py nmt --hosts 4

One job for each model and number of hosts. Every contestant trains its own copy of the model, all
from the same weights and on the same batches; a round is one step of each, in another order each
time, after a barrier. Dense parameters travel in fp32 by all-reduce, whatever rows do, so the
losses of a step can differ by rounding alone. Tables whose gradients are made dense take some
hundred times as long: they have a short job of their own. Links are slower by the number of hosts
that share a core, and times are divided by it (time dilation, see lab.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from lookup_models import MODELS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Plan, Strategy
from gradwire.lab import Cluster, bytes_sent, parse_rate
from gradwire.report.table import Table
from gradwire.training.session import describe

CORES = 2
ALONE, DENSE, DDP = "no exchange", "DDP, dense tables", "DDP, sparse tables"
RIVALS = {
    "AGsparse": "none | allgather", "SparCML": "nonzero | sparcml",
    "OmniReduce": "nonzero | omnireduce", "sparse PS": "nonzero | sparse_ps",
    "Zen, published": 'nonzero | zen(variant="paper")',
}  # fmt: skip
OURS = {text: f"nonzero | {text}" for text in ("columns", "zen", "sparse_auto")}
NAMES = (ALONE, DDP, *RIVALS, *OURS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--hosts", type=int, nargs="*", default=(4, 8, 16))
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--warm-up", type=int, default=72, help="the chooser's races are over")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dense-rounds", type=int, default=5)
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments)
        return 0
    found = [job(model, n, arguments) for model in arguments.models for n in arguments.hosts]
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n")
    print(Table(HEADERS, [row for cell in found for row in rows(cell)]).as_markdown())
    return 0


def job(model: str, hosts: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs a job, and returns every contestant's seconds, bytes and losses, for one model on this
    many hosts."""
    slower = max(1, hosts // CORES)
    rate = f"{parse_rate(arguments.rate) / slower / 1e6:g}mbit"
    runs: dict[str, Any] = {}
    for names, warm_up, rounds in (
        (NAMES, arguments.warm_up, arguments.rounds), ((DENSE,), 2, arguments.dense_rounds)
    ):  # fmt: skip
        with tempfile.TemporaryDirectory() as folder, Cluster(hosts, rate) as lab:
            command = [
                sys.executable, __file__, model, "--work", f"{folder}/found.json",
                "--rounds", str(rounds), "--warm-up", str(warm_up), "--names", *names,
            ]  # fmt: skip
            if lab.run(command):
                raise SystemExit(f"{model} on {hosts} hosts failed")
            runs |= json.loads(Path(f"{folder}/found.json").read_text())
    for run in runs.values():
        run["seconds"] = [seconds / slower for seconds in run["seconds"]]
    return {"model": model, "hosts": hosts, "rate": arguments.rate, "runs": runs}


def work(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    dist.init_process_group("gloo")
    jobs = [Contestant(name, arguments.models[0]) for name in arguments.names]
    for number in range(arguments.warm_up + arguments.rounds):
        for contestant in random.Random(number).sample(jobs, len(jobs)):
            contestant.step(number, kept=number >= arguments.warm_up)
    if dist.get_rank() == 0:
        found = {c.name: {"seconds": c.seconds, "bytes": c.bytes, "losses": c.losses}
                 for c in jobs}  # fmt: skip
        Path(arguments.work).write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 sometimes aborts while it shuts down Gloo's threads


class Contestant:
    """One copy of the model in training, and how its gradients travel."""

    def __init__(self, name: str, model: str) -> None:
        torch.manual_seed(0)
        self.name, self._batch = name, MODELS[model].batch  # type: ignore[attr-defined]
        self.model: nn.Module = MODELS[model](name != DENSE)
        self.seconds, self.bytes, self.losses = list[float](), list[float](), list[float]()
        if name in (DENSE, DDP):
            self.model = DistributedDataParallel(self.model)
        elif name != ALONE:
            _attach(self.model, (RIVALS | OURS)[name])
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, number: int, kept: bool) -> None:
        """Trains one step; records the slowest rank's seconds, and the mean over ranks of bytes
        and losses."""
        dice = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        batch = self._batch(dice)
        dist.barrier()
        before = bytes_sent()
        dist.barrier()  # after it no rank waits for one that reads its counter
        began = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self.model(*batch)
        loss.backward()
        self._optimizer.step()
        seconds = time.perf_counter() - began
        dist.barrier()
        facts = torch.tensor([seconds, bytes_sent() - before, float(loss.detach())])
        everybody = [torch.empty_like(facts) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, facts)
        self.losses.append(mean(float(f[2]) for f in everybody))
        if kept:
            self.seconds.append(max(float(f[0]) for f in everybody))
            self.bytes.append(mean(float(f[1]) for f in everybody))


def _attach(model: nn.Module, text: str) -> None:
    """Attaches gradwire: tables by this strategy, all else by all-reduce. Streams of rows have one
    width, so tables of another width have a bucket of their own; columns take them together."""
    parameters = describe(dict(model.named_parameters()), model)
    tables = [p for p in parameters if p.sparse]
    widths = {p.shape[1]: [q.name for q in tables if q.shape[1] == p.shape[1]] for p in tables}
    apart = () if text.endswith("columns") else tuple(widths.values())
    plan = Plan.make(parameters, "none | allreduce", lanes=3, buckets=apart)
    rows, pairs = Strategy.parse(text), zip(plan.buckets, plan.strategies)
    strategies = tuple(rows if bucket.has_rows else other for bucket, other in pairs)
    gradwire.attach(model, replace(plan, strategies=strategies))


HEADERS = ("model", "hosts", "exchange", "ms a step", "of these for the exchange", "MB sent",
           "× DDP, dense", "× DDP, sparse", "largest difference of a loss")  # fmt: skip


def rows(cell: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns a row for each contestant; losses are compared with those of DDP with sparse
    tables."""
    runs = cell["runs"]
    ms = {name: 1e3 * median(run["seconds"]) for name, run in runs.items()}
    return [
        (
            cell["model"], str(cell["hosts"]), name, f"{own:.1f}", f"{own - ms[ALONE]:.1f}",
            f"{median(runs[name]['bytes']) / 1e6:.2f}", f"{ms[DENSE] / own:.2f}",
            f"{ms[DDP] / own:.2f}", _apart(runs[name]["losses"], runs[DDP]["losses"], name),
        )
        for name, own in ms.items()
    ]  # fmt: skip


def _apart(own: list[float], other: list[float], name: str) -> str:
    return "–" if name == ALONE else f"{max(abs(a - b) / b for a, b in zip(own, other)):.0e}"


if __name__ == "__main__":
    sys.exit(main())
