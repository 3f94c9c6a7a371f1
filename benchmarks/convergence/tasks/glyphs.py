"""Drawn signs, 16 × 16: an unlimited number to train on, and a fixed test set of ten thousand.

Twenty classes of three strokes each, turned, stretched, shifted, under noise. Nothing can be
learned by heart, so training loss is test loss, and a tenth of a percent of accuracy is visible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import torch
from task import Batch, Length, Metric, Settings, Task, accuracy, cosine, dice
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample

CLASSES, SIDE, STROKES = 20, 16, 3
NOISE = 0.4
PER_WORKER = 32
TEST = 10_000


def model() -> nn.Module:
    """A model of 137,000 parameters; 96 % of them are in two matrices, so 0.1 % is 66 of each."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, CLASSES),
    )  # fmt: skip


def convnet() -> nn.Module:
    """A model of 99,000 parameters in four convolutions; BatchNorm uses each worker's own
    batch."""
    widths = (1, 16, 32, 64, 128)
    layers = list[nn.Module]()
    for number, (given, made) in enumerate(pairwise(widths)):
        step = 1 if number == 0 else 2
        layers += [
            nn.Conv2d(given, made, 3, step, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU()
        ]  # fmt: skip
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES)
    )


@cache
def templates() -> Tensor:
    """Returns (classes, 1, 24, 24), ink from 0 to 1; the same for every seed."""
    generator = dice("glyphs", "templates")
    ends = torch.rand(CLASSES, STROKES, 2, 2, generator=generator) * 1.2 - 0.6
    axis = torch.linspace(-1, 1, 24)
    places = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1).view(1, 1, -1, 2)
    begin, along = ends[:, :, :1], ends[:, :, 1:] - ends[:, :, :1]
    length = along.square().sum(-1, keepdim=True).clamp_min(1e-3)
    part = (((places - begin) * along).sum(-1, keepdim=True) / length).clamp(0, 1)
    distance = (places - begin - part * along).norm(dim=-1)
    ink = torch.exp(-((distance / 0.13) ** 2)).amax(1)
    return ink.view(CLASSES, 1, 24, 24)


def draw(count: int, generator: torch.Generator) -> Batch:
    """Returns images, (count, 1, 16, 16), and their classes."""
    labels = torch.randint(CLASSES, (count,), generator=generator)
    turn, shear, wide, high, right, down = torch.rand(6, count, generator=generator) * 2 - 1
    turn = turn * math.radians(20)
    cos, sin, shear = turn.cos(), turn.sin(), shear * 0.25
    wide, high = 1.0 + 0.25 * wide, 1.0 + 0.25 * high
    matrix = torch.stack(
        [cos * wide, (shear - sin) * high, 0.18 * right, sin * wide, cos * high, 0.18 * down], 1
    ).view(count, 2, 3)
    grid = affine_grid(matrix, [count, 1, SIDE, SIDE], align_corners=False)
    ink = grid_sample(templates()[labels], grid, align_corners=False)
    return ink + NOISE * torch.randn(ink.shape, generator=generator), labels


def batches(seed: int, step: int, workers: int) -> Sequence[Batch]:
    images, labels = draw(PER_WORKER * workers, dice("glyphs", seed, step))
    return list(zip(images.split(PER_WORKER), labels.split(PER_WORKER)))


def loss(network: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(network(batch[0]), batch[1])


@cache
def test_set() -> Batch:
    return draw(TEST, dice("glyphs", "test"))


def evaluate(network: nn.Module) -> float:
    images, labels = test_set()
    return accuracy(network, images, labels)


TASK = Task(
    name="glyphs",
    mirrors="CIFAR-10, ResNet-20 and ResNet-110",
    model=model,
    batches=batches,
    loss=loss,
    evaluate=evaluate,
    metric=Metric("test accuracy", "%", "accuracy"),
    settings=Settings(rate=0.1, schedule=cosine(), momentum=0.9, weight_decay=1e-4),
    small=Length(1000, 0.01),
    full=Length(20_000, 0.001),
)
CONVOLUTIONS = replace(
    TASK, name="glyphs-conv", model=convnet, settings=replace(TASK.settings, rate=0.4)
)
