"""Sparse payloads of expected length: what ranks have together, if chance deals out the places.

    one rank d      two ranks 1 - (1 - d)²      n ranks 1 - (1 - d)ⁿ

Real gradients agree more, or less: `together` says so. Their tensors are real, for some
members look at them; nothing depends on what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import comb
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket
from gradwire.errors import PlanError
from gradwire.kernels import CHUNK, Shape
from gradwire.layout.streams import SizedStreams, announced_bytes
from gradwire.moves import AllGather
from gradwire.planner.priced import Step, Work
from gradwire.strategy import Strategy
from gradwire.streams import Domains, Form, Stream

Together: TypeAlias = Callable[[float, int], float]
"""The density of one rank and a number of ranks to the density of their sum."""


def by_chance(density: float, ranks: int) -> float:
    """If the places of all ranks are independent and random."""
    return 1.0 - (1.0 - density) ** ranks


@dataclass(frozen=True)
class Crowd:
    """fraction: of a rank's gradient that is not zero; None: not said. ranks: summed already."""

    fraction: float | None = None
    together: Together = by_chance
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.fraction is not None and not 0.0 <= self.fraction <= 1.0:
            raise PlanError(
                f"density is the fraction that is not zero, from 0 to 1; got {self.fraction}. "
                "Pass for example 0.01."
            )

    def density(self, strategy: str) -> float:
        """The density of what is compressed. PlanError if nobody said."""
        if self.fraction is None:
            raise PlanError(
                f"what '{strategy}' sends depends on how many elements are not zero; pass "
                "density, the fraction of one rank's gradient that is not zero."
            )
        return self.together(self.fraction, self.ranks)

    def summed(self, ranks: int) -> Crowd:
        """The same of the sums of so many ranks."""
        return Crowd(self.fraction, self.together, self.ranks * ranks)


class SizedBucket(Protocol):
    """What is asked of a bucket: its sizes on one rank, and what is to be done there."""

    strategy: Strategy
    bucket: Bucket
    world: int
    ragged: bool
    crowd: Crowd
    steps: list[Step]

    def entries_of(self, n: int) -> int:
        """Tell of how many of n elements a payload speaks."""

    def encodes(self, n: int) -> None:
        """Note that n elements are encoded."""


@dataclass(frozen=True, eq=False)
class Expected(Stream):
    """ranks: whose sum it is."""

    ranks: int = 1


class ExpectedStreams(SizedStreams):
    """The sizes of `runtime.streams` of one bucket on one rank."""

    def __init__(self, context: SizedBucket, values: torch.dtype, is_listed: bool) -> None:
        self._context, self._values, self.is_listed = context, values, is_listed
        self.size, self.mean_dtype = context.bucket.elements, torch.float32
        dtype: torch.dtype = getattr(torch, context.bucket.dtype)
        self.mean_dtype = dtype if dtype.itemsize <= 4 else torch.float32
        self.step, self.kept = 0, {}
        self.counts = [context.entries_of(n) for n in context.bucket.sizes]
        self._density = sum(self.counts) / max(1, self.size)
        self._told: list[int] = []
        self._counted = 0

    def _stream(self, count: int, dtype: torch.dtype, ranks: int = 1) -> Expected:
        places = torch.arange(count, dtype=torch.int32)  # a list, as some members check
        return Expected(places, torch.zeros(count, dtype=dtype), ranks)

    def _together(self, n: int, ranks: int) -> int:
        """How many of n elements the sum of so many ranks has."""
        crowd = self._context.crowd
        if self._context.ragged and crowd.fraction is not None:
            return round(n * crowd.together(crowd.fraction, crowd.ranks * ranks))
        return round(n * crowd.together(self._density, ranks))

    def entries(self) -> Stream:
        for n in self._context.bucket.sizes:
            self._context.encodes(n)
        return self._stream(sum(self.counts), self._values)

    def announce(self, *numbers: int, finite: bool = True) -> AllGather:
        self._told = list(numbers)
        message = torch.zeros(announced_bytes(len(numbers)), dtype=torch.uint8)
        return AllGather(message)

    def heard(self, messages: Tensor, most: int | None = None) -> list[list[int]] | None:
        """Every rank announces as much as this one; what goes to itself, as what to others."""
        world = self._context.world
        most_told = max(self._told, default=0)
        if most_told == 0 and self.counts:  # others hand over to this rank
            like = self._stream(sum(self.counts), torch.float32)
            most_told = self.packed_bytes(self.size, self._shape(self.size, like.count), like)
        told = [most_told] * len(self._told) if len(self._told) in (1, world) else self._told
        return [told] * world

    # -- domains --------------------------------------------------------------------------

    def ranges(self, n: int) -> Domains:
        return EvenDomains(n, self._context.world)

    def chunks(self) -> Domains:
        return self.ranges(self.size)

    def hashed(self) -> Domains:
        return self.ranges(self.size)

    def regions(self, bounds: Sequence[int]) -> Domains:
        raise self._measured_only()

    # -- bytes ----------------------------------------------------------------------------

    def coded(self, n: int, stream: Stream) -> Tensor:
        return _message(self.coded_bytes(n, stream.count, stream))

    def read(self, n: int, count: int, like: Stream, message: Tensor) -> Stream:
        return self._stream(count, like.values.dtype, _ranks(like))

    def packed(self, n: int, stream: Stream, form: Form = "smallest") -> Tensor:
        return _message(self.packed_bytes(n, self._shape(n, stream.count), stream, form))

    def unpacked(self, n: int, like: Stream, message: Tensor, form: Form = "smallest") -> Stream:
        """A stream of as many entries as this rank has of its own: all are alike."""
        return self._stream(like.count, like.values.dtype, _ranks(like))

    @staticmethod
    def _shape(n: int, count: int) -> Shape:
        """The shape of random places: the crowds to be expected, where they pay."""
        plain = Shape(count, 0, 0, count)
        shapes = [plain, _crowds(n, count)] if count else [plain]
        possible = [shape for shape in shapes if shape.is_possible(n)]
        return min(possible, key=lambda shape: kernels.shaped_bytes(n, shape))

    def coded_places(self, n: int, places: Tensor) -> Tensor:
        return _message(self.coded_places_bytes(n, places.numel()))

    def read_places(self, n: int, count: int, message: Tensor) -> Tensor:
        return torch.zeros(count, dtype=torch.int32)

    def whole(self, message: Tensor, size: int) -> Tensor:
        return message

    def sealed(self, content: Tensor) -> Tensor:
        return _message(self.sealed_bytes(content.numel()))

    def unsealed(self, message: Tensor, size: int) -> Tensor:
        return _message(size)

    def coded_count(self, count: int) -> Tensor:
        self._counted = count or self._counted
        return _message(16)

    def read_count(self, message: Tensor, most: int) -> int:
        return self._counted

    def damage_is_told(self) -> AbstractContextManager[None, bool]:
        return cast(AbstractContextManager[None, bool], nullcontext())

    # -- sums -----------------------------------------------------------------------------

    def average(
        self, n: int, own: Stream, arrived: Mapping[int, Tensor], form: Form = "smallest"
    ) -> Stream:
        world = self._context.world
        self._works(n, world, own.count)
        return self._stream(self._together(n, world), self.mean_dtype, world)

    def merge(self, n: int, one: Stream, other: Stream) -> Stream:
        ranks = min(_ranks(one) + _ranks(other), self._context.world)
        self._works(one.count + other.count, 2, max(one.count, other.count))
        return self._stream(self._together(n, ranks), torch.float32, ranks)

    def top(self, one: Stream, other: Stream) -> Stream:
        self._works(sum(self.counts), 2, one.count)
        return self._stream(sum(self.counts), torch.float32, _ranks(one) + _ranks(other))

    def _works(self, elements: int, contributions: int, entries: int) -> None:
        self._context.steps.append(Work("accumulate", elements, contributions, entries))

    def check_shares(self, chosen: Stream) -> None:
        """They are as they must be."""

    def survivors(self, entries: Stream, among: Stream) -> Tensor:
        return torch.ones(entries.count, dtype=torch.bool)

    def give_back(self, lost: Stream) -> None:
        """Nothing is remembered."""

    def by_parameter(self, stream: Stream) -> list[Stream]:
        raise self._measured_only()

    def recall(self, name: str) -> list[float]:
        raise self._measured_only()

    def remember(self, name: str, numbers: Sequence[float]) -> None:
        raise self._measured_only()

    def write(self, parts: Sequence[Stream]) -> None:
        entries = sum(part.count for part in parts)
        self._context.steps.append(Work("decode", self.size, 1, entries))

    def write_dense(self, total: Tensor, divisor: float) -> None:
        self._context.steps.append(Work("decode", self.size, 1, self.size))

    def _measured_only(self) -> PlanError:
        collective = self._context.strategy.collective
        return PlanError(
            f"what '{collective}' moves depends on the data, step by step: its cost is measured "
            "only. Profile with it, and plan for the profiled cluster."
        )


class EvenDomains(Domains):
    """Deals out elements as if every owner had as many elements, and entries, as the next."""

    def __init__(self, n: int, world: int) -> None:
        self._n, self.sizes = n, _shares(n, world)

    def split(self, stream: Stream) -> list[Stream]:
        ranks = _ranks(stream)
        counts = _shares(stream.count, len(self.sizes))
        places, values = torch.split(stream.places, counts), torch.split(stream.values, counts)
        return [Expected(p, v, ranks) for p, v in zip(places, values)]

    def flat(self, owner: int, places: Tensor) -> Tensor:
        return places


def _shares(n: int, world: int) -> list[int]:
    return [(r + 1) * n // world - r * n // world for r in range(world)]


def _ranks(stream: Stream) -> int:
    return stream.ranks if isinstance(stream, Expected) else 1


def _message(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def _crowds(n: int, count: int) -> Shape:
    """The expected shape of `count` random places, crowds counted."""
    chunks, d = -(-n // CHUNK), count / n
    odds = [comb(CHUNK, j) * d**j * (1 - d) ** (CHUNK - j) for j in range(CHUNK + 1)]
    thin = min(count, round(chunks * sum(j * odds[j] for j in range(3))))
    full = round(chunks * odds[CHUNK])
    crowded = max(full, round(chunks * sum(odds[3:])))
    return Shape(count, crowded, full, thin)
