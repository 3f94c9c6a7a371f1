"""Signs with what they stand for, and their sums.

Bytes for each element: 4 and 1/8 to write; 4 and n/8 for a sum of n payloads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import address, part_of, random_bits, read, rounded, write
from gradwire.kernels.cuda.formats import tree
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import on_its_device, programs, rows_on, signed
from gradwire.kernels.values import SILENCE, Noise, Payload

BLOCK = tl.constexpr(4096)
"""Elements whose sum is taken in fp32, by 64 lanes."""
ROWS, LANES = tl.constexpr(64), tl.constexpr(64)
TOGETHER = 8
"""Blocks of a program."""
TILE, CHUNK = 4096, 1024


@triton.jit(do_not_specialize=["n", "dice1", "dice2", "dice3"])
def pack(x, n, bits, sums, dice1, dice2, dice3, throws: tl.constexpr, R: tl.constexpr):
    """The bits of R blocks, the sums of each below zero and above, and how many are below."""
    block = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    lane = tl.arange(0, LANES)[None, :]
    low = tl.zeros([R, LANES], tl.float32)
    high = tl.zeros([R, LANES], tl.float32)
    count = tl.zeros([R, LANES], tl.int32)
    whole = tl.program_id(0) * R * BLOCK <= n - R * BLOCK
    for row in range(ROWS):
        i = block * BLOCK + row * LANES + lane
        v = read(x, i, n, whole)
        below = v < 0
        low += tl.where(below, v, 0.0)
        high += tl.where(below, 0.0, v)
        if throws:
            coin = random_bits(i, dice1, dice2, dice3) >= 2147483648
            below = below | ((v == 0) & coin & (i < n))
        count += below.to(tl.int32)
        eights = tl.reshape(below.to(tl.int32), [R, 8, 8]) << tl.arange(0, 8)[None, None, :]
        at = block * (BLOCK // 8) + row * 8 + tl.arange(0, 8)[None, :]
        tl.store(bits + at, tl.sum(eights, 2).to(tl.uint8), mask=at < (n + 7) // 8)
    here, on = sums + 3 * block, block < tl.maximum((n + BLOCK - 1) // BLOCK, 1)
    tl.store(here, tree(low, R).to(tl.float64), mask=on)
    tl.store(here + 1, tree(high, R).to(tl.float64), mask=on)
    tl.store(here + 2, tl.sum(count, 1, keep_dims=True).to(tl.float64), mask=on)


@triton.jit(do_not_specialize=["number_of", "n"])
def stand_for(sums, number_of, n, values, status, count: tl.constexpr, CHUNK: tl.constexpr):
    """What the bits stand for, of the sums over all blocks: neighbours pairwise, in place, level
    by level. One program."""
    left = number_of
    word = tl.arange(0, 4)[None, :]
    while left > 1:
        half = (left + 1) // 2
        for begin in range(0, half, CHUNK):
            b = begin + tl.arange(0, CHUNK)[:, None]
            on = (b < half) & (word < 3)
            one = tl.load(sums + 6 * b + word, mask=on, other=0.0)
            other = tl.load(sums + 6 * b + 3 + word, mask=on & (2 * b + 1 < left), other=0.0)
            tl.debug_barrier()  # all of a chunk are read before any is written
            tl.store(sums + 3 * b + word, one + other, mask=on)
            tl.debug_barrier()
        left = half
    below, above, many = tl.load(sums), tl.load(sums + 1), tl.load(sums + 2)
    good = above - below < float("inf")
    if not good:
        tl.atomic_or(status, tl.full([], 1, tl.int64))
    if count == 1:
        mean = (above - below) / tl.maximum(n, 1).to(tl.float64)
        tl.store(values, tl.where(good, mean, 0.0).to(tl.float32))
    if count == 2:
        first = below / tl.maximum(many, 1.0)
        second = above / tl.maximum(n.to(tl.float64) - many, 1.0)
        tl.store(values, tl.where(good, first, 0.0).to(tl.float32))
        tl.store(values + 1, tl.where(good, second, 0.0).to(tl.float32))


@triton.jit
def add_signs_up(
    out, payloads, n, count, by, dtype: tl.constexpr, divides: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The sum of what all signs say, times or over a number."""
    i, whole = part_of(n, TILE)
    total = tl.zeros([TILE], tl.float32)
    if not divides:
        total = read(out, i, n, whole)
    for r in range(count):
        at = payloads + 3 * r
        bits = address(tl.load(at), tl.uint8, False)
        values, of = address(tl.load(at + 1), tl.float32, False), tl.load(at + 2)
        one = tl.load(values, mask=of > 0, other=1.0)
        high = tl.where(of == 2, tl.load(values + 1, mask=of == 2, other=0.0), one)
        low = tl.where(of == 2, one, -one)
        byte = tl.load(bits + i // 8, mask=i < n, other=0).to(tl.int32)
        x = tl.where(((byte >> (i % 8)) & 1) == 1, low, high)
        if not divides:
            x = x * by
        total += x
    if divides:
        total = tl.div_rn(total, tl.zeros_like(total) + by)
    write(out, i, rounded(total, dtype), n, whole)


@on_its_device
def pack_signs(
    x: Tensor, bits: Tensor, values: Tensor, status: Tensor, noise: Noise | None
) -> None:
    x, n = x.detach().contiguous(), x.numel()
    blocks = max(1, *programs(n, BLOCK.value))
    sums = torch.empty((blocks, 3), dtype=torch.float64, device=x.device)
    pack[(-(-blocks // TOGETHER),)](
        x, n, bits, sums, *map(signed, noise or SILENCE), throws=noise is not None, R=TOGETHER,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    stand_for[(1,)](sums, blocks, n, values, status, count=values.numel(), CHUNK=CHUNK)


@on_its_device
def accumulate_signs(out: Tensor, payloads: Sequence[Payload], divisor: float) -> None:
    _add_up(out, payloads, divisor, divides=True)


@on_its_device
def add_signs(v: Tensor, bits: Tensor, values: Tensor, factor: float) -> None:
    _add_up(v, [(bits, values)], factor, divides=False)


def _add_up(out: Tensor, payloads: Sequence[Payload], by: float, *, divides: bool) -> None:
    n = out.numel()
    held = [(bits.contiguous(), values.contiguous()) for bits, values in payloads]
    table = rows_on(
        out.device, [[b.data_ptr(), v.data_ptr(), v.numel()] for b, v in held] or [[0] * 3]
    )
    if n:
        add_signs_up[programs(n, TILE)](
            out, table, n, len(held), by, dtype=TYPES[out.dtype], divides=divides,
            TILE=TILE, enable_fp_fusion=False,
        )  # fmt: skip
