"""Undoing a step of a sparsifying feedback, for all parameters of a bucket.

    restore ──► inverted      what was taken returns; then the recurrence is inverted, if any

Saved old blocks are written back after that: `kept`. Bytes for each element with an fp32 gradient:
dgc 20, ef 12; for each entry 16 or 24.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.columns import (
    BLOCK,
    INDICES,
    VALUES,
    VELOCITIES,
    WIDTH,
    D,
    G,
    K,
    M,
    N,
    S,
    U,
    V,
)
from gradwire.kernels.cuda.device import (
    FEEDBACK,
    MOMENTUM,
    address,
    block_of,
    is_finite,
    number,
    read,
    write,
)
from gradwire.kernels.cuda.kept import HUGE
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.selection import TYPES, mode_of, rules_of
from gradwire.kernels.cuda.tables import (
    Columns,
    addresses,
    all_aligned,
    blocks_on,
    columns_of,
    grouped,
    on_its_device,
    plain,
    rows_on,
)
from gradwire.kernels.segments import UndoTopk

ENTRIES = 1024
"""The number of entries of a program that restores them."""


@triton.jit
def restore(rows, blocks, BLOCK: tl.constexpr):
    """Adds values where they were taken, and writes velocities there if they were cleared; places
    outside of the segment are skipped."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    n, k = tl.load(row + N).to(tl.int32), tl.load(row + K).to(tl.int32)
    j = first + tl.arange(0, BLOCK)
    i = tl.load(address(tl.load(row + INDICES), tl.int32, False) + j, mask=j < k, other=-1)
    on = (i >= 0) & (i < n)
    v = address(tl.load(row + V), tl.float32, False) + i
    x = tl.load(address(tl.load(row + VALUES), tl.float32, False) + j, mask=on, other=0.0)
    tl.store(v, tl.load(v, mask=on, other=0.0) + x, mask=on)
    velocities = tl.load(row + VELOCITIES)
    if velocities != 0:
        u = tl.load(address(velocities, tl.float32, False) + j, mask=on, other=0.0)
        tl.store(address(tl.load(row + U), tl.float32, False) + i, u, mask=on)


@triton.jit
def inverted(
    rows, blocks, dtype: tl.constexpr, mode: tl.constexpr, aligned: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Inverts the recurrence of a block."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    n = tl.load(row + N).to(tl.int32)
    m, s, d = number(tl.load(row + M)), number(tl.load(row + S)), number(tl.load(row + D))
    i, whole = first + tl.arange(0, BLOCK), first <= n - BLOCK
    sg = read(address(tl.load(row + G), dtype, aligned), i, n, whole) * s
    v = address(tl.load(row + V), tl.float32, aligned)
    u = address(tl.load(row + U), tl.float32, aligned)
    v1 = read(v, i, n, whole)
    u1 = v1
    if mode != FEEDBACK:
        u1 = read(u, i, n, whole)
    huge = (tl.abs(sg) >= HUGE) & is_finite(sg) & (tl.abs(v1) >= tl.abs(sg) * 0.5)
    good = is_finite(step_of(sg, u1, v1, m, d, mode)) | huge
    u0 = u1
    if mode == FEEDBACK:
        v0 = tl.div_rn(v1 - sg, tl.zeros_like(v1) + d)
    elif mode == MOMENTUM:
        v0 = v1 - u1
        if m != 0.0:
            u0 = tl.div_rn(u1 - sg, tl.zeros_like(v1) + m)
    else:
        v0 = (v1 - sg) - u1
        if m != 0.0:
            u0 = tl.div_rn(u1, tl.zeros_like(v1) + m) - sg
    good = good & is_finite(v0)
    if mode != FEEDBACK:
        good = good & is_finite(u0)
        write(u, i, tl.where(good, u0, u1), n, whole)
    write(v, i, tl.where(good, v0, v1), n, whole)


@triton.jit
def step_of(sg, u, v, m, d, mode: tl.constexpr):
    """Returns what v would become if the step were repeated: an element that would not be finite
    then was left unchanged by the update, unless a huge gradient made v."""
    if mode == FEEDBACK:
        v1 = v * d + sg
    elif mode == MOMENTUM:
        v1 = v + (u * m + sg)
    else:
        v1 = (v + (u + sg) * m) + sg
    return v1


@on_its_device
def undo_topk(segments: Sequence[UndoTopk]) -> int:
    for (dtype, mode), own in grouped(segments, _kind):
        _undo(columns_of(own), dtype, mode)
    return len(segments)


def _kind(one: UndoTopk) -> tuple[torch.dtype | None, int]:
    mode, _, _ = mode_of(one.momentum, one.nesterov, one.decay)
    return None if one.gradient is None else one.gradient.dtype, mode


def _undo(every: Any, dtype: torch.dtype | None, mode: int) -> None:
    """Launches the kernels. every: an `UndoTopk` with the columns of many. dtype: of gradients, or
    None without any."""
    sizes, ks = (tuple(map(Tensor.numel, x)) for x in (every.residual, every.indices))
    gradients = every.residual if dtype is None else plain(every.gradient)
    masks = map(all, zip(every.mask, (u is not None for u in every.velocity)))
    cleared = [x if mask else None for x, mask in zip(every.velocities, masks)]
    g, u, v, *taken = map(addresses, (gradients, *every[1:5], cleared))
    device = every.residual[0].device
    rows = rows_on(device, Columns(
        len(sizes), g, u, v, array("q", sizes), array("q", ks), *taken, 0, 0, *rules_of(every),
        *[0] * (WIDTH.value - 13),
    ))  # fmt: skip
    if any(ks):
        blocks = blocks_on(device, ks, ENTRIES)
        launch(restore, (blocks.shape[0],), rows, blocks, BLOCK=ENTRIES)
    if dtype is not None and any(sizes):
        blocks = blocks_on(device, sizes, BLOCK)
        launch(inverted, (blocks.shape[0],),
            rows, blocks, dtype=TYPES[dtype], mode=mode, aligned=all_aligned(g, u, v), BLOCK=BLOCK,
            num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
