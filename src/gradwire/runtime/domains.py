"""Who owns which elements of a bucket's flat vector, where every rank sums a part of it.

ranges   0 0 0 0 1 1 1 1 2 2 2 2      as good as the tensor is even
chunks   2 0 1 1 0 2 0 2 1 0 1 2      16 elements each, a random third of them every rank's
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import digest
from gradwire.local import Domains, Stream

CHUNK = kernels.CHUNK
_LEAST_CHUNKS = 64  # per owner; with fewer, chance leaves some with twice as many as others


class Ranges(Domains):
    """Owner r has elements r·n/world to (r+1)·n/world - 1."""

    def __init__(self, n: int, world: int) -> None:
        self._bounds = [r * n // world for r in range(world + 1)]
        self.sizes = [end - begin for begin, end in zip(self._bounds, self._bounds[1:])]

    def split(self, stream: Stream) -> list[Stream]:
        bounds = torch.tensor(self._bounds, dtype=torch.int32, device=stream.places.device)
        cuts = torch.searchsorted(stream.places, bounds).tolist()
        return [
            Stream(stream.places[begin:end] - first, stream.values[begin:end])
            for first, begin, end in zip(self._bounds, cuts, cuts[1:])
        ]

    def flat(self, owner: int, places: Tensor) -> Tensor:
        return places + self._bounds[owner]


class Chunks(Domains):
    """Chunks of 16 elements, one after the other to every rank in turn, over a random order.

    Within a domain they lie in the order of the flat vector, so that sorted lists stay sorted.
    Memory: 8 bytes per chunk, half a byte per element. Few chunks are dealt out as ranges.
    """

    def __init__(self, n: int, world: int, seed: int, device: torch.device) -> None:
        self._n, self._world, self._device = n, world, device
        count = -(-n // CHUNK)
        dice = torch.Generator().manual_seed(digest("chunks", n, world, seed))
        owner = torch.randperm(count, generator=dice, dtype=torch.int32).remainder_(world)
        self._bits = (world - 1).bit_length()
        self._table = torch.empty(count, dtype=torch.int32)
        self._chunks = []
        for rank in range(world):
            mine = (owner == rank).nonzero().flatten()
            self._chunks.append(mine.int().to(device))
            local = torch.arange(mine.numel(), dtype=torch.int32)
            self._table[mine] = local * (1 << self._bits) + rank
        self._table = self._table.to(device)
        self.sizes = [CHUNK * chunks.numel() for chunks in self._chunks]
        self.sizes[int(owner[-1])] -= -n % CHUNK  # the last chunk, which may be cut

    @cached_property
    def _room(self) -> kernels.Scratch:
        return kernels.Scratch()

    def split(self, stream: Stream) -> list[Stream]:
        places = self._room.room("places", stream.count, torch.int32, self._device)
        values = self._room.room("values", stream.count, stream.values.dtype, self._device)
        counts = kernels.split_stream(
            stream.places, stream.values, self._table, self._bits, self._world, places, values
        )
        return list(map(Stream, torch.split(places, counts), torch.split(values, counts)))

    def flat(self, owner: int, places: Tensor) -> Tensor:
        chunk = self._chunks[owner][(places >> CHUNK.bit_length() - 1).long()]
        return chunk * CHUNK + (places & CHUNK - 1)


def chunks_or_ranges(n: int, world: int, seed: int, device: torch.device) -> Domains:
    """Chunks, where there are enough of them to be balanced by chance."""
    if n < world * _LEAST_CHUNKS * CHUNK:
        return Ranges(n, world)
    return Chunks(n, world, seed, device)
