"""How long a step and a whole run take on a slow network: the job of one rank in the lab.

Contestants take turns in one job, so that other load on the machine affects all of them.

    python contestants.py JOB RUNS FILE ROUNDS      (by `in_lab`, which asks the lab for a cluster)
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from methods import BY_NAME
from processes import Rank, leave
from tasks import TASKS
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire.bench.machine import set_allocator
from gradwire.lab import Cluster
from train import Run

FP32, FP16, ALONE = "DDP fp32", "DDP fp16", "no synchronization"
ROUNDS, TURN = 4, 12
SETTLED = 5
"""The first steps of a whole run, which connect and allocate: they are not timed."""


class Ddp(Rank):
    """The same training, synchronized by PyTorch alone."""

    hook: Any = None

    def synchronize(self, density: float | str | None) -> None:
        self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        if self.hook is not None:
            self.model.register_comm_hook(None, self.hook)


class HalfDdp(Ddp):
    hook = staticmethod(fp16_compress_hook)


class Alone(Rank):
    """Training without synchronization: only the processors' time."""

    def synchronize(self, density: float | str | None) -> None:
        pass


PLAIN: dict[str, type[Rank]] = {ALONE: Alone, FP32: Ddp, FP16: HalfDdp}


def contestants(runs: Sequence[Run]) -> dict[str, Rank]:
    """Returns the contestants in the lab: each density of these runs, and PyTorch's own
    methods."""
    dense = replace(runs[0], method="dense")
    found = {name: kind(dense) for name, kind in PLAIN.items()}
    for run in runs:
        found |= {name: Rank(run, density) for name, density in stages(run).items()}
    return found


def stages(run: Run) -> dict[str, float | str]:
    """Returns the densities of a run, by the name of the contestant that measures each."""
    return {stage(run, density): density for density in densities(run)}


def stage(run: Run, density: float | str) -> str:
    shown = f"'{density}'" if isinstance(density, str) else f"{density:g}"
    return f"{run.method} at {shown}"


def densities(run: Run, begin: int = 0) -> Counter[float | str]:
    """Counts the densities of a run's steps from `begin` on: the warm-up's, or its texts, then its
    own."""
    warmup = BY_NAME[run.method].warmup(TASKS[run.task].settings, run.steps)
    at = [warmup.density(step) if warmup else None for step in range(begin, run.steps)]
    return Counter[float | str](run.density if density is None else density for density in at)


def take_turns(runs: Sequence[Run], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of a step until all ranks are done, by contestant, in each round.
    Collective."""
    seconds: dict[str, list[float]] = {}
    ranks = contestants(runs)
    for turn in range(rounds + 1):
        first = turn * (TURN + 1)
        for name, rank in ranks.items():
            rank.advance(first)
            dist.barrier()
            began = time.perf_counter()
            for step in range(TURN):
                rank.advance(first + 1 + step)
            dist.barrier()
            if turn > 0:  # in the first, caches and connections are cold
                seconds.setdefault(name, []).append((time.perf_counter() - began) / TURN)
    return seconds


def whole_run(runs: Sequence[Run], _: int) -> dict[str, list[float]]:
    """Trains the first run; returns the seconds of its steps after SETTLED, and all mean losses.
    Collective."""
    run = runs[0]
    rank = Ddp(run) if run.method == "dense" else Rank(run)
    losses = [rank.advance(step) for step in range(SETTLED)]
    dist.barrier()
    began = time.perf_counter()
    losses += [rank.advance(step) for step in range(SETTLED, run.steps)]
    dist.barrier()
    total = torch.tensor([*losses, time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(total)
    *losses, seconds = (total / dist.get_world_size()).tolist()
    return {"seconds": [seconds], "losses": losses}


JOBS = {"turns": take_turns, "whole": whole_run}


def work(job: str, runs: Sequence[Run], out: Path, rounds: int) -> None:
    """Does the work of one rank of a job."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = JOBS[job](runs, rounds)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    leave()


def in_lab(
    job: str, runs: Sequence[Run], rate: str, folder: Path, rounds: int = ROUNDS
) -> dict[str, list[float]]:  # fmt: skip
    """Runs a job in the lab and returns what rank 0 measured."""
    out = (folder / f"{job},{rate}").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with Cluster(runs[0].workers, rate) as cluster:
        asked = [job, json.dumps(list(map(asdict, runs))), str(out), str(rounds)]
        code = cluster.run([sys.executable, __file__, *asked])
    if code:
        raise SystemExit(f"the job in the lab ended with {code}; its words are above.")
    found: dict[str, list[float]] = json.loads(out.read_text())
    out.unlink()
    return found


if __name__ == "__main__":
    set_allocator()
    _, job, asked, out, rounds = sys.argv
    work(job, [Run(**run) for run in json.loads(asked)], Path(out), int(rounds))
