"""The places of non-zeros in made-up gradients: each kind draws tensors and knows its chances.

A *unit* is zero or not as a whole: a row of a matrix, or an element. `chances()` returns for every
unit the probability that one worker has it (float64); workers draw independently of each other
given the shared part, so that k workers together have it with 1 - (1 - chance)^k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Generator, Tensor

Stream = Callable[[int | None], Generator]
"""Makes a random generator: a worker's own, or for None the one that all workers share; from the
start at each call."""


class Trace(Protocol):
    """One kind of gradient at one size."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a worker's tensor: [rows, columns] if rows mean something, or
        [elements]."""
        ...

    def tensor(self, worker: int) -> Tensor:
        """Returns the worker's dense fp32 tensor, the same at every call."""
        ...

    def chances(self) -> Tensor:
        """Returns the chances, [rows] or [elements], float64."""
        ...

    def gamma(self, k: int, chances: Tensor) -> float:
        """Returns the expected densification ratio of k workers."""
        ...


def normal(shape: tuple[int, ...], dice: Generator) -> Tensor:
    """Draws from N(0, 1), without zeros."""
    values = torch.randn(shape, generator=dice)
    return values.masked_fill_(values == 0, 1.0)


def _at(places: Tensor, shape: tuple[int, ...], dice: Generator) -> Tensor:
    """Returns zeros except in these rows or elements."""
    x = torch.zeros(shape)
    x[places] = normal((len(places), *shape[1:]), dice)
    return x


class Independent:
    """γ if workers draw independently: Σ 1 - (1 - chance)^k over Σ chance."""

    def gamma(self, k: int, chances: Tensor) -> float:
        some = -torch.expm1(k * torch.log1p(-chances))
        return float(some.sum() / chances.sum())


# -- rows --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ZipfRows(Independent):
    """Embedding rows of T words drawn by Zipf and Mandelbrot: p of row r ∝ 1/(r + 2.7)^s, r ≥ 1.

    The most frequent word is row 0.
    """

    shape: tuple[int, int]
    exponent: float
    words: int
    stream: Stream

    def tensor(self, worker: int) -> Tensor:
        dice = self.stream(worker)
        upto = self._popularity().cumsum(0)
        drawn = torch.rand(self.words, dtype=torch.float64, generator=dice)
        rows = torch.searchsorted(upto, drawn).clamp_(max=self.shape[0] - 1)
        return _at(torch.unique(rows), self.shape, dice)

    def chances(self) -> Tensor:
        return -torch.expm1(self.words * torch.log1p(-self._popularity()))

    def _popularity(self) -> Tensor:
        rank = torch.arange(1, self.shape[0] + 1, dtype=torch.float64)
        weights = (rank + 2.7).pow(-self.exponent)
        return weights / weights.sum()


@dataclass(frozen=True)
class HotAndTail(Independent):
    """The first `hot` rows on every worker, and `tail` of the others drawn by each for itself."""

    shape: tuple[int, int]
    hot: int
    tail: int
    stream: Stream

    def tensor(self, worker: int) -> Tensor:
        dice = self.stream(worker)
        cold = torch.randperm(self.shape[0] - self.hot, generator=dice)[: self.tail] + self.hot
        return _at(torch.cat([torch.arange(self.hot), cold]), self.shape, dice)

    def chances(self) -> Tensor:
        cold = self.shape[0] - self.hot
        chances = torch.full((self.shape[0],), self.tail / cold, dtype=torch.float64)
        chances[: self.hot] = 1.0
        return chances


# -- elements ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uniform(Independent):
    """`count` elements, drawn by each worker for itself: the overlap is the density."""

    shape: tuple[int]
    count: int
    stream: Stream

    def tensor(self, worker: int) -> Tensor:
        dice = self.stream(worker)
        places = torch.randperm(self.shape[0], generator=dice)[: self.count]
        return _at(places, self.shape, dice)

    def chances(self) -> Tensor:
        return torch.full(self.shape, self.count / self.shape[0], dtype=torch.float64)


class Identical(Uniform):
    """The same elements on all workers, with values of their own: overlap 1, γ = 1."""

    def tensor(self, worker: int) -> Tensor:
        return _at(self._places(), self.shape, self.stream(worker))

    def chances(self) -> Tensor:
        chances = torch.zeros(self.shape, dtype=torch.float64)
        chances[self._places()] = 1.0
        return chances

    def _places(self) -> Tensor:
        return torch.randperm(self.shape[0], generator=self.stream(None))[: self.count]


class Disjoint(Uniform):
    """Each worker has the next `count` elements of one shuffled order: overlap 0, γ = k."""

    def tensor(self, worker: int) -> Tensor:
        order = torch.randperm(self.shape[0], generator=self.stream(None))
        begin = worker * self.count
        return _at(order[begin : begin + self.count], self.shape, self.stream(worker))

    def gamma(self, k: int, chances: Tensor) -> float:
        return min(float(k), self.shape[0] / self.count)


@dataclass(frozen=True)
class Adversarial(Independent):
    """Four supports at once, each bad for some map to owners; matrices of 2,048 columns, flat.

    - the first 1/64 of all elements: even ranges leave one owner with most;
    - every 128th element: numbers modulo a power of two leave one owner with all;
    - 20 columns, nine elements of ten: numbers modulo a power of two again, less regularly;
    - aligned pieces of 16, one in 256, drawn by each worker: few large lumps instead of many
      elements, so that chance evens out less.

    The first two are the same on all workers, the third nearly.
    """

    COLUMNS: ClassVar[int] = 2048
    BLOCK: ClassVar[int] = 64
    STRIDE: ClassVar[int] = 128
    HOT: ClassVar[int] = 20
    HOT_CHANCE: ClassVar[float] = 0.9
    PIECE: ClassVar[int] = 16
    PIECE_CHANCE: ClassVar[float] = 1 / 256

    shape: tuple[int]
    stream: Stream

    def tensor(self, worker: int) -> Tensor:
        dice = self.stream(worker)
        mask = torch.rand(self.shape, generator=dice) < self._hot()
        pieces = torch.rand(self.shape[0] // self.PIECE, generator=dice) < self.PIECE_CHANCE
        mask |= pieces.repeat_interleave(self.PIECE)
        return normal(self.shape, dice).mul_(mask)

    def chances(self) -> Tensor:
        return 1 - (1 - self._hot().double()) * (1 - self.PIECE_CHANCE)

    def _hot(self) -> Tensor:
        """Returns the chances without the pieces, [elements]."""
        chances = torch.zeros(self.shape)
        places = torch.randperm(self.COLUMNS, generator=self.stream(None))[: self.HOT]
        chances.view(-1, self.COLUMNS)[:, places] = self.HOT_CHANCE
        chances[self.STRIDE // 2 :: self.STRIDE] = 1.0
        chances[: self.shape[0] // self.BLOCK] = 1.0
        return chances


# -- selection ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class TopK(Independent):
    """The largest 5 % of gradients like those of large language models.

    16 layers of 1,024 columns. A gradient is scale · (ρ·g + √(1-ρ²)·e), with g shared and e a
    worker's own, both Student's t with four degrees of freedom; scale is log-normal per layer
    (σ = 1.2) and four times as large in 10 columns of each layer. Selection is over all layers,
    so that those with large scales have most of it.
    """

    LAYERS: ClassVar[int] = 16
    COLUMNS: ClassVar[int] = 1024
    SIGMA: ClassVar[float] = 1.2
    OUTLIERS: ClassVar[int] = 10
    OUTLIER_SCALE: ClassVar[float] = 4.0
    RHO: ClassVar[float] = 0.5
    DENSITY: ClassVar[float] = 0.05

    shape: tuple[int]
    stream: Stream

    def tensor(self, worker: int) -> Tensor:
        x = self._gradient(worker)
        return x.mul_(x.abs() >= self._threshold(x))

    def chances(self) -> Tensor:
        """Returns the chances given g; the threshold is worker 0's, from which others' hardly
        differ."""
        dice = self.stream(None)
        scale, shared = self._scale(dice), self.RHO * _student(self.shape, dice).double()
        threshold = self._threshold(self._gradient(0)) / scale.double()
        spread = math.sqrt(1 - self.RHO**2)
        above = _above((threshold - shared) / spread) + _above((threshold + shared) / spread)
        return above.clamp_(max=1.0)

    def _gradient(self, worker: int) -> Tensor:
        dice = self.stream(None)
        scale, shared = self._scale(dice), _student(self.shape, dice)
        own = _student(self.shape, self.stream(worker))
        return shared.mul_(self.RHO).add_(own, alpha=math.sqrt(1 - self.RHO**2)).mul_(scale)

    def _scale(self, dice: Generator) -> Tensor:
        """Returns the scale, [elements]."""
        layers = torch.randn(self.LAYERS, generator=dice).mul_(self.SIGMA).exp_()
        columns = torch.ones(self.LAYERS, self.COLUMNS)
        for layer in columns:
            places = torch.randperm(self.COLUMNS, generator=dice)[: self.OUTLIERS]
            layer[places] = self.OUTLIER_SCALE
        rows = self.shape[0] // columns.numel()
        by_column = (layers[:, None] * columns)[:, None, :]
        return by_column.expand(self.LAYERS, rows, self.COLUMNS).reshape(-1)

    def _threshold(self, x: Tensor) -> float:
        least = x.numel() - round(self.DENSITY * x.numel()) + 1
        return float(x.abs().kthvalue(least).values)


def _student(shape: tuple[int, ...], dice: Generator) -> Tensor:
    """Draws from Student's t with four degrees of freedom: a normal over the root of a mean of
    squares."""
    one, other = (torch.rand(shape, generator=dice).clamp_(min=2**-25) for _ in range(2))
    chi_squared = one.mul_(other).log_().mul_(-2)
    return chi_squared.div_(4).rsqrt_().mul_(torch.randn(shape, generator=dice))


def _above(z: Tensor) -> Tensor:
    """Returns the probability that Student's t with four degrees of freedom is above z."""
    root = (1 + z * z / 4).rsqrt()
    return 0.5 - z * root / 4 * (1 + root * root / 2)
