"""Chunks of elements, and who is dealt what: a hash of a number and a seed."""

from torch import Tensor

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
