"""Sums over all elements of a segment, in the order that `kernels/signs.py` documents.

lanes of a block, in fp32 ──► halves of them ──► blocks of a program, pairwise, in fp64
                                                  ──► `folded`: programs, pairwise
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = tl.constexpr(4096)
"""The number of elements whose sum is taken in fp32, by 64 lanes."""
ROWS, LANES = tl.constexpr(64), tl.constexpr(64)
TOGETHER = 8
"""The number of blocks of a program."""
CHUNK = 4096
"""The number of programs' sums that are added up at once."""


@triton.jit
def paired(x, N: tl.constexpr, LEVELS: tl.constexpr):
    """Returns the sum of N = 2**LEVELS numbers, neighbours pairwise, level by level: (1,)."""
    for level in tl.static_range(LEVELS):
        x = tl.sum(tl.reshape(x, [N >> (level + 1), 2]), 1)
    return x


@triton.jit
def folded(sums, n, SPAN: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr):
    """Returns the sum of a segment of n elements from those of its programs, SPAN elements each:
    neighbours pairwise, LEVELS levels at once for a chunk of 2**LEVELS. One program does it."""
    left = tl.maximum(tl.cdiv(n, SPAN), 1)
    while left > 1:
        for begin in range(0, left, CHUNK):  # a sum overwrites only what has been added up
            at = begin + tl.arange(0, CHUNK)
            x = tl.load(sums + at, mask=at < left, other=0.0)
            tl.store(sums + begin // CHUNK + tl.arange(0, 1), paired(x, CHUNK, LEVELS))
        tl.debug_barrier()
        left = (left + CHUNK - 1) // CHUNK
    return tl.load(sums)


def levels_of(numbers: int) -> int:
    """Returns the levels of a tree over so many numbers, a power of two."""
    return numbers.bit_length() - 1
