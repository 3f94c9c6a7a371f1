"""Accumulate, select, clear: a sparsifying feedback's step for all parameters of a bucket, and its
inverse.

Bytes for each element with an fp32 gradient: dgc 20 and 3/8, ef 12 and 3/8, and a few for each
candidate. The inverse: 20 and 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda import selection
from gradwire.kernels.cuda.columns import BLOCK, NONE
from gradwire.kernels.cuda.device import (
    FEEDBACK,
    MOMENTUM,
    NESTEROV,
    is_finite,
    part_of,
    read,
    write,
)
from gradwire.kernels.cuda.kept import Blocks
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.selection import TYPES, Selection
from gradwire.kernels.cuda.tables import on_its_device
from gradwire.kernels.segments import UpdateTopk
from gradwire.kernels.values import Hint


def mode_of(momentum: float | None, nesterov: bool, decay: float) -> tuple[int, float, float]:
    """The recurrence's number, and what it multiplies its velocity and its residual with."""
    if momentum is None:
        return FEEDBACK.value, 0.0, decay
    return (NESTEROV if nesterov else MOMENTUM).value, momentum, 1.0


@on_its_device
def update_topk(segments: Sequence[UpdateTopk], status: Tensor) -> Sequence[Hint]:
    groups: dict[Any, list[int]] = {}
    for i, one in enumerate(segments):
        mode, *_ = mode_of(one.momentum, one.nesterov, one.decay)
        groups.setdefault((one.gradient.dtype, mode, one.mask), []).append(i)
    hints: dict[int, Tensor] = {}
    for (_, mode, mask), members in groups.items():
        found = selection.run([_selection(segments[i]) for i in members], mode, mask, status)
        hints.update(zip(members, found))
    return [hints[i] for i in range(len(segments))]


def _selection(one: UpdateTopk) -> Selection:
    _, m, d = mode_of(one.momentum, one.nesterov, one.decay)
    kept = None
    if one.journal is not None:
        kept = Blocks(one.residual.numel(), one.velocity is not None, one.residual.device)
        one.journal.keep(kept)
    return Selection(
        one.gradient.detach().contiguous(), one.velocity, one.residual, one.k, one.indices,
        one.values, one.velocities, one.hint, (m, one.scale, d), kept,
    )  # fmt: skip


@on_its_device
def topk(x: Tensor, k: int, indices: Tensor, values: Tensor, status: Tensor, hint: Hint) -> Hint:
    x = x.detach().contiguous()
    one = Selection(x, None, x, k, indices, values, None, hint)
    (found,) = selection.run([one], NONE.value, False, status)
    return found


@triton.jit
def inverted(g, u, v, n, m, s, d, dtype: tl.constexpr, mode: tl.constexpr, BLOCK: tl.constexpr):
    i, whole = part_of(n, BLOCK)
    sg = read(g, i, n, whole) * s
    v1 = read(v, i, n, whole)
    u1 = v1
    if mode != FEEDBACK:
        u1 = read(u, i, n, whole)
    good = is_finite(step_of(sg, u1, v1, m, d, mode))
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
    """What v would become if the step were repeated: an element that would not be finite then was
    kept by the update."""
    if mode == FEEDBACK:
        v1 = v * d + sg
    elif mode == MOMENTUM:
        v1 = v + (u * m + sg)
    else:
        v1 = (v + (u + sg) * m) + sg
    return v1


@on_its_device
def invert(
    gradient: Tensor, velocity: Tensor | None, residual: Tensor, *, momentum: float | None,
    nesterov: bool, scale: float, decay: float,
) -> None:  # fmt: skip
    g, n = gradient.detach().contiguous(), gradient.numel()
    mode, m, d = mode_of(momentum, nesterov, decay)
    if n:
        launch(inverted, (-(-n // BLOCK),),
            g, residual if velocity is None else velocity, residual, n, m, scale, d,
            dtype=TYPES[g.dtype], mode=mode, BLOCK=BLOCK, num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
