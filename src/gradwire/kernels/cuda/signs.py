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
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import on_its_device, programs, rows_on, signed
from gradwire.kernels.values import SILENCE, Noise, Payload

BLOCK = tl.constexpr(4096)
"""Elements whose sum is taken in fp32, by 64 lanes."""
ROWS, LANES = tl.constexpr(64), tl.constexpr(64)
TOGETHER = 8
"""Blocks of a program."""
TILE, CHUNK = 4096, 4096


@triton.jit
def paired(x, N: tl.constexpr, LEVELS: tl.constexpr):
    """The sum of N = 2**LEVELS numbers, neighbours pairwise, level by level: (1,)."""
    for level in tl.static_range(LEVELS):
        x = tl.sum(tl.reshape(x, [N >> (level + 1), 2]), 1)
    return x


@triton.jit
def rows_packed(
    x, n, bits, dice1, dice2, dice3, throws: tl.constexpr, whole: tl.constexpr, R: tl.constexpr
):
    """The bits of R blocks, eight rows of each at once, and the lanes' sums, and counts."""
    block = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    low = tl.zeros([R, LANES], tl.float32)
    high = tl.zeros([R, LANES], tl.float32)
    count = tl.zeros([R, LANES], tl.int32)
    for begin in range(0, ROWS, 8):
        eights = ()
        for row in tl.static_range(8):
            i = block * BLOCK + (begin + row) * LANES + tl.arange(0, LANES)[None, :]
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
        at = block * (BLOCK // 8) + begin * 8 + tl.arange(0, 64)[None, :]
        write(bits, at, tl.reshape(in_order, [R, 64]).to(tl.uint8), (n + 7) // 8, whole)
    return low, high, count


@triton.jit(do_not_specialize=["n", "dice1", "dice2", "dice3"])
def pack(
    x, n, bits, sums, dice1, dice2, dice3, throws: tl.constexpr, R: tl.constexpr,
    LEVELS: tl.constexpr,
):  # fmt: skip
    """The bits of R = 2**LEVELS blocks, the sums below zero and above, and how many are below: one
    of each for a program, as the lowest levels of the sum over all blocks are of its own."""
    if tl.program_id(0) * R * BLOCK <= n - R * BLOCK:
        low, high, count = rows_packed(x, n, bits, dice1, dice2, dice3, throws, True, R)
    else:
        low, high, count = rows_packed(x, n, bits, dice1, dice2, dice3, throws, False, R)
    programs = tl.num_programs(0)
    here = sums + tl.program_id(0) + tl.arange(0, 1)
    below = tl.reshape(tree(low, R), [R]).to(tl.float64)
    above = tl.reshape(tree(high, R), [R]).to(tl.float64)
    tl.store(here, paired(below, R, LEVELS))
    tl.store(here + programs, paired(above, R, LEVELS))
    tl.store(here + 2 * programs, paired(tl.sum(count, 1).to(tl.float64), R, LEVELS))


@triton.jit(do_not_specialize=["number_of", "n"])
def stand_for(
    sums, number_of, n, values, status, count: tl.constexpr, CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,
):  # fmt: skip
    """What the bits stand for, of the sums of all programs: neighbours pairwise, so many levels at
    once as a chunk of 2**LEVELS has. One program."""
    left = number_of
    while left > 1:
        for begin in range(0, left, CHUNK):  # what a sum is written over, it is of, or an earlier
            at, on = begin + tl.arange(0, CHUNK), begin + tl.arange(0, CHUNK) < left
            x = tl.load(sums + at, mask=on, other=0.0)
            y = tl.load(sums + number_of + at, mask=on, other=0.0)
            z = tl.load(sums + 2 * number_of + at, mask=on, other=0.0)
            to = sums + begin // CHUNK + tl.arange(0, 1)
            tl.store(to, paired(x, CHUNK, LEVELS))
            tl.store(to + number_of, paired(y, CHUNK, LEVELS))
            tl.store(to + 2 * number_of, paired(z, CHUNK, LEVELS))
        tl.debug_barrier()
        left = (left + CHUNK - 1) // CHUNK
    below, above = tl.load(sums), tl.load(sums + number_of)
    many = tl.load(sums + 2 * number_of)
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
    rows = max(1, *programs(n, TOGETHER * BLOCK.value))
    sums = torch.empty((3, rows), dtype=torch.float64, device=x.device)
    launch(pack, (rows,),
        x, n, bits, sums, *map(signed, noise or SILENCE), throws=noise is not None, R=TOGETHER,
        LEVELS=_levels(TOGETHER), num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    launch(stand_for, (1,),
        sums, rows, n, values, status, count=values.numel(), CHUNK=CHUNK, LEVELS=_levels(CHUNK),
        num_warps=8,
    )  # fmt: skip


def _levels(numbers: int) -> int:
    """Of a tree over so many, a power of two."""
    return numbers.bit_length() - 1


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
        launch(add_signs_up, programs(n, TILE),
            out, table, n, len(held), by, dtype=TYPES[out.dtype], divides=divides,
            TILE=TILE, enable_fp_fusion=False,
        )  # fmt: skip
