"""The demo's step times, with all contestants in turn in one job, so that noise affects all alike.

    python benchmarks/demo/interleaved.py --rate 1gbit --rounds 6

Each contestant has a model and an optimizer of its own in every rank. A turn is a few steps, after
one to warm up; its step time is the slowest rank's mean.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.demo.model import LanguageModel
from gradwire.lab import Cluster

ROWS = ("no synchronization", "DDP fp32", "DDP fp16 hook", "none | allreduce",
        "bf16 | allreduce", "dgc(0.001) | allgather")  # fmt: skip
STREAMS, WORDS = 8, 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=6, help="steps in a turn")
    parser.add_argument(
        "--row", action="append", help="a strategy, with @3 for three lanes; repeatable"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        work(arguments)
        return 0
    with Cluster(arguments.hosts, arguments.rate) as cluster:
        return cluster.run([sys.executable, *sys.argv])


def work(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = {name: contestant(name) for name in arguments.row or ROWS}
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for round_ in range(arguments.rounds + 1):
        for name, step in rows.items():
            dist.barrier()
            taken = [step() for _ in range(arguments.steps + 1)][1:]
            mean = torch.tensor(statistics.fmean(taken), dtype=torch.float64)
            dist.all_reduce(mean, op=dist.ReduceOp.MAX)
            if round_ > 0:
                seconds[name].append(float(mean))
    if dist.get_rank() == 0:
        report(seconds, arguments)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 sometimes aborts while it shuts down Gloo's threads


def contestant(name: str) -> Callable[[], float]:
    """Returns a function that takes one step of this row and returns its seconds."""
    torch.manual_seed(0)
    model = LanguageModel(hidden=650)
    trained: nn.Module = model
    text, _, lanes = name.partition("@")
    if text.startswith("DDP"):
        trained = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if "fp16" in text:
            trained.register_comm_hook(None, fp16_compress_hook)
    elif text != "no synchronization":
        gradwire.attach(model, text, lanes=int(lanes) if lanes else None)
    momentum = 0.0 if "dgc" in text else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, fused=True)
    generator = torch.Generator().manual_seed(dist.get_rank())
    shape = (STREAMS, WORDS) if text else (0, 0)

    def step() -> float:
        words: Tensor = torch.randint(10_000, shape, generator=generator).T.contiguous()
        following = torch.randint(10_000, shape, generator=generator).T.contiguous()
        began = time.perf_counter()
        optimizer.zero_grad()
        loss, _ = trained(words, following, None)
        loss.backward()
        optimizer.step()
        return time.perf_counter() - began

    return step


def report(seconds: dict[str, list[float]], arguments: argparse.Namespace) -> None:
    print(f"{'ms per step, slowest rank':28}{'median':>8}{'min':>8}{'max':>8}{'/first':>8}")
    first = statistics.median(next(iter(seconds.values())))
    result = {}
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"{name:28}{1e3 * median:8.0f}{1e3 * min(values):8.0f}{1e3 * max(values):8.0f}"
              f"{median / first:8.2f}")  # fmt: skip
        result[name] = {"median": median, "min": min(values), "max": max(values)}
    if arguments.out:
        facts = {"hosts": arguments.hosts, "rate": arguments.rate, "seconds_per_step": result}
        arguments.out.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
