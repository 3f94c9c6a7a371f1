"""Chunks of elements, and who is dealt what: a hash of a number and a seed. Rows without owner."""

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

Number = TypeVar("Number", int, float)

CHUNK = 16
"""Elements that are dealt together."""


def owners_of(indices: Tensor, owners: int, seed: int) -> Tensor:
    """Who owns each index: (hash · owners) >> 32, int64, of MurmurHash3's 32-bit finalizer.

    indices: any shape, integers from 0 below 2^31.
    """
    return drawn(indices, seed, owners)


def drawn(indices: Tensor, seed: int, n: int) -> Tensor:
    """Numbers below n. Products wrap modulo 2^64, which leaves their lower halves right."""
    h = indices.long() ^ seed
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (h ^ h >> 16) * n >> 32


def most_singles(counts: Sequence[Number]) -> Number:
    """How many rows that no other has a rank may send to all, given how many each has.

    One more costs its sender n-1 rows instead of (n-1)/n, and spares everybody (n-1)/n of an
    average; so the busiest rank gains by it while n-1 ranks have one more: up to the second
    smallest count. Whoever has more sends the rest to owners. Two ranks send all.
    """
    return max(counts) if len(counts) <= 2 else sorted(counts)[1]
