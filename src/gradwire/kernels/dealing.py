"""Chunks of elements, their owners by a hash of number and seed, and rows without an owner."""

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

Number = TypeVar("Number", int, float)

CHUNK = 16
"""The number of elements that are dealt together."""


def owners_of(indices: Tensor, owners: int, seed: int) -> Tensor:
    """Returns the owner of each index, int64: (hash · owners) >> 32, with MurmurHash3's 32-bit
    finalizer as the hash.

    indices: any shape, integers from 0 below 2^31.
    """
    return drawn(indices, seed, owners)


def drawn(indices: Tensor, seed: int, n: int) -> Tensor:
    """Returns numbers below n, by a hash. Products wrap modulo 2^64, which leaves their lower
    halves right."""
    h = indices.long() ^ seed
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (h ^ h >> 16) * n >> 32


def most_singles(counts: Sequence[Number]) -> Number:
    """Returns how many single rows, which no other rank has, a rank may send to all. counts: each
    rank's single rows.

    One more costs its sender n-1 rows instead of (n-1)/n, and spares every rank (n-1)/n of an
    average; so the busiest rank gains by it while n-1 ranks have one more: up to the second
    smallest count. A rank that has more sends the rest to owners. Two ranks send all.
    """
    return max(counts) if len(counts) <= 2 else sorted(counts)[1]
