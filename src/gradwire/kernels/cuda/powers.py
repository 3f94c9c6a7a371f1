"""Powers of two: exponents and signs of blocks, encoded and added up.

Bytes for each element: 4 and 9/8 to encode; 4 and n·9/8 for a sum of n payloads.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import (
    address,
    block_of,
    is_finite,
    number,
    random_bits,
    read,
    rounded,
)
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.payloads import (
    BY,
    CODES,
    COUNT,
    DICE1,
    DICE2,
    DICE3,
    ENCODED,
    FIRST,
    OUT,
    WIDTH,
    N,
    X,
    encoded,
    quotient,
)
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import aligned
from gradwire.kernels.formats import POWERS
from gradwire.kernels.segments import EncodeCodes

BLOCK = tl.constexpr(POWERS.block)
TOGETHER = 4
"""The number of blocks of a program."""


@triton.jit
def bytes_of(n, first, R: tl.constexpr):
    """Returns the elements of R blocks, (R, BLOCK); where the bytes of each block begin, and how
    many elements it has, (R, 1)."""
    block = first // BLOCK + tl.arange(0, R)[:, None]
    i = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    m = tl.minimum(tl.maximum(n - block * BLOCK, 0), BLOCK)
    return i, block.to(tl.int64) * (BLOCK + BLOCK // 8), m


@triton.jit
def encode_powers(
    rows, blocks, status, dtype: tl.constexpr, aligned: tl.constexpr, R: tl.constexpr
):
    """Rounds to the next power of two below or above by dice: bits are added to the mantissa, and
    may carry into the exponent."""
    segment, first = block_of(blocks)
    row = rows + segment * ENCODED
    n = tl.load(row + N).to(tl.int32)
    i, at, m = bytes_of(n, first, R)
    x = read(address(tl.load(row + X), dtype, aligned), i, n, first <= n - R * BLOCK)
    finite = is_finite(x)
    if tl.max((~finite & (i < n)).to(tl.int32)) != 0:
        tl.atomic_or(status, tl.full([], 1, tl.int64))
    b = tl.where(finite, x, 0.0).to(tl.int32, bitcast=True)
    dice = random_bits(i, tl.load(row + DICE1), tl.load(row + DICE2), tl.load(row + DICE3))
    exponent = ((b & 0x7FFFFFFF) + (dice & 0x7FFFFF).to(tl.int32)) >> 23
    codes = address(tl.load(row + CODES), tl.uint8, False)
    j = tl.arange(0, BLOCK)[None, :]
    tl.store(codes + at + j, tl.minimum(exponent, 254).to(tl.uint8), mask=i < n)
    below = tl.reshape(((b < 0) & (i < n)).to(tl.int32), [R, BLOCK // 8, 8])
    signs = tl.sum(below << tl.arange(0, 8)[None, None, :], 2)
    k = tl.arange(0, BLOCK // 8)[None, :]
    tl.store(codes + at + m + k, signs.to(tl.uint8), mask=8 * k < m)


@triton.jit
def add_powers_up(
    rows, blocks, payloads, bad, dtype: tl.constexpr, divides: tl.constexpr,
    aligned: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Writes the sum of all payloads over the divisor, or adds it times a factor."""
    segment, first = block_of(blocks)
    if tl.load(bad + segment) == 0:
        row = rows + segment * WIDTH
        n, by = tl.load(row + N).to(tl.int32), number(tl.load(row + BY))
        i, at, m = bytes_of(n, first, R)
        on, whole = i < n, first <= n - R * BLOCK
        out = address(tl.load(row + OUT), dtype, aligned)
        total = tl.zeros([R, BLOCK], tl.float32)
        if not divides:
            total = read(out, i, n, whole)
        j = tl.arange(0, BLOCK)[None, :]
        given = payloads + 2 * tl.load(row + FIRST)
        for r in range(tl.load(row + COUNT).to(tl.int32)):
            codes = address(tl.load(given + 2 * r), tl.uint8, False) + at
            exponent = tl.load(codes + j, mask=on, other=0).to(tl.int32)
            below = tl.load(codes + m + j // 8, mask=on, other=0).to(tl.int32) >> (j % 8)
            x = ((exponent << 23) | (below << 31)).to(tl.float32, bitcast=True)
            total += x if divides else x * by
        if divides:
            total = quotient(total, by)
        tl.store(out + i, rounded(total, dtype), mask=on)


def pack_powers(segments: Sequence[EncodeCodes], status: Tensor) -> None:
    """Does the work of `encode_codes` for segments of one dtype, contiguous."""
    table, blocks = encoded(segments, TOGETHER * BLOCK.value)
    launch(encode_powers, (blocks.shape[0],),
        table, blocks, status, dtype=TYPES[segments[0].x.dtype], R=TOGETHER, num_warps=8,
        aligned=all(aligned(one.x) for one in segments),
    )  # fmt: skip
