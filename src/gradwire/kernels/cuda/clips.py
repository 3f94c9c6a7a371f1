"""Clipped scales: the largest magnitude of a segment, at most `clip` of its root mean squares.

    squares ──► cut        each program's sum and the segment's largest; then the segment's scale

Bytes for each element: those of the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import (
    address,
    block_of,
    is_finite,
    magnitude,
    raise_if,
    read,
)
from gradwire.kernels.cuda.formats import tree
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.payloads import CLIP, ENCODED, PROGRAM, VALUES, N, X
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


@triton.jit
def rows_squared(row, first, n, dtype: tl.constexpr, aligned: tl.constexpr, whole: tl.constexpr,
                 R: tl.constexpr):  # fmt: skip
    """Returns, for R blocks and each lane, the sum of squares, the largest magnitude, and whether
    something is not finite."""
    x_at = address(tl.load(row + X), dtype, aligned)
    block = first // BLOCK + tl.arange(0, R)[:, None]
    total = tl.zeros([R, LANES], tl.float32)
    top, bad = tl.zeros([R, LANES], tl.int32), tl.zeros([R, LANES], tl.int32)
    for begin in range(0, ROWS, 8):
        for at in tl.static_range(8):  # unrolled, so that all eight are loaded together
            i = block * BLOCK + (begin + at) * LANES + tl.arange(0, LANES)[None, :]
            x = read(x_at, i, n, whole)
            bad = bad | (~is_finite(x)).to(tl.int32)
            x = tl.where(is_finite(x), x, 0.0)
            total += x * x
            top = tl.maximum(top, magnitude(x))
    return total, top, bad


@triton.jit
def squares(
    rows, blocks, sums, status, dtype: tl.constexpr, aligned: tl.constexpr, R: tl.constexpr,
    LEVELS: tl.constexpr,
):  # fmt: skip
    """Writes the largest magnitude of a segment to its scale, which must be zero before, and the
    sum of the squares of R = 2**LEVELS blocks, one for each program."""
    segment, first = block_of(blocks)
    row = rows + segment * ENCODED
    n = tl.load(row + N).to(tl.int32)
    if first <= n - R * BLOCK:
        total, top, bad = rows_squared(row, first, n, dtype, aligned, True, R)
    else:
        total, top, bad = rows_squared(row, first, n, dtype, aligned, False, R)
    raise_if(status, tl.reshape(bad, [R * LANES]) != 0)
    of_blocks = tl.reshape(tree(total, R), [R]).to(tl.float64)
    tl.store(sums + tl.program_id(0) + tl.arange(0, 1), paired(of_blocks, R, LEVELS))
    if first < n:
        most = tl.max(tl.reshape(top, [R * LANES]), 0)
        tl.atomic_max(address(tl.load(row + VALUES), tl.int32, False), most)


@triton.jit
def cut(rows, sums, SPAN: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr):
    """Cuts the scale, the largest magnitude, to `clip` root mean squares, if the sum of squares is
    above 0: an infinite sum cuts nothing. One program for each segment."""
    row = rows + tl.program_id(0) * ENCODED
    n = tl.load(row + N).to(tl.int32)
    total = folded(sums + tl.load(row + PROGRAM), n, SPAN, CHUNK, LEVELS)
    scale = address(tl.load(row + VALUES), tl.float32, False)
    most = tl.load(scale, mask=n > 0, other=0.0)
    clip = tl.load(row + CLIP).to(tl.float64, bitcast=True)
    least = clip * tl.sqrt(total / tl.maximum(n, 1).to(tl.float64))
    least = tl.minimum(most.to(tl.float64), least).to(tl.float32)
    tl.store(scale, tl.where(total > 0.0, least, most), mask=n > 0)


def span() -> int:
    """Returns the elements of a program that adds up squares."""
    return int(TOGETHER * BLOCK.value)


def cut_scales(
    table: Tensor, number_of: int, blocks: Tensor, status: Tensor, of: dict[str, Any]
) -> None:
    """Writes the scales of the segments, which must be zeros before. of: their dtype, and whether
    they are aligned."""
    sums = torch.empty(len(blocks), dtype=torch.float64, device=status.device)
    launch(squares, (len(blocks),),
        table, blocks, sums, status, **of, R=TOGETHER, LEVELS=levels_of(TOGETHER), num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    launch(cut, (number_of,),
        table, sums, SPAN=span(), CHUNK=CHUNK, LEVELS=levels_of(CHUNK), num_warps=8,
        enable_fp_fusion=False,
    )  # fmt: skip
