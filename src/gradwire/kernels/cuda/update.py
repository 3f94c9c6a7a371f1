"""Accumulate, select, clear: a sparsifying feedback's step for all parameters of a bucket, and its
inverse.

Bytes for each element with an fp32 gradient: dgc 20 and 3/8, ef 12 and 3/8, and a few for each
candidate. The inverse: 20 and 12.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda import selection
from gradwire.kernels.cuda.columns import BLOCK, NONE
from gradwire.kernels.cuda.device import (
    FEEDBACK,
    MOMENTUM,
    is_finite,
    part_of,
    read,
    write,
)
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.selection import TYPES, mode_of
from gradwire.kernels.cuda.tables import are_alike, columns_of, grouped, on_its_device
from gradwire.kernels.segments import UpdateTopk
from gradwire.kernels.values import Hint


@on_its_device
def update_topk(segments: Sequence[UpdateTopk], status: Tensor) -> Sequence[Hint]:
    every = columns_of(segments)
    small = selection.are_small(every)
    alike = [g.dtype for g in every.gradient], every.momentum, every.nesterov, every.mask, small
    if are_alike(*alike):
        return selection.run(every, *_kind(segments[0])[1:], status)
    hints: dict[int, Hint] = {}
    numbered = zip(small, range(len(segments)), segments)
    for (_, (_, mode, mask)), members in grouped(numbered, lambda x: (x[0], _kind(x[2]))):
        own = columns_of([one for *_, one in members])
        hints.update(zip((i for _, i, _ in members), selection.run(own, mode, mask, status)))
    return [hints[i] for i in range(len(segments))]


def _kind(one: UpdateTopk) -> tuple[torch.dtype, int, bool]:
    mode, _, _ = mode_of(one.momentum, one.nesterov, one.decay)
    return one.gradient.dtype, mode, one.mask


@on_its_device
def topk(x: Tensor, k: int, indices: Tensor, values: Tensor, status: Tensor, hint: Hint) -> Hint:
    x = x.detach().contiguous()
    one = UpdateTopk(x, None, x, k, indices, values, None, None, hint=hint)
    (found,) = selection.run(columns_of([one]), NONE.value, False, status)
    return found.view()


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
