"""The same run by real processes: torchrun, Gloo, `gradwire.attach`; are its losses lockstep's?

`main.py --processes` calls `compare`; torchrun starts this file, once for each rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from methods import BY_NAME
from tasks import TASKS

import gradwire
from gradwire.plan import Plan
from gradwire.training.session import describe
from train import Run, Training


@dataclass(frozen=True)
class Comparison:
    """Steps whose mean loss has the same bits, of all; the largest difference, and its step."""

    run: Run
    same: int
    steps: int
    apart: float
    at: int


def compare(run: Run) -> Comparison:
    """Train twice: in this process and in `run.workers` others."""
    training = Training(run)
    while not training.is_over:
        training.advance()
    theirs = losses_of_processes(run)
    apart = [abs(a - b) for a, b in zip(training.losses, theirs, strict=True)]
    worst = max(range(len(apart)), key=apart.__getitem__)
    return Comparison(run, apart.count(0.0), run.steps, apart[worst], worst)


def losses_of_processes(run: Run) -> list[float]:
    """The mean over ranks, for each step."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "losses.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={run.workers}", __file__, json.dumps(asdict(run)), str(out),
        ]  # fmt: skip
        done = subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(
                f"a run of {run.workers} processes ended with {done.returncode}; its last words:\n"
                f"{done.stderr[-2000:]}\nRun one by hand: {' '.join(command[:-2])} …"
            )
        found: list[float] = json.loads(out.read_text())
    return found


def work(run: Run, out: Path) -> None:
    """One rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    task, method = TASKS[run.task], BY_NAME[run.method]
    settings, model = task.settings, task.fresh(run.seed)
    named = dict(model.named_parameters())
    gradwire.attach(
        model, Plan.make(describe(named), method.strategy(run.density, settings)),
        warmup=method.warmup(run.density, run.steps), seed=run.seed,
        clip_norm=settings.clip if method.clips == "local" else None,
    )  # fmt: skip
    optimizer = method.optimizer(list(named.values()), settings)
    losses = []
    for step in range(run.steps):
        batch = task.batches(run.seed, step, run.workers)[dist.get_rank()]
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        if settings.clip is not None and method.clips == "average":
            torch.nn.utils.clip_grad_norm_(named.values(), settings.clip)
        for group in optimizer.param_groups:
            group["lr"] = task.rate(step, run.steps)
        optimizer.step()
        losses.append(float(loss.detach()))
    _write_means(losses, out)
    dist.barrier()
    # torch 2.13 now and then aborts while it takes Gloo's threads down.
    sys.stdout.flush()
    os._exit(0)


def _write_means(losses: list[float], out: Path) -> None:
    own = torch.tensor(losses, dtype=torch.float64)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    if dist.get_rank() == 0:
        # In rank order and in double precision, as lockstep adds them.
        means = [sum(step) / len(step) for step in zip(*(x.tolist() for x in gathered))]
        out.write_text(json.dumps(means))


if __name__ == "__main__":
    work(Run(**json.loads(sys.argv[1])), Path(sys.argv[2]))
