"""Signs with their decoded values, for many parameters in two launches; and their sums.

Bytes for each element: 4 and 1/8 to encode; 4 and n/8 for a sum of n payloads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import (
    address,
    block_of,
    number,
    random_bits,
    read,
    rounded,
    write,
)
from gradwire.kernels.cuda.formats import tree
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
    PROGRAM,
    VALUES,
    WIDTH,
    N,
    X,
    encoded,
    quotient,
)
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import aligned, grouped
from gradwire.kernels.cuda.trees import (
    BLOCK,
    CHUNK,
    LANES,
    ROWS,
    TOGETHER,
    folded,
    levels_of,
    paired,
)
from gradwire.kernels.segments import EncodeCodes
from gradwire.kernels.values import SILENCE

TILE = 2048
"""Elements of a program that adds payloads up."""


@triton.jit
def rows_packed(row, first, n, dtype: tl.constexpr, throws: tl.constexpr, aligned: tl.constexpr,
                whole: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """Writes the bits of R blocks, eight rows of each at once; returns each lane's sums below zero
    and above, and its set bits."""
    x = address(tl.load(row + X), dtype, aligned)
    bits = address(tl.load(row + CODES), tl.uint8, False)
    dice1, dice2, dice3 = tl.load(row + DICE1), tl.load(row + DICE2), tl.load(row + DICE3)
    block = first // BLOCK + tl.arange(0, R)[:, None]
    low = tl.zeros([R, LANES], tl.float32)
    high = tl.zeros([R, LANES], tl.float32)
    count = tl.zeros([R, LANES], tl.int32)
    for begin in range(0, ROWS, 8):
        eights = ()
        for at in tl.static_range(8):
            i = block * BLOCK + (begin + at) * LANES + tl.arange(0, LANES)[None, :]
            v = read(x, i, n, whole)
            below = v < 0
            low += tl.where(below, v, 0.0)
            high += tl.where(below, 0.0, v)
            if throws:
                coin = random_bits(i, dice1, dice2, dice3) >= 2147483648
                below = below | ((v == 0) & coin & (i < n))
            count += below.to(tl.int32)
            worth = tl.reshape(below.to(tl.int32), [R, 8, 8]) << tl.arange(0, 8)[None, None, :]
            eights = eights + (tl.sum(worth, 2),)  # type: ignore[assignment]  # noqa: RUF005
        b0, b1, b2, b3, b4, b5, b6, b7 = eights  # type: ignore[misc]
        even = tl.join(tl.join(b0, b4), tl.join(b2, b6))
        odd = tl.join(tl.join(b1, b5), tl.join(b3, b7))
        in_order = tl.permute(tl.join(even, odd), [0, 2, 3, 4, 1])
        to = block * (BLOCK // 8) + begin * 8 + tl.arange(0, 64)[None, :]
        write(bits, to, tl.reshape(in_order, [R, 64]).to(tl.uint8), (n + 7) // 8, whole)
    return low, high, count


@triton.jit
def pack(
    rows, blocks, sums, dtype: tl.constexpr, throws: tl.constexpr, aligned: tl.constexpr,
    R: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Writes the bits of R = 2**LEVELS blocks, the sums below zero and above, and how many are
    below: one of each per program, which does the lowest levels of the sum over all blocks."""
    segment, first = block_of(blocks)
    row = rows + segment * ENCODED
    n = tl.load(row + N).to(tl.int32)
    if first <= n - R * BLOCK:
        low, high, count = rows_packed(row, first, n, dtype, throws, aligned, True, R)
    else:
        low, high, count = rows_packed(row, first, n, dtype, throws, aligned, False, R)
    programs = tl.num_programs(0)
    here = sums + tl.program_id(0) + tl.arange(0, 1)
    below = tl.reshape(tree(low, R), [R]).to(tl.float64)
    above = tl.reshape(tree(high, R), [R]).to(tl.float64)
    tl.store(here, paired(below, R, LEVELS))
    tl.store(here + programs, paired(above, R, LEVELS))
    tl.store(here + 2 * programs, paired(tl.sum(count, 1).to(tl.float64), R, LEVELS))


@triton.jit(do_not_specialize=["number_of"])
def stand_for(
    rows, sums, number_of, status, of: tl.constexpr, SPAN: tl.constexpr, CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,
):  # fmt: skip
    """Writes a segment's decoded values, by the sums of its programs. One program for each."""
    row = rows + tl.program_id(0) * ENCODED
    n = tl.load(row + N).to(tl.int32)
    sums += tl.load(row + PROGRAM)
    below = folded(sums, n, SPAN, CHUNK, LEVELS)
    above = folded(sums + number_of, n, SPAN, CHUNK, LEVELS)
    many = folded(sums + 2 * number_of, n, SPAN, CHUNK, LEVELS)
    good = above - below < float("inf")
    if not good:
        tl.atomic_or(status, tl.full([], 1, tl.int64))
    values = address(tl.load(row + VALUES), tl.float32, False)
    if of == 1:
        mean = (above - below) / tl.maximum(n, 1).to(tl.float64)
        tl.store(values, tl.where(good, mean, 0.0).to(tl.float32), mask=n > 0)
    if of == 2:
        first = below / tl.maximum(many, 1.0)
        second = above / tl.maximum(n.to(tl.float64) - many, 1.0)
        tl.store(values, tl.where(good, first, 0.0).to(tl.float32), mask=n > 0)
        tl.store(values + 1, tl.where(good, second, 0.0).to(tl.float32), mask=n > 0)


@triton.jit
def add_signs_up(
    rows, blocks, payloads, bad, dtype: tl.constexpr, of: tl.constexpr, divides: tl.constexpr,
    aligned: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Writes the sum of all decoded payloads over the divisor, or adds it times a factor. of: the
    values of a payload."""
    segment, first = block_of(blocks)
    if tl.load(bad + segment) == 0:
        row = rows + segment * WIDTH
        n, by = tl.load(row + N).to(tl.int32), number(tl.load(row + BY))
        i, whole = first + tl.arange(0, TILE), first <= n - TILE
        out = address(tl.load(row + OUT), dtype, aligned)
        total = tl.zeros([TILE], tl.float32)
        if not divides:
            total = read(out, i, n, whole)
        at = payloads + 2 * tl.load(row + FIRST)
        for r in range(tl.load(row + COUNT).to(tl.int32)):
            bits = address(tl.load(at + 2 * r), tl.uint8, False)
            values = address(tl.load(at + 2 * r + 1), tl.float32, False)
            high = 1.0
            if of > 0:
                high = tl.load(values + (of - 1), mask=n > 0, other=0.0)
            low = tl.load(values, mask=n > 0, other=0.0) if of == 2 else -high
            byte = tl.load(bits + i // 8, mask=i < n, other=0).to(tl.int32)
            x = tl.where(((byte >> (i % 8)) & 1) == 1, low, high)
            total += x if divides else x * by
        if divides:
            total = quotient(total, by)
        write(out, i, rounded(total, dtype), n, whole)


def pack_signs(segments: Sequence[EncodeCodes], status: Tensor) -> None:
    """Does the work of `encode_codes` for signs of one format and dtype, contiguous."""
    for throws, own in grouped(segments, lambda one: one.noise != SILENCE):
        _pack(own, throws, status)


def _pack(segments: Sequence[EncodeCodes], throws: bool, status: Tensor) -> None:
    form, x, *_ = segments[0]
    span = TOGETHER * BLOCK.value
    table, blocks = encoded(segments, span)
    programs = blocks.shape[0]
    sums = torch.empty((3, programs), dtype=torch.float64, device=x.device)
    launch(pack, (programs,),
        table, blocks, sums, dtype=TYPES[x.dtype], throws=throws, R=TOGETHER,
        LEVELS=levels_of(TOGETHER), aligned=all(aligned(one.x) for one in segments), num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    launch(stand_for, (len(segments),),
        table, sums, programs, status, of=form.in_all, SPAN=span, CHUNK=CHUNK,
        LEVELS=levels_of(CHUNK), num_warps=8,
    )  # fmt: skip
