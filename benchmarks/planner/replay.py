"""Training at a GPU's speed, on CPUs: backward sleeps, gradients are made up, the rest is real.

    backward   ┄┄┄ sleeps ┄┄┄● w5 ┄┄┄● w4 ┄┄┄┄┄● w3 …
                             └ due: the sum of what came before; never later because of a hook

Every parameter has a function in the graph whose backward waits until the gradient is due and then
gives one: a fixed heavy-tailed vector, scaled by another number each step. The CPUs are free
meanwhile, as beside a GPU: backward sleeps, some 40 µs too long each time, which does not add up.
Tensors are 1/SCALE of the published ones, with their full times: so a link of 1 Gbit/s here is
like one of SCALE Gbit/s there, and kernels here are like ones SCALE times as fast.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

import torch
from models import Training
from shapes import Weight, bert_base, gpt2_small, lstm, resnet, ugatit, vgg16
from torch import Tensor, nn

SCALE = 16
_TIMER_SLACK = 29  # prctl's: how late Linux may wake a thread, in nanoseconds; 50,000 otherwise
ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)


@dataclass(frozen=True)
class Timing:
    """When the gradient of one tensor is due, in seconds from the start of backward."""

    name: str
    shape: tuple[int, ...]
    due: float


def timings(weights: Iterable[Weight], backward_seconds: float, scale: int) -> list[Timing]:
    """Returns timings in the order of backward: the time is divided by work, and sizes by
    scale."""
    own = list(weights)
    total, done, found = sum(w.work for w in own), 0.0, []
    for w in reversed(own):
        done += w.work
        found.append(Timing(w.name, _scaled(w.shape, scale), backward_seconds * done / total))
    return found


def _scaled(shape: tuple[int, ...], scale: int) -> tuple[int, ...]:
    """Scales a shape. A matrix stays one: it gets fewer rows, or, if there are too few, fewer
    columns."""
    rows = max(1, shape[0] // scale)
    if len(shape) == 1:
        return (rows,)
    columns = 1
    for side in shape[1:]:
        columns *= side
    return (rows, max(1, round(shape[0] * columns / scale / rows)))


class Replay(nn.Module):
    """Parameters whose gradients come when they are due. forward() returns a loss without
    meaning."""

    def __init__(self, rows: Sequence[Timing], forward_seconds: float, seed: int = 0) -> None:
        super().__init__()
        self.rows, self.forward_seconds = list(rows), forward_seconds
        self.parameters_ = nn.ParameterList(nn.Parameter(torch.zeros(r.shape)) for r in rows)
        dice = torch.Generator().manual_seed(seed)
        largest = max(p.numel() for p in self.parameters_)
        self._pool = 1e-3 * torch.randn(largest + 4096, generator=dice) ** 3
        self.began, self._steps = 0.0, 0

    def forward(self) -> Tensor:
        """Waits as long as forward takes."""
        wait_until(perf_counter() + self.forward_seconds)
        self.began, self._steps = 0.0, self._steps + 1
        x = torch.zeros((), requires_grad=True)
        for i in reversed(range(len(self.rows))):  # the last of the chain is the first in backward
            x = _Due.apply(x, self.parameters_[i], self, i)
        return x

    def gradient(self, i: int) -> Tensor:
        """Returns this step's gradient of tensor i; waits until it is due."""
        now = perf_counter()
        self.began = self.began or now
        n, at = self.parameters_[i].numel(), (i * 641) % 4096
        scale = 1.0 + 0.1 * ((self._steps * 7 + i) % 13)
        made = (self._pool[at : at + n] * scale).view(self.rows[i].shape)
        wait_until(self.began + self.rows[i].due)
        return made


class _Due(torch.autograd.Function):
    """Returns x, and in backward gives a gradient to the parameter."""

    @staticmethod
    def forward(context: Any, x: Tensor, parameter: Tensor, replay: Replay, i: int) -> Tensor:
        context.replay, context.i = replay, i
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient, context.replay.gradient(context.i), None, None


def wait_until(due: float) -> None:
    """Sleeps until a time of perf_counter."""
    sleep(max(0.0, due - perf_counter()))


@dataclass(frozen=True)
class Network:
    """A network. backward_seconds: on one V100, as in the traces that Espresso (EuroSys'23)
    published with its simulator; ResNet-50's is ResNet-101's, scaled by work. Forward takes half
    as long."""

    weights: Callable[[], Iterable[Weight]]
    backward_seconds: float
    batch: str

    def training(self, scale: int = SCALE) -> Training:
        """Returns the training of a replica."""
        rows = timings(self.weights(), self.backward_seconds, scale)
        replay = Replay(rows, self.backward_seconds / 2)
        return Training(replay, replay)


NETWORKS = {
    "resnet50": Network(lambda: resnet((3, 4, 6, 3)), 0.063, "32 images"),
    "resnet101": Network(lambda: resnet((3, 4, 23, 3)), 0.120, "32 images"),
    "vgg16": Network(vgg16, 0.0853, "32 images"),
    "bert_base": Network(bert_base, 0.066, "1024 words"),
    "gpt2_small": Network(gpt2_small, 0.211, "80 words"),
    "ugatit": Network(ugatit, 0.434, "2 images"),
    "lstm": Network(lstm, 0.0715, "80 words"),
}

REPLAYS: dict[str, Callable[[], Training]] = {name: n.training for name, n in NETWORKS.items()}
