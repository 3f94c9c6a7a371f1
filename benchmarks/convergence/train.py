"""One run: a task, a method, a seed; N workers in lockstep; in a file from which it can resume.

    batches ─► N gradients ─► exchange ─► averages ─► one optimizer (all workers' models are equal)

A run's file is `NAME.pt` while it trains, written anew at every evaluation, and `NAME.json` when
it is done. Started again, it resumes from there and ends with the same bits. The name does not
contain a task's own numbers: if you change those, use another folder.
"""

from __future__ import annotations

import copy
import json
import math
import os
import platform
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from controls import CONTROLS
from exchange import Exchange
from methods import BY_NAME, Method
from task import Batch, Settings, Task, there
from tasks import TASKS

POINTS = 200
"""Points of a loss curve: each is the mean of one of so many equal parts of the run."""
EVALUATIONS = 20
"""Evaluations of the metric in a run, the last at its end."""
LAST = 10
"""Points at the curve's end, 5 % of the run, whose mean is the training loss in tables."""


KNOWN = BY_NAME | {control.wrong.name: control.wrong for control in CONTROLS}
"""Every method that a run may name; mistakes too."""


@dataclass(frozen=True)
class Run:
    """All that decides a run's numbers."""

    task: str
    method: str
    seed: int
    workers: int
    steps: int
    density: float
    rate: float = 1.0

    @property
    def name(self) -> str:
        """The name of its file."""
        rate = "" if self.rate == 1.0 else f",{self.rate:g}"
        return (
            f"{self.task},{self.method},{self.density:g},{self.workers}x{self.steps},"
            f"{self.seed}{rate}"
        )


class Training:
    """A run under way. All that changes from step to step is in `state_dict`."""

    def __init__(
        self, run: Run, task: Task | None = None, method: Method | None = None,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        self.run, self.task, self.device = run, task or TASKS[run.task], torch.device(device)
        method = method or KNOWN[run.method]
        settings = self.settings_of(self.task)
        self.model = self.task.fresh(run.seed).to(self.device)
        self._named = dict(self.model.named_parameters())
        self.exchange = Exchange(
            self.model, method, settings, workers=run.workers, steps=run.steps,
            density=run.density, seed=run.seed,
        )  # fmt: skip
        self.optimizer = method.make_optimizer(self.model, settings, run.steps)
        self.step, self.seconds, self.bytes = 0, 0.0, 0.0
        self.losses: list[float] = []
        self.metrics: list[tuple[int, float]] = []

    @staticmethod
    def settings_of(task: Task) -> Settings:
        """The settings of the exchange and the optimizer."""
        return task.settings

    def advance(self) -> None:
        """Trains one step of all workers."""
        began = time.process_time()
        losses = self.take(self.task.rate(self.step, self.run.steps) * self.run.rate)
        self.step += 1
        self.losses.append(sum(losses) / len(losses))
        self.seconds += time.process_time() - began
        if self._is_due:
            self.metrics.append((self.step, self.task.evaluate(self.model)))

    def take(self, rate: float) -> list[float]:
        """Takes the step itself. Returns each worker's loss."""
        losses, gradients = self.gradients()
        for name, average in self.exchange(gradients).items():
            self._named[name].grad = average
        self.bytes += self.exchange.bytes_sent
        self.exchange.follow(rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return losses

    @property
    def _is_due(self) -> bool:
        """Whether an evaluation is due after the step just done."""
        now, before = (at * EVALUATIONS // self.run.steps for at in (self.step, self.step - 1))
        return now > before

    def gradients(self) -> tuple[list[float], list[dict[str, torch.Tensor]]]:
        """Returns each worker's loss, and its gradient by name.

        Computes one worker after the other: on one core that is as fast as all in one batch
        (`vmap` over gradients takes twice the time for the perceptron, an LSTM a quarter less at
        best; an LSTM written for all workers at once is no faster either).
        """
        losses, found = [], []
        for worker, batch in enumerate(self.batches()):
            with self.exchange.seen_by(worker, self._named):
                loss = self.task.loss(self.model, batch)
                gradients = torch.autograd.grad(loss, list(self._named.values()))
            losses.append(loss.detach())
            found.append(dict(zip(self._named, gradients)))
        return torch.stack(losses).tolist(), found

    def batches(self) -> list[Batch]:
        """Returns each worker's batch of this step, on its device."""
        drawn = self.task.batches(self.run.seed, self.step, self.run.workers)
        return [there(self.model, *batch) for batch in drawn]

    @property
    def is_over(self) -> bool:
        return self.step >= self.run.steps

    def record(self) -> dict[str, Any]:
        """Returns the record for tables and plots: plain values."""
        return asdict(self.run) | {
            "metric": self.metrics[-1][1] if self.metrics else math.nan,
            "training_loss": _mean(_curve(self.losses)[-LAST:]),
            "metrics": self.metrics,
            "losses": [float(f"{loss:.6g}") for loss in _curve(self.losses)],
            "bytes_per_step": self.bytes / max(self.step, 1),
            "ms_per_step": 1000 * self.seconds / max(self.step, 1),
            "torch": torch.__version__,
            "python": platform.python_version(),
            **self.origin(),
        }

    def origin(self) -> dict[str, str]:
        """Returns what a run's numbers depend on beside `Run`: its data, and its device."""
        return {"data": self.task.data(), "device": _name(self.device)}

    # -- to be saved -----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "run": asdict(self.run),
            "origin": self.origin(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "exchange": self.exchange.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "losses": self.losses,
            "metrics": self.metrics,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state into a new training of the same run."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.exchange.load_state_dict(state["exchange"])
        self.step, self.seconds, self.bytes = state["step"], state["seconds"], state["bytes"]
        self.losses, self.metrics = list(state["losses"]), list(map(tuple, state["metrics"]))


class LocalTraining(Training):
    """Training whose workers step alone and exchange how far they came: N models, N optimizers.

    `model` is common to all, as of the last exchange; the run ends with an exchange. A worker
    clips its own gradient, as methods with local clipping do.
    """

    def __init__(
        self, run: Run, task: Task | None = None, method: Method | None = None,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__(run, task, method, device)
        method = method or KNOWN[run.method]
        self._every, self._delay, settings = method.every, method.delay, self.task.settings
        self._models = [copy.deepcopy(self.model) for _ in range(run.workers)]
        self._optimizers = [method.make_optimizer(m, settings, run.steps) for m in self._models]
        self._norm = None if settings.clip is None else settings.clip * math.sqrt(run.workers)
        self._means: dict[str, torch.Tensor] = {}  # of an exchange that is under way
        self._left: list[dict[str, torch.Tensor]] = []  # each worker's weights when it began

    @staticmethod
    def settings_of(task: Task) -> Settings:
        """Settings without clipping: progress is not clipped, and has no rate."""
        return replace(task.settings, clip=None)

    def take(self, rate: float) -> list[float]:
        losses = []
        for model, optimizer, batch in zip(self._models, self._optimizers, self.batches()):
            optimizer.zero_grad()
            loss = self.task.loss(model, batch)
            loss.backward()
            if self._norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self._norm)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            losses.append(float(loss.detach()))
        done = self.step + 1
        if self._means and done % self._every == self._delay % self._every:
            self._land()
        if done % self._every == 0:
            self._launch()
        if self._means and (not self._delay or done == self.run.steps):
            self._land()
        if done == self.run.steps and done % self._every:
            self._launch()
            self._land()
        return losses

    @torch.no_grad()
    def _launch(self) -> None:
        """Exchanges progress."""
        self._left = [
            {name: p.detach().clone() for name, p in model.named_parameters()}
            for model in self._models
        ]
        apart = [{name: self._named[name] - p for name, p in left.items()} for left in self._left]
        self._means = {name: mean.clone() for name, mean in self.exchange(apart).items()}
        self.bytes += self.exchange.bytes_sent

    @torch.no_grad()
    def _land(self) -> None:
        """Moves all workers to the mean, as it arrived, plus what each has learnt meanwhile."""
        for name, mean in self._means.items():
            self._named[name].sub_(mean)
        for model, left in zip(self._models, self._left):
            for name, p in model.named_parameters():
                p.copy_(self._named[name] + (p - left[name]))
        self._means, self._left = {}, []

    def state_dict(self) -> dict[str, Any]:
        alone = zip(self._models, self._optimizers)
        own = [{"model": m.state_dict(), "optimizer": o.state_dict()} for m, o in alone]
        return {**super().state_dict(), "alone": own, "means": self._means, "left": self._left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for model, optimizer, own in zip(self._models, self._optimizers, state["alone"]):
            model.load_state_dict(own["model"])
            optimizer.load_state_dict(own["optimizer"])
        self._means, self._left = dict(state["means"]), list(state["left"])


def train(run: Run, folder: Path, device: str = "cpu") -> dict[str, Any]:
    """Returns the record of a run: reads it if it exists, otherwise trains, from where the run was
    left off. Raises SystemExit if what is there is of other data or another device."""
    done, under_way = folder / f"{run.name}.json", folder / f"{run.name}.pt"
    if done.exists():
        found: dict[str, Any] = json.loads(done.read_text())
        own = {"data": TASKS[run.task].data(), "device": _name(torch.device(device))}
        _refuse_other(done, found, own)
        return found
    if device != "cpu":
        torch.set_float32_matmul_precision("high")  # TF32, as is usual on GPUs
    kind = Training if KNOWN[run.method].every == 1 else LocalTraining
    training = kind(run, device=device)
    if under_way.exists():
        state = torch.load(under_way, map_location=training.device, weights_only=True)
        _refuse_other(under_way, state.get("origin", {}), training.origin())
        training.load_state_dict(state)
    while not training.is_over:
        evaluated = len(training.metrics)
        training.advance()
        if len(training.metrics) > evaluated:
            _replace(under_way, lambda path: torch.save(training.state_dict(), path))
    record = training.record()
    _replace(done, lambda path: path.write_text(json.dumps(record) + "\n"))
    under_way.unlink(missing_ok=True)
    return record


def _refuse_other(file: Path, found: dict[str, Any], own: dict[str, str]) -> None:
    """Raises SystemExit if a file is of other data or another device than this run's. Earlier
    files say nothing of the device, or of either."""
    for kind, mine in own.items():
        if found.get(kind, mine) != mine:
            raise SystemExit(
                f"{file} is of other {kind} ({found[kind]!r}) than this run ({mine!r}); the text "
                "of a task is that of this Python. Take another --folder."
            )


def _replace(path: Path, write: Any) -> None:
    """Replaces a file atomically, so that a run that is killed leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(path.suffix + ".new")
    write(new)
    os.replace(new, path)


def _name(device: torch.device) -> str:
    """The device's usual name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _curve(losses: list[float]) -> list[float]:
    """Returns at most POINTS means of equal parts."""
    length = max(1, math.ceil(len(losses) / POINTS))
    return [_mean(losses[i : i + length]) for i in range(0, len(losses), length)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
