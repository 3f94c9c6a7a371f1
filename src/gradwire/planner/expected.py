"""Sparse payloads of expected length: the density of sums, by default if indices are random.

    one rank d      two ranks 1 - (1 - d)²      n ranks 1 - (1 - d)ⁿ

Ranks' real gradients overlap more, or less; `together` then gives the density. The tensors here
are real, because some members look at them, but nothing depends on their values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import comb
from typing import TypeAlias

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket
from gradwire.errors import PlanError
from gradwire.kernels import CHUNK, Shape
from gradwire.layout.message import told_bytes
from gradwire.local import Streams
from gradwire.moves import AllGather
from gradwire.planner.priced import Step, Work
from gradwire.strategy import Rounds, Strategy
from gradwire.streams import Domains, Form, Ranges, Stream

Together: TypeAlias = Callable[[float, int], float]
"""Maps the density of one rank and a number of ranks to the density of their sum."""


def by_chance(density: float, ranks: int) -> float:
    """Returns the density of the sum if all ranks' indices are independent and random."""
    return 1.0 - (1.0 - density) ** ranks


@dataclass(frozen=True)
class Crowd:
    """How dense gradients are. fraction: of a rank's gradient that is not zero; None: not given.
    ranks: the number of ranks already summed."""

    fraction: float | None = None
    together: Together = by_chance
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.fraction is not None and not 0.0 <= self.fraction <= 1.0:
            raise PlanError(
                "density must be the fraction of elements that are not zero, from 0 to 1; got "
                f"{self.fraction}. Pass for example 0.01."
            )

    def density(self, strategy: str) -> float:
        """Returns the density of what is compressed. Raises PlanError if it was not given."""
        if self.fraction is None:
            raise PlanError(
                f"what '{strategy}' sends depends on how many elements are not zero; pass "
                "density, the fraction of one rank's gradient that is not zero."
            )
        return self.together(self.fraction, self.ranks)

    def summed(self, ranks: int) -> Crowd:
        """Returns the crowd of the sums of so many ranks."""
        return Crowd(self.fraction, self.together, self.ranks * ranks)


class SizedBucket:
    """One rank's view of one bucket, by sizes alone. steps: the list to which moves and work are
    added; crowd: how dense the gradients are; device: of local work, as in `Work`."""

    def __init__(
        self, strategy: Strategy, bucket: Bucket, world: int, steps: list[Step], crowd: Crowd
    ) -> None:
        self.strategy, self.bucket, self.world = strategy, bucket, world
        self.steps, self.crowd = steps, crowd
        self.device = "cpu" if strategy.collective.on_host else "gpu"
        self.claims = [strategy.compressor.claims(n, bucket.dtype) for n in bucket.sizes]
        self.ragged = not all(claim.fixed for claim in self.claims)

    def entries_of(self, n: int) -> int:
        """Returns the number of entries that a payload for n elements has."""
        claims = self.strategy.compressor.claims(n, self.bucket.dtype)
        if claims.fixed or claims.usual is not None:
            return n if claims.elements is None else claims.elements
        return round(n * self.crowd.density(str(self.strategy)))

    def encodes(self, n: int, device: str = "", pieces: int = 1) -> None:
        """Records that n elements are encoded."""
        entries = self.entries_of(n)
        self.steps.append(Work("encode", n, 1, entries, device or self.device, pieces))

    def encodes_all(self) -> None:
        """Records that every parameter is encoded."""
        for n in self.bucket.sizes:
            self.encodes(n)


class ExpectedStreams(Streams):
    """One rank's streams of a bucket, and those that it receives, of expected sizes."""

    def __init__(self, context: SizedBucket, values: torch.dtype, is_listed: bool) -> None:
        self._context, self._values, self._is_listed = context, values, is_listed
        self.size = context.bucket.elements
        self.parameters = Ranges([*context.bucket.offsets, self.size])
        dtype: torch.dtype = getattr(torch, context.bucket.dtype)
        self.mean_dtype = dtype if dtype.itemsize <= 4 else torch.float32
        self.damage, self.remembered = None, {}
        self.counts: Sequence[int] = []

    def entries(self) -> Stream:
        context = self._context
        context.encodes_all()
        self.counts = [context.entries_of(n) for n in context.bucket.sizes]
        return self._own(self._values)

    def _own(self, values: torch.dtype) -> Expected:
        count = sum(self.counts)
        return Expected(
            _places(count), torch.zeros(count, dtype=values), self.size, self._is_listed,
            context=self._context, density=count / max(1, self.size),
        )  # fmt: skip

    def tell(
        self, *numbers: int, most: int | None = None, finite: bool = True,
        luggage: Tensor | None = None,
    ) -> Rounds[list[list[int]] | None]:  # fmt: skip
        """Assumes that every rank tells the same numbers as this one, to itself and to others."""
        carried = 0 if luggage is None else luggage.numel()
        yield AllGather(torch.zeros(told_bytes(len(numbers), carried), dtype=torch.uint8))
        world = self._context.world
        self.luggage = torch.zeros(world, carried, dtype=torch.uint8)
        most_told = max(numbers, default=0)
        if most_told == 0 and self.counts:  # other ranks send to this one
            most_told = self._own(torch.float32).packed().numel()
        alike = len(numbers) in (1, world)
        return [[most_told] * len(numbers) if alike else list(numbers)] * world

    def write(self, means: Sequence[Stream] | Tensor) -> None:
        dense = isinstance(means, Tensor)
        entries = self.size if dense else sum(part.count for part in means)
        self._context.steps.append(Work("decode", self.size, 1, entries, self._context.device))

    def give_back(self, lost: Stream) -> None:
        """Does nothing, as there is no residual here."""


@dataclass(frozen=True, eq=False)
class Expected(Stream):
    """A stream of which only the number of entries is known. density: of one rank's stream; ranks:
    how many of them this is the sum of."""

    context: SizedBucket = field(kw_only=True)
    density: float = field(kw_only=True)
    ranks: int = 1

    def _sum_count(self, ranks: int) -> int:
        """Returns how many entries the sum of so many ranks has."""
        crowd = self.context.crowd
        if self.context.ragged and crowd.fraction is not None:
            return round(self.n * crowd.together(crowd.fraction, crowd.ranks * ranks))
        return round(self.n * crowd.together(self.density, ranks))

    def _add_up(self, elements: int, contributions: int, entries: int) -> None:
        """Records that streams are added up."""
        context = self.context
        context.steps.append(Work("accumulate", elements, contributions, entries, context.device))

    def _of(self, count: int, n: int, dtype: torch.dtype, ranks: int) -> Expected:
        values = torch.zeros(count, dtype=dtype)
        return replace(self, places=_places(count), values=values, n=n, ranks=ranks)

    def split(self, domains: Domains) -> list[Stream]:
        """Splits into equally many elements, and entries, for every owner: no more entries than
        elements."""
        world = self.context.world
        ends = [r * self.n // world for r in range(world + 1)]
        upto = [end * self.count // max(1, self.n) for end in ends]
        owned = zip(pairwise(ends), pairwise(upto))
        return [
            replace(self, places=self.places[a:b], values=self.values[a:b], n=end - begin)
            for (begin, end), (a, b) in owned
        ]

    def over(self, domains: Domains, owner: int) -> Stream:
        return self

    def flat(self, domains: Domains, owner: int) -> Stream:
        return self

    def check_counts(self, domains: Domains, counts: Sequence[int]) -> None:
        """Does nothing: expected counts are taken to be right."""

    def coded(self) -> Tensor:
        return _message(self.coded_bytes())

    def read(self, message: Tensor, count: int | None = None) -> Stream:
        count = self.count if count is None else count
        return self._of(count, self.n, self.values.dtype, self.ranks)

    def packed(self, form: Form = "smallest") -> Tensor:
        shape, form = _shape(self.n, self.count), self._form(form)
        return _message(self._packed_bytes(shape, form))

    def most_packed_bytes(self, domains: Domains | None = None) -> int:
        return super().most_packed_bytes()

    def unpacked(self, message: Tensor, form: Form = "smallest") -> Stream:
        """Returns a stream with as many entries as this rank's own, as all ranks are alike."""
        return self.read(message)

    def read_size(self, message: Tensor, most: int) -> int:
        return min(most, self.packed().numel())

    def mean_with(self, others: Sequence[Stream], dtype: torch.dtype) -> Stream:
        ranks = 1 + len(others)
        self._add_up(self.n, ranks, self.count)
        return self._of(self._sum_count(ranks), self.n, dtype, ranks)

    def plus(self, other: Stream) -> Stream:
        ranks = min(self.ranks + _ranks(other), self.context.world)
        self._add_up(self.count + other.count, 2, max(self.count, other.count))
        return self._of(self._sum_count(ranks), self.n, torch.float32, ranks)

    def top(self, other: Stream, domains: Domains, counts: Sequence[int]) -> Stream:
        self._add_up(sum(counts), 2, self.count)
        return self._of(sum(counts), self.n, torch.float32, self.ranks + _ranks(other))

    def largest(self, domains: Domains, counts: Sequence[int]) -> Stream:
        some = self._of(sum(counts), self.n, self.values.dtype, self.ranks)
        return replace(some, density=some.count / max(1, self.n))

    def at(self, places: Tensor) -> Tensor:
        return torch.zeros(places.numel(), dtype=torch.float32, device=places.device)

    def among(self, other: Stream) -> Tensor:
        return torch.ones(self.count, dtype=torch.bool)


def _places(count: int) -> Tensor:
    """Returns ascending indices, as some members check them."""
    return torch.arange(count, dtype=torch.int32)


def _ranks(stream: Stream) -> int:
    return stream.ranks if isinstance(stream, Expected) else 1


def _message(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def _shape(n: int, count: int) -> Shape:
    """Returns the shape of random places: with the expected crowds, if that is smaller."""
    plain = Shape(count, 0, 0, count)
    shapes = [plain, _crowds(n, count)] if count else [plain]
    possible = [shape for shape in shapes if shape.is_possible(n)]
    return min(possible, key=lambda shape: kernels.shaped_bytes(n, shape))


def _crowds(n: int, count: int) -> Shape:
    """Returns the expected shape of `count` random places, crowds included."""
    chunks, d = -(-n // CHUNK), count / n
    odds = [comb(CHUNK, j) * d**j * (1 - d) ** (CHUNK - j) for j in range(CHUNK + 1)]
    thin = min(count, round(chunks * sum(j * odds[j] for j in range(3))))
    full = round(chunks * odds[CHUNK])
    crowded = max(full, round(chunks * sum(odds[3:])))
    return Shape(count, crowded, full, thin)
