"""Which rank owns which elements of a bucket's flat vector, where every rank sums a part of it.

ranges   0 0 0 0 1 1 1 1 2 2 2 2      balanced if the tensor's entries are spread evenly
chunks   2 0 1 1 0 2 0 2 1 0 1 2      16 elements each; every rank has a random third of them
rows     2 0 1 1 2 0 0 1 2 1 2 0      one row of a table each, dealt as chunks are
hashed   0 2 2 1 0 1 1 0 2 1 0 2      one element each; its hash chooses the owner
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import digest
from gradwire.streams.stream import Domains, Stream

CHUNK = kernels.CHUNK
_TRIES = 3  # of Zen's hash memory
_HASHED_AT_ONCE = 1 << 20
_LEAST_CHUNKS = 64  # per owner; with fewer, chance leaves some with twice as many as others


class Ranges(Domains):
    """Domains that are ranges: rank r owns elements bounds[r] to bounds[r + 1] - 1."""

    def __init__(self, bounds: Sequence[int]) -> None:
        self._bounds = list(bounds)

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [end - begin for begin, end in zip(self._bounds, self._bounds[1:])]

    @classmethod
    def even(cls, n: int, world: int) -> Ranges:
        """Cuts n elements into ranges that are as equal as possible."""
        return cls([r * n // world for r in range(world + 1)])

    def split(self, stream: Stream) -> list[Stream]:
        if self._bounds == [0, stream.n]:
            return [stream]
        bounds = torch.tensor(self._bounds, dtype=torch.int32, device=stream.places.device)
        cuts = torch.searchsorted(stream.places, bounds).tolist()
        return [
            Stream(stream.places[begin:end] - first, stream.values[begin:end], n, stream.listed)
            for first, n, begin, end in zip(self._bounds, self.sizes, cuts, cuts[1:])
        ]

    def flat(self, owner: int, places: Tensor) -> Tensor:
        return places + self._bounds[owner]


class Chunks(Domains):
    """Chunks of 16 elements, dealt out in rounds that each begin with another owner.

    Within a domain they keep the order of the flat vector, so that sorted lists stay sorted.
    This needs no tables. `chunks_or_ranges` uses ranges where chunks are few.
    """

    chunk: ClassVar[int] = CHUNK

    def __init__(self, n: int, world: int, seed: int) -> None:
        self._n, self._world = n, world
        self._seed = digest("chunks", n, world, seed) & 0xFFFFFFFF
        self._room = kernels.Scratch()

    @cached_property
    def sizes(self) -> Sequence[int]:
        count = -(-self._n // self.chunk)
        sizes = [self.chunk * (count // self._world)] * self._world
        for chunk in range(count - count % self._world, count):
            sizes[self._owner(chunk)] += self.chunk
        sizes[self._owner(count - 1)] -= -self._n % self.chunk  # the last, which may be cut
        return sizes

    def _owner(self, chunk: int) -> int:
        dealt_in = torch.tensor(chunk // self._world, dtype=torch.int64, device="cpu")
        return (chunk + int(self._first(dealt_in))) % self._world

    def _first(self, rounds: Tensor) -> Tensor:
        """Returns the owner with which each round of dealing begins."""
        return kernels.owners_of(rounds, self._world, self._seed)

    def split(self, stream: Stream) -> list[Stream]:
        device = stream.places.device
        places = self._room.room("places", stream.count, torch.int32, device)
        values = self._room.room("values", stream.count, stream.values.dtype, device)
        counts = kernels.split_stream(
            stream.places, stream.values, self._world, self._seed, places, values
        )
        parts = zip(torch.split(places, counts), torch.split(values, counts), self.sizes)
        return [Stream(own, of_own, n, stream.listed) for own, of_own, n in parts]

    def flat(self, owner: int, places: Tensor) -> Tensor:
        out = torch.empty_like(places)
        kernels.flat_places(places, owner, self._world, self._seed, out)
        return out


class Rows(Chunks):
    """A table's rows, dealt out one by one: a text's common words, which all ranks have, are often
    neighbours there."""

    chunk = 1

    def split(self, stream: Stream) -> list[Stream]:
        """Rows of any width are copied once; sorting costs little beside that."""
        rounds = stream.places // self._world
        owner = (stream.places + self._first(rounds)) % self._world
        order = owner.argsort(stable=True)
        counts = owner.bincount(minlength=self._world).tolist()
        parts = zip(
            torch.split(rounds[order], counts), torch.split(stream.values[order], counts),
            self.sizes,
        )  # fmt: skip
        return [Stream(places, rows, n, stream.listed) for places, rows, n in parts]

    def flat(self, owner: int, places: Tensor) -> Tensor:
        return places * self._world + ((owner - self._first(places)) % self._world).int()


class HashedElements(Domains):
    """Zen's own rule: an element's hash chooses its owner; a place counts the owner's elements.

    The split uses hash memory as published. Its output is in no order and is sorted again, as
    streams are sorted. As published, each owner's elements are listed: 4 bytes per element.
    """

    def __init__(self, n: int, world: int, seed: int, device: torch.device) -> None:
        self._n, self._world, self._device = n, world, device
        seeds = (digest("hashed elements", n, world, seed, i) for i in range(1 + _TRIES))
        self._seeds = [s & 0xFFFFFFFF for s in seeds]

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [owned.numel() for owned in self._owned]

    @cached_property
    def _owned(self) -> list[Tensor]:
        """The elements of each owner, hashed block by block, as that needs much more memory than
        its result."""
        nothing = torch.empty(0, dtype=torch.int32, device="cpu")
        found = [[nothing] for _ in range(self._world)]
        for begin in range(0, self._n, _HASHED_AT_ONCE):
            end = min(begin + _HASHED_AT_ONCE, self._n)
            elements = torch.arange(begin, end, dtype=torch.int32, device="cpu")
            owner = kernels.owners_of(elements, self._world, self._seeds[0])
            order = owner.sort(stable=True).indices
            counts = torch.bincount(owner, minlength=self._world).tolist()
            for parts, own in zip(found, torch.split(elements[order], counts)):
                parts.append(own)
        return [torch.cat(parts).to(self._device) for parts in found]

    def split(self, stream: Stream) -> list[Stream]:
        hashed = torch.empty_like(stream.places)
        counts = kernels.hash_partition(stream.places, self._world, self._seeds, hashed).counts
        return [
            self._local(stream, part.sort().values, owned)
            for part, owned in zip(torch.split(hashed, counts), self._owned)
        ]

    def _local(self, stream: Stream, places: Tensor, owned: Tensor) -> Stream:
        values = stream.values[torch.searchsorted(stream.places, places)]
        own = torch.searchsorted(owned, places).int()
        return Stream(own, values, owned.numel(), stream.listed)

    def flat(self, owner: int, places: Tensor) -> Tensor:
        return self._owned[owner][places.long()]


def chunks_or_ranges(n: int, world: int, seed: int) -> Chunks | Ranges:
    """Returns chunks if there are enough of them for chance to balance them, else even ranges."""
    enough = n >= world * _LEAST_CHUNKS * CHUNK
    return Chunks(n, world, seed) if enough else Ranges.even(n, world)
