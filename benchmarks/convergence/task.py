"""The parts of a task: data, model, loss, optimizer; all randomness comes from seeds and steps.

A batch is a function of (seed, step), not of what was drawn before: a run that is interrupted
continues with the same bits, and every method of one seed sees the same data in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from gradwire.buckets import digest

Batch: TypeAlias = tuple[Tensor, ...]
Schedule: TypeAlias = Callable[[float], float]
"""The learning rate's factor at a fraction of the run, both from 0 to 1."""


@dataclass(frozen=True)
class Metric:
    """A measure on data that training never saw.

    kind: the rule in `parity.py` that applies. unit: as tables print it.
    """

    name: str
    unit: str
    kind: Literal["accuracy", "bits", "errors"]


@dataclass(frozen=True)
class Settings:
    """The optimizer's settings; the same for every method.

    clip: the norm at which the average is clipped, dense; √workers times it for each worker's own.
    optimizer: of the average; methods that keep SGD's momentum are not for the others.
    warm_up: the first one in so many steps is the methods' warm-up. In Lin et al. 2018: 4 of 90
        (ImageNet) and 4 of 164 epochs (CIFAR-10), 1 of 40 (Penn Treebank), 1 of 80 (speech).
    """

    rate: float
    schedule: Schedule
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip: float | None = None
    optimizer: Literal["sgd", "adamw", "muon"] = "sgd"
    warm_up: int = 20


@dataclass(frozen=True)
class Length:
    """A run's length, and the density of its sparse methods: parity takes many times 1/density
    steps."""

    steps: int
    density: float


@dataclass(frozen=True)
class Task:
    """One learning problem that needs no download.

    Attributes:
        name: on the command line.
        mirrors: the experiment of the papers that it represents.
        model: makes a new one, drawn from torch's global generator.
        batches: (seed, step, workers) -> each worker's part of that step's batch.
        loss: of one worker's part, a mean.
        evaluate: the metric, on a fixed test set.
        small, full: how long its runs are in each form of the suite.
        data: identifies data that may differ from machine to machine.
    """

    name: str
    mirrors: str
    model: Callable[[], nn.Module]
    batches: Callable[[int, int, int], Sequence[Batch]]
    loss: Callable[[nn.Module, Batch], Tensor]
    evaluate: Callable[[nn.Module], float]
    metric: Metric
    settings: Settings
    small: Length
    full: Length
    data: Callable[[], str] = str

    def fresh(self, seed: int) -> nn.Module:
        """Returns the model with which every method of this seed begins."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(digest(self.name, "model", seed))
            return self.model()

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at a step of a run of `steps` steps."""
        return self.settings.rate * self.settings.schedule(step / steps)


def dice(*facts: object) -> torch.Generator:
    """Returns a generator that depends on the facts alone, on every machine."""
    return torch.Generator().manual_seed(digest(*facts))


def cosine(warm: float = 0.02) -> Schedule:
    """Rises linearly in the first part of the run, then falls to zero by half a cosine."""

    def factor(part: float) -> float:
        if part < warm:
            return (part + warm / 10) / (1.1 * warm)
        return 0.5 * (1 + math.cos(math.pi * (part - warm) / (1 - warm)))

    return factor


def linear() -> Schedule:
    """Falls to zero linearly."""
    return lambda part: 1 - part


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Runs in eval mode and without gradients; restores the mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, at_once: int = 1000) -> float:
    """Returns the percentage of images whose largest score is their label's."""
    with evaluating(model):
        found = [model(*there(model, part)).argmax(1).cpu() for part in images.split(at_once)]
    return 100 * float((torch.cat(found) == labels).double().mean())


def there(model: nn.Module, *data: Tensor) -> Batch:
    """Returns the tensors on the model's device."""
    device = next(model.parameters()).device
    return tuple(x.to(device) for x in data)
