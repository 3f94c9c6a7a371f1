"""Scikit-learn's digits, 8 × 8, the smallest real images: ResNet-20, and a perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from task import Batch, Length, Metric, Settings, Task, accuracy, cosine, dice
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, relu

PER_WORKER = 32
TEST = 360


class Residual(nn.Module):
    """Two convolutions and a skip connection; He et al. 2016, option A at the borders."""

    def __init__(self, given: int, channels: int) -> None:
        super().__init__()
        self.stride = channels // given
        self.more = channels - given
        self.first = nn.Conv2d(given, channels, 3, self.stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm, self.second_norm = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.second_norm(self.second(relu(self.norm(self.first(x)))))
        around = x[:, :, :: self.stride, :: self.stride]
        return relu(inner + pad(around, (0, 0, 0, 0, 0, self.more)))


def resnet20() -> nn.Module:
    """A model of 269,000 parameters; BatchNorm uses each worker's own batch."""
    widths = [16] * 4 + [32] * 3 + [64] * 3
    blocks = [Residual(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def perceptron() -> nn.Module:
    """A model of 19,000 parameters, which a test can train."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


@cache
def images() -> tuple[Tensor, Tensor]:
    """Returns all 1,797 images, in an order that never changes: the first 1,437 are for
    training."""
    found = find_spec("sklearn")  # its file is read, as importing it takes a second
    if found is None or found.origin is None:
        raise SystemExit("the digits are scikit-learn's; pip install scikit-learn")
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = torch.from_numpy(np.loadtxt(file, delimiter=","))
    pixels = rows[:, :-1].view(-1, 1, 8, 8).float() / 8 - 1
    order = torch.randperm(len(pixels), generator=dice("digits", "split"))
    return pixels[order], rows[:, -1].long()[order]


def batches(seed: int, step: int, workers: int) -> Sequence[Batch]:
    """Returns batches: each epoch in another order, each image shifted by at most a pixel."""
    pixels, labels = (x[:-TEST] for x in images())
    together = PER_WORKER * workers
    epoch, at = divmod(step, len(pixels) // together)
    order = torch.randperm(len(pixels), generator=dice("digits", seed, "epoch", epoch))
    chosen = order[at * together : (at + 1) * together]
    shifted = _shifted(pixels[chosen], dice("digits", seed, "shifts", step))
    return list(zip(shifted.split(PER_WORKER), labels[chosen].split(PER_WORKER)))


def _shifted(pixels: Tensor, generator: torch.Generator) -> Tensor:
    right, down = torch.randint(3, (2, len(pixels), 1, 1), generator=generator)
    side = torch.arange(8)
    rows, columns = down + side.view(1, 8, 1), right + side.view(1, 1, 8)
    return _wide(pixels)[torch.arange(len(pixels)).view(-1, 1, 1), 0, rows, columns].unsqueeze(1)


def _wide(pixels: Tensor) -> Tensor:
    """Adds a border of the background's value."""
    return pad(pixels, (1, 1, 1, 1), value=-1.0)


def loss(network: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(network(batch[0]), batch[1])


@cache
def test_set() -> Batch:
    """Returns each image at all nine shifts at which training may have seen it: 3,240."""
    pixels, labels = (x[-TEST:] for x in images())
    wide = _wide(pixels)
    places = [wide[:, :, y : y + 8, x : x + 8] for y in range(3) for x in range(3)]
    return torch.cat(places), labels.repeat(9)


def evaluate(network: nn.Module) -> float:
    pixels, labels = test_set()
    return accuracy(network, pixels, labels)


TASK = Task(
    name="digits",
    mirrors="CIFAR-10, ResNet-20 and ResNet-110",
    model=resnet20,
    batches=batches,
    loss=loss,
    evaluate=evaluate,
    metric=Metric("test accuracy", "%", "accuracy"),
    settings=Settings(rate=0.1, schedule=cosine(0.05), momentum=0.9, weight_decay=1e-4),
    small=Length(500, 0.01),
    full=Length(2000, 0.01),
)
FAST = replace(
    TASK, name="digits-mlp", model=perceptron, small=Length(5000, 0.01), full=Length(20_000, 0.001)
)
