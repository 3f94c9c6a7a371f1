"""Draws what calls are made of: sizes, numbers, tensors and lists, from the seed of one call."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

SIZES = (
    *(0, 1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256),
    *(257, 511, 512, 513, 1000, 1023, 1025, 1279, 1280, 1281, 4095, 4096, 4097),
)
"""Odd sizes, and those around what the kernels process at once."""
LARGE = (1 << 20) + 3
"""A size above what a kernel writes through the cache."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Made:
    """An argument that the call constructs first: if its constructor refuses, the call does."""

    of: Callable[..., object]
    given: dict[str, object]

    def make(self) -> object:
        return self.of(**{name: made(value) for name, value in self.given.items()})


def made(value: object) -> object:
    """The value, with every `Made` in it constructed."""
    if isinstance(value, Made):
        return value.make()
    if type(value) in (list, tuple):
        return type(value)(made(x) for x in value)  # type: ignore[call-arg, attr-defined]
    return value


class Draw:
    """The dice of one call. aliased: whether two of its arguments share memory."""

    def __init__(self, key: str) -> None:
        self.dice = random.Random(key)
        self.aliased = False
        self._generator: torch.Generator | None = None

    @property
    def generator(self) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator().manual_seed(self.dice.getrandbits(32))
        return self._generator

    # -- numbers -------------------------------------------------------------------------------

    def chance(self, part: float) -> bool:
        return self.dice.random() < part

    def one(self, of: Sequence[T]) -> T:
        return of[int(self.dice.random() * len(of))]

    def whole(self, least: int, most: int) -> int:
        return self.dice.randint(least, most)

    def real(self, least: float, most: float) -> float:
        return self.dice.uniform(least, most)

    def size(self, most: int = 4097, large: float = 0.0003) -> int:
        """The number of elements of a tensor."""
        if self.chance(large):
            return LARGE + self.whole(0, 40)
        return min(most, self.one(SIZES))

    def part(self, n: int) -> int:
        """How many of n: often few, sometimes all or none."""
        kind = self.dice.random()
        if kind < 0.1:
            return self.one((0, n))
        return self.whole(0, n) if kind < 0.5 else self.whole(0, min(n, 1 + n // 20))

    def word(self) -> int:
        return self.dice.getrandbits(32)

    # -- tensors -------------------------------------------------------------------------------

    def floats(self, n: int, dtype: torch.dtype | None = None) -> Tensor:
        """(n,) of any distribution: normal, ties, zeros, tiny, huge, any bits."""
        kind = self.dice.random()
        dtype = dtype or (torch.float32 if self.chance(0.6) else self.one(FLOATS))
        if kind < 0.1:
            bits = torch.randint(-(2**31), 2**31, (n,), generator=self.generator)
            x = bits.int().view(torch.float32)
        elif kind < 0.2:
            x = torch.full((n,), self.one((0.0, -0.0, 1.0, -2.5, 1e-42, 3e38, 2.0**-96)))
        else:
            x = torch.empty(n).normal_(generator=self.generator)
            x *= self.one((1.0, 1.0, 1.0, 1e-3, 1e-30, 1e-41, 1e30, 3e38))
            if kind < 0.35:
                x = x.round()
        if kind > 0.9 and n:
            for _ in range(self.whole(1, 3)):
                x[self.whole(0, n - 1)] = self.one((torch.inf, -torch.inf, torch.nan, 3e38))
        return x.to(dtype)

    def tame(self, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """(n,) of a normal distribution."""
        return torch.empty(n).normal_(generator=self.generator).to(dtype)

    def bytes(self, n: int) -> Tensor:
        """(n,) uint8: any bytes, or 0 and 1, or zeros."""
        most = self.one((256, 256, 256, 2, 1))
        return torch.randint(0, most, (n,), dtype=torch.uint8, generator=self.generator)

    def places(self, k: int, n: int) -> Tensor:
        """(k,) int32, strictly ascending within 0 ... n - 1; k at most n."""
        if n <= 4 * LARGE:
            order = torch.randperm(n, generator=self.generator)
            if k and self.chance(0.3):  # a run
                return torch.arange(k, dtype=torch.int32) + self.whole(0, n - k)
            is_chosen = torch.zeros(n, dtype=torch.bool)
            is_chosen[order[:k]] = True  # sorting takes longer
            return is_chosen.nonzero().flatten().int()
        return torch.tensor(sorted(self.dice.sample(range(n), k)), dtype=torch.int32)

    def stream(self, n: int, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Places below n, and a value of each."""
        places = self.places(self.part(n), n)
        return places, self.floats(places.numel(), dtype)
