"""Ternary digits, by dice not zero with chance |x| / scale, five to a byte; and their sums.

    begin_at_zero ──► top_of_all ────────► pack_digits
                   └► `clips` ─────────┘       if the scale is clipped

Bytes for each element: 8 and 1/5 to encode; 4 and n/5 for a sum of n payloads. Part p of a block
is digit p of every byte; in a whole one 32 bytes hold 0, 16, 1, 17, ….
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda import clips
from gradwire.kernels.cuda.device import (
    address,
    block_of,
    is_finite,
    magnitude,
    number,
    raise_if,
    random_bits,
    read,
    rounded,
    widened,
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
    VALUES,
    WIDTH,
    N,
    X,
    encoded,
    quotient,
)
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import aligned, blocks_on, grouped
from gradwire.kernels.formats import LEAST_SCALED, TERNARY
from gradwire.kernels.segments import EncodeCodes

BLOCK, PART = tl.constexpr(TERNARY.block), tl.constexpr(TERNARY.block // 5)
LEAST = tl.constexpr(LEAST_SCALED)
TOGETHER = 4
"""The number of blocks of a program."""
TILE = 4096
"""Elements of a program that searches the largest."""


@triton.jit
def begin_at_zero(rows):
    """Sets a segment's scale to zero. One program for each segment."""
    row = rows + tl.program_id(0) * ENCODED
    scale = address(tl.load(row + VALUES), tl.int32, False)
    tl.store(scale, 0, mask=tl.load(row + N) > 0)


@triton.jit
def top_of_all(
    rows, blocks, status, dtype: tl.constexpr, aligned: tl.constexpr, TILE: tl.constexpr
):
    """Writes the largest magnitude of a segment to its scale, which must be zero before, by an
    atomic maximum of bits: these have the order of the magnitudes, and the order of programs does
    not matter."""
    segment, first = block_of(blocks)
    row = rows + segment * ENCODED
    n = tl.load(row + N).to(tl.int32)
    i = first + tl.arange(0, TILE)
    x = read(address(tl.load(row + X), dtype, aligned), i, n, first <= n - TILE)
    raise_if(status, ~is_finite(x) & (i < n))
    if first < n:
        tl.atomic_max(address(tl.load(row + VALUES), tl.int32, False), tl.max(magnitude(x), 0))


@triton.jit
def places_of(n, first, R: tl.constexpr):
    """Returns, for R blocks: where each begins; its elements; the elements of a part; and (R,
    PART): the indices in a part, and the bytes of these."""
    block = first // BLOCK + tl.arange(0, R)[:, None]
    m = tl.minimum(tl.maximum(n - block * BLOCK, 0), BLOCK)
    size = (m + 4) // 5
    j = tl.arange(0, PART)[None, :]
    turned = tl.where(m == BLOCK, j // 32 * 32 + j % 16 * 2 + j // 16 % 2, j)
    return block * BLOCK, m, size, j, block * PART + turned


@triton.jit
def pack_digits(rows, blocks, dtype: tl.constexpr, R: tl.constexpr):
    """Encodes a number as the digit 1, or by dice as 0 or 2 if it is negative or positive. Five
    digits are a fraction of 256, rounded up."""
    segment, first = block_of(blocks)
    row = rows + segment * ENCODED
    n = tl.load(row + N).to(tl.int32)
    x_at = address(tl.load(row + X), dtype, False)
    codes = address(tl.load(row + CODES), tl.uint8, False)
    top = tl.load(address(tl.load(row + VALUES), tl.float32, False), mask=n > 0, other=0.0)
    inverse = tl.where(top >= LEAST, tl.div_rn(tl.full([], 1.0, tl.float32), top), 0.0)
    begin, m, size, j, byte = places_of(n, first, R)
    fraction = tl.zeros([R, PART], tl.int32)
    for p in tl.static_range(5):
        i = begin + p * size + j
        on = (j < size) & (p * size + j < m)
        x = widened(tl.load(x_at + i, mask=on, other=0.0))
        x = tl.where(is_finite(x), x, 0.0)
        dice = random_bits(i, tl.load(row + DICE1), tl.load(row + DICE2), tl.load(row + DICE3))
        chance = (dice >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2**-24
        one = (chance < tl.abs(x) * inverse).to(tl.int32)
        fraction = fraction * 3 + tl.where(on, 1 + tl.where(x < 0, -one, one), 0)
    tl.store(codes + byte, ((fraction * 256 + 242) // 243).to(tl.uint8), mask=j < size)


@triton.jit
def add_digits_up(
    rows, blocks, payloads, bad, dtype: tl.constexpr, divides: tl.constexpr,
    aligned: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Writes the sum of all payloads over the divisor, or adds it times a factor, part by part. A
    byte is a fraction of 256; times 3**p, modulo 256, it is that of the digits from p on."""
    segment, first = block_of(blocks)
    if tl.load(bad + segment) == 0:
        row = rows + segment * WIDTH
        n, by = tl.load(row + N).to(tl.int32), number(tl.load(row + BY))
        out = address(tl.load(row + OUT), dtype, False)
        begin, m, size, j, byte = places_of(n, first, R)
        given = payloads + 2 * tl.load(row + FIRST)
        for p in tl.static_range(5):
            i = begin + p * size + j
            on = (j < size) & (p * size + j < m)
            total = tl.zeros([R, PART], tl.float32)
            if not divides:
                total = widened(tl.load(out + i, mask=on, other=0.0))
            for r in range(tl.load(row + COUNT).to(tl.int32)):
                codes = address(tl.load(given + 2 * r), tl.uint8, False)
                scale = address(tl.load(given + 2 * r + 1), tl.float32, False)
                scale = tl.load(scale, mask=n > 0, other=0.0)
                if not divides:
                    scale *= by
                rest = (tl.load(codes + byte, mask=on, other=0).to(tl.int32) * 3**p) & 255
                total += (((3 * rest) >> 8) - 1).to(tl.float32) * scale
            if divides:
                total = quotient(total, by)
            tl.store(out + i, rounded(total, dtype), mask=on)


def pack_ternary(segments: Sequence[EncodeCodes], status: Tensor) -> None:
    """Does the work of `encode_codes` for segments of one dtype, contiguous."""
    for cuts, own in grouped(segments, lambda one: one.clip is not None):
        _pack(own, cuts, status)


def _pack(segments: Sequence[EncodeCodes], cuts: bool, status: Tensor) -> None:
    dtype, number_of = TYPES[segments[0].x.dtype], len(segments)
    of = {"dtype": dtype, "aligned": all(aligned(one.x) for one in segments)}
    table, blocks = encoded(segments, clips.span() if cuts else TILE)
    launch(begin_at_zero, (number_of,), table)
    if cuts:
        clips.cut_scales(table, number_of, blocks, status, of)
    else:
        launch(top_of_all, blocks.shape[:1], table, blocks, status, **of, TILE=TILE, num_warps=8)
    sizes = tuple(one.x.numel() for one in segments)
    blocks = blocks_on(status.device, sizes, TOGETHER * BLOCK.value)
    launch(pack_digits, (blocks.shape[0],),
        table, blocks, dtype=dtype, R=TOGETHER, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
