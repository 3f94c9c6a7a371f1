"""Adam's step, and its inverse, of many parameters in one launch.

Bytes for each element with an fp32 gradient: 28.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import (
    address,
    block_of,
    is_finite,
    number,
    raise_if,
    read,
    write,
)
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import (
    Columns,
    addresses,
    all_aligned,
    bits_of_many,
    blocks_on,
    columns_of,
    grouped,
    on_its_device,
    plain,
    rows_on,
)
from gradwire.kernels.values import AdamStep, Moments

BLOCK = 2048
"""Elements of a program: with more, threads need so many registers that one runs at a time."""
G, M, Q, V, N, HOW = (tl.constexpr(i) for i in range(6))
WIDTH = tl.constexpr(13)
"""The columns of a row. HOW: the first of an `AdamStep`'s eight numbers."""


class Step(NamedTuple):
    """The arguments of one parameter's step."""

    g: Tensor
    moments: Moments
    v: Tensor
    how: AdamStep


@triton.jit
def moved(how, m, q):
    """Returns the step that follows from the moments."""
    return tl.div_rn(m, tl.sqrt_rn(q) * how[5] + how[6]) * how[7]


@triton.jit
def stepped(how, g, m, q, v):
    """Returns moments and residual after Adam's step, and whether all would be finite; where not,
    all three are unchanged."""
    d = g * how[0]
    m1 = m * how[1] + d * how[2]
    q1 = q * how[3] + d * d * how[4]
    v1 = v + moved(how, m1, q1)
    good = is_finite(v1) & is_finite(m1) & is_finite(q1)
    return tl.where(good, m1, m), tl.where(good, q1, q), tl.where(good, v1, v), good


@triton.jit
def unstepped(how, g, m, q, v):
    """Returns moments and residual as before a step; elements that it left unchanged stay so."""
    d = g * how[0]
    first, second = d * how[2], d * d * how[4]
    v0 = v - moved(how, m, q)
    good = is_finite(v0) & is_finite(m * how[1] + first) & is_finite(q * how[3] + second)
    m0 = tl.div_rn(m - first, tl.zeros_like(m) + how[1])
    q0 = tl.div_rn(q - second, tl.zeros_like(q) + how[3])
    m0 = tl.where(is_finite(m0), m0, 0.0)
    q0 = tl.where(is_finite(q0) & (q0.to(tl.int32, bitcast=True) >= 0), q0, 0.0)
    return tl.where(good, m0, m), tl.where(good, q0, q), tl.where(good, v0, v), good


@triton.jit
def step_all(
    rows, blocks, status, dtype: tl.constexpr, undoes: tl.constexpr, aligned: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Runs a step, or its inverse. Only a step raises the status where something is not finite."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    n = tl.load(row + N).to(tl.int32)
    i, whole = first + tl.arange(0, BLOCK), first <= n - BLOCK
    how = ()
    for at in tl.static_range(8):
        how = how + (number(tl.load(row + HOW + at)),)  # type: ignore[assignment]  # noqa: RUF005
    m_at = address(tl.load(row + M), tl.float32, aligned)
    q_at = address(tl.load(row + Q), tl.float32, aligned)
    v_at = address(tl.load(row + V), tl.float32, aligned)
    g = read(address(tl.load(row + G), dtype, aligned), i, n, whole)
    m, q, v = read(m_at, i, n, whole), read(q_at, i, n, whole), read(v_at, i, n, whole)
    if undoes:
        m, q, v, good = unstepped(how, g, m, q, v)
    else:
        m, q, v, good = stepped(how, g, m, q, v)
        raise_if(status, ~good & (i < n))
    write(m_at, i, m, n, whole)
    write(q_at, i, q, n, whole)
    write(v_at, i, v, n, whole)


def steps(segments: Sequence[Step], status: Tensor | None) -> None:
    """Runs the step of each segment; with status None the inverse."""
    for dtype, own in grouped(segments, lambda one: one.g.dtype):
        every, device = columns_of(own), own[0].v.device
        gradients, sizes = plain(every.g), tuple(map(Tensor.numel, every.g))
        at = list(map(addresses, (gradients, *zip(*every.moments), every.v)))
        table = rows_on(
            device, Columns(len(own), *at, sizes, *map(bits_of_many, zip(*every.how)))
        )  # fmt: skip
        blocks = blocks_on(device, sizes, BLOCK)
        launch(step_all, (blocks.shape[0],),
            table, blocks, table if status is None else status, dtype=TYPES[dtype],
            undoes=status is None, BLOCK=BLOCK, num_warps=8, enable_fp_fusion=False,
            aligned=all_aligned(*at),
        )  # fmt: skip


@on_its_device
def adam(g: Tensor, moments: Moments, v: Tensor, how: AdamStep, status: Tensor) -> None:
    steps([Step(g, moments, v, how)], status)


@on_its_device
def undo_adam(g: Tensor, moments: Moments, v: Tensor, how: AdamStep) -> None:
    steps([Step(g, moments, v, how)], None)
