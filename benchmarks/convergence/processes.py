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
from gradwire.testing import Workers
from gradwire.training.session import describe
from gradwire.training.trainable import others
from gradwire.warmup import at_density
from train import Run, Training


@dataclass(frozen=True)
class Comparison:
    """The number of steps whose mean loss has the same bits, and the largest difference of all
    steps."""

    same: int
    apart: float


def compare(run: Run) -> Comparison:
    """Trains twice: in this process and in `run.workers` others.

    Raises SystemExit for a method that `attach` does not have.
    """
    method, is_clipped = BY_NAME[run.method], TASKS[run.task].settings.clip is not None
    by_attach = method.follows_rate and method.workers is Workers and method.every == 1
    if method.whole or not by_attach or (is_clipped and method.clips == "nothing"):
        raise SystemExit(
            "processes train by `attach`: by a plan, tensor by tensor, in every step, what waits "
            "keeps its rate, and gradients are clipped as the task says; "
            f"{run.method} does not. Take dense, dgc, ef-topk, gtopk or the like."
        )
    training = Training(run)
    while not training.is_over:
        training.advance()
    theirs = losses_of_processes(run)
    apart = [abs(a - b) for a, b in zip(training.losses, theirs, strict=True)]
    return Comparison(apart.count(0.0), max(apart))


def losses_of_processes(run: Run) -> list[float]:
    """Returns the mean loss over ranks, for each step."""
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


class Rank:
    """One rank of a run: a model with gradwire attached, and its optimizer.

    density: a constant one, or the text of a warm-up, instead of the run's with its warm-up.
    """

    def __init__(self, run: Run, density: float | str | None = None) -> None:
        self.run, self.task, self.method = run, TASKS[run.task], BY_NAME[run.method]
        self.model = self.task.fresh(run.seed)
        self.parameters = list(self.model.parameters())
        self.synchronize(density)
        self.optimizer = self.method.make_optimizer(self.model, self.task.settings, run.steps)

    @property
    def clips_average(self) -> bool:
        return self.method.clips == "average"

    def synchronize(self, density: float | str | None) -> None:
        """Attaches gradwire, so that gradients become averages. The run's own density is its plan
        as it is: in a warm-up a compressor that has none would travel dense."""
        run, settings = self.run, self.task.settings
        parameters = describe(dict(self.model.named_parameters()))
        strategy = self.method.strategy(run.density, settings)
        plan = Plan.make(parameters, strategy, others=others(self.model))
        at = None if density == run.density else density
        gradwire.attach(
            self.model, at_density(plan, at, run.workers), seed=run.seed,
            warmup=None if density else self.method.warmup(settings, run.steps),
            clip_norm=None if self.clips_average else settings.clip,
        )  # fmt: skip

    def advance(self, step: int) -> float:
        """Trains one step and returns this rank's loss. Collective."""
        batch = self.task.batches(self.run.seed, step, self.run.workers)[dist.get_rank()]
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model, batch)
        loss.backward()
        if self.task.settings.clip is not None and self.clips_average:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.task.settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.rate(step, self.run.steps) * self.run.rate
        self.optimizer.step()
        return float(loss.detach())


def work(run: Run, out: Path) -> None:
    """Trains all steps of one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = Rank(run)
    _write_means([rank.advance(step) for step in range(run.steps)], out)
    leave()


def leave() -> None:
    """Ends this rank when all have arrived here, because torch 2.13 sometimes aborts while it
    shuts down Gloo's threads."""
    dist.barrier()
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
