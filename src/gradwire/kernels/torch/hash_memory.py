"""Indices split by hash tables, in Python, one index after the other."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradwire.kernels.dealing import drawn, owners_of
from gradwire.kernels.values import Partition


def hash_partition(
    indices: Tensor, owners: int, seeds: Sequence[int], indices_out: Tensor,
    slots: tuple[int, int], threads: int,
) -> Partition:  # fmt: skip
    """Inserts with one thread, whatever `threads` is."""
    owner = owners_of(indices, owners, seeds[0])
    parts, serial, growths = [], 0, 0
    for p in range(owners):
        for held in _filled(indices[owner == p], seeds[1:], *slots):
            growths += held is None
            if held is not None:
                parts.append([slot - 1 for slot in held[0] if slot])
                serial += held[1]
    whole = [index for part in parts for index in part]
    indices_out.copy_(torch.tensor(whole, dtype=torch.int32))
    return Partition([len(part) for part in parts], serial, growths)


def _filled(
    indices: Tensor, seeds: Sequence[int], parallel: int, serial: int
) -> Iterator[tuple[list[int], int] | None]:
    """Yields None for each table of an owner that was too small, then one that was not, with its
    number of serial entries."""
    while (held := _inserted(indices, seeds, parallel, serial)) is None:
        yield None
        parallel, serial = 2 * parallel, 2 * max(serial, 1)
    yield held


def _inserted(
    indices: Tensor, seeds: Sequence[int], parallel: int, serial: int
) -> tuple[list[int], int] | None:
    table, taken = [0] * (parallel + serial), parallel
    tries = zip(*(drawn(indices, seed, parallel).tolist() for seed in seeds))
    for index, places in zip(indices.tolist(), tries):
        free = next((place for place in places if table[place] == 0), None)
        if free is None:
            if taken == len(table):
                return None
            free, taken = taken, taken + 1
        table[free] = index + 1
    return table, taken - parallel
