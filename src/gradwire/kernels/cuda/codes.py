"""Quantizers: recurrences and Adam's step with the codes of what waits, and sums of codes.

Bytes for each element with an fp32 gradient, beside the code's: ef 12, momentum 20, adam 28.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.kernels.cuda.columns import NONE
from gradwire.kernels.cuda.device import (
    FEEDBACK,
    address,
    advanced,
    block_of,
    is_finite,
    number,
    read,
    write,
)
from gradwire.kernels.cuda.formats import Written, code_of, scale_of, written
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import (
    address_of,
    aligned,
    bits_of,
    blocks_on,
    on_its_device,
    rows_on,
)
from gradwire.kernels.cuda.update import mode_of
from gradwire.kernels.formats import Format
from gradwire.kernels.segments import AdamCodes, UpdateCodes
from gradwire.kernels.values import Noise

ADAM = tl.constexpr(4)
TILE = 2048
"""Elements of a program, which are whole blocks: so many that no register is spilled."""

G, U, V, N, CODES, SCALES, M, S, D, DICE1, DICE2, DICE3, MOST = (
    tl.constexpr(i) for i in range(13)
)
Q, BETA1, REST1, BETA2, REST2, ROOT, EPS, FACTOR = (tl.constexpr(i) for i in range(13, 21))
WIDTH = tl.constexpr(21)
"""Of adam, U and Q are the moments."""


class Coded(NamedTuple):
    """What one segment's codes are made of. numbers: of its recurrence, or of Adam's step."""

    g: Tensor
    u: Tensor | None
    q: Tensor | None
    v: Tensor
    codes: Tensor
    scales: Tensor
    noise: Noise
    numbers: tuple[float, ...]


@triton.jit
def stepped(row, g, m, q, v):
    """Adam's step: moments, what waits, and whether all would be finite; where not, all are
    kept."""
    d = g * number(tl.load(row + S))
    m1 = m * number(tl.load(row + BETA1)) + d * number(tl.load(row + REST1))
    q1 = q * number(tl.load(row + BETA2)) + d * d * number(tl.load(row + REST2))
    size = tl.sqrt_rn(q1) * number(tl.load(row + ROOT)) + number(tl.load(row + EPS))
    v1 = v + tl.div_rn(m1, size) * number(tl.load(row + FACTOR))
    good = is_finite(v1) & is_finite(m1) & is_finite(q1)
    return tl.where(good, m1, m), tl.where(good, q1, q), tl.where(good, v1, v), good


@triton.jit
def waiting(
    row, i, n, whole, status, dtype: tl.constexpr, mode: tl.constexpr, aligned: tl.constexpr
):
    """What is to be coded of elements i, and the state before that, where there is one."""
    x = read(address(tl.load(row + G), dtype, aligned), i, n, whole)
    good = is_finite(x)
    if mode == NONE:
        x = tl.where(good, x, 0.0)
    else:
        v = read(address(tl.load(row + V), tl.float32, aligned), i, n, whole)
        if mode == FEEDBACK:
            u, x, good = advanced(
                x, v, v, 0.0, number(tl.load(row + S)), number(tl.load(row + D)), mode
            )
        else:
            pu = address(tl.load(row + U), tl.float32, aligned)
            u = read(pu, i, n, whole)
            if mode == ADAM:
                pq = address(tl.load(row + Q), tl.float32, aligned)
                u, q, x, good = stepped(row, x, u, read(pq, i, n, whole), v)
                write(pq, i, q, n, whole)
            else:
                m, s = number(tl.load(row + M)), number(tl.load(row + S))
                u, x, good = advanced(x, u, v, m, s, 1.0, mode)
            write(pu, i, u, n, whole)
    bad = tl.max((~good & (i < n)).to(tl.int32))
    if bad != 0:
        tl.atomic_or(status, tl.full([], 1, tl.int64))
    return x


@triton.jit
def encode(
    rows,
    blocks,
    ends,
    status,
    dtype: tl.constexpr,
    mode: tl.constexpr,
    way: tl.constexpr,
    bits: tl.constexpr,
    steps: tl.constexpr,
    aligned: tl.constexpr,
    B: tl.constexpr,
    R: tl.constexpr,
):
    """The recurrence, the codes of what waits then, and these out of it, in one pass."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    n = tl.load(row + N).to(tl.int32)
    i = first + tl.arange(0, R)[:, None] * B + tl.arange(0, B)[None, :]
    whole = first <= n - R * B
    x = waiting(row, i, n, whole, status, dtype, mode, aligned)
    block = first // B + tl.arange(0, R)[:, None]
    m = tl.minimum(tl.maximum(n - block * B, 1), B)
    by, scale, top = scale_of(x, m, number(tl.load(row + MOST)), way, steps, R, B)
    scales = address(tl.load(row + SCALES), tl.float32, False)
    tl.store(scales + block, scale, mask=block * B < n)
    if tl.max((~is_finite(top)).to(tl.int32)) != 0:
        tl.atomic_or(status, tl.full([], 1, tl.int64))
    first1, first2 = tl.load(row + DICE1), tl.load(row + DICE2)
    code, value = code_of(x, by, i, first1, first2, tl.load(row + DICE3), way, steps)
    codes = address(tl.load(row + CODES), tl.uint8, aligned)
    parts: tl.constexpr = 8 // bits
    J: tl.constexpr = B // parts
    if mode != NONE:
        write(
            address(tl.load(row + V), tl.float32, aligned), i, x + value * (scale * -1.0), n, whole
        )
    if bits == 8:
        write(codes, i, (code & 255).to(tl.uint8), n, whole)
    else:
        shifts = tl.arange(0, parts)[None, :, None] * bits
        packed = tl.sum(tl.reshape(code, [R, parts, J]) << shifts, 1).to(tl.uint8)
        at = block * J + tl.arange(0, J)[None, :]
        tl.store(codes + at, packed, mask=block * B <= n - B)
        if (n % B != 0) & ~whole:  # the last block's parts are shorter
            last = n // B
            here = ends + segment * B
            e = tl.arange(0, B)[None, :] + 0 * block
            tl.store(here + e, code.to(tl.uint8), mask=(block == last) & (i < n))
            tl.debug_barrier()
            size = (n % B + parts - 1) // parts
            j, p = tl.arange(0, J)[None, :], tl.arange(0, parts)[:, None]
            on = (j < size) & (p * size + j < n % B)
            c = tl.load(here + p * size + j, mask=on, other=0).to(tl.int32)
            byte = tl.sum(c << (p * bits), 0).to(tl.uint8)
            j = tl.arange(0, J)
            tl.store(codes + last * J + j, byte, mask=j < size)


def encode_all(
    segments: Sequence[Coded], form: Written, mode: int, most: float, status: Tensor
) -> None:
    """One launch; gradients are of one dtype."""
    device = status.device
    sizes = tuple(one.g.numel() for one in segments)
    blocks = blocks_on(device, sizes, TILE)
    table = rows_on(device, [_row(one, n, mode, most) for one, n in zip(segments, sizes)])
    ends = torch.empty((len(segments), form.block), dtype=torch.uint8, device=device)
    encode[(blocks.shape[0],)](
        table, blocks, ends, status, dtype=TYPES[segments[0].g.dtype], mode=mode, way=form.way,
        bits=form.bits, steps=form.steps, B=form.block, R=TILE // form.block,
        num_warps=8,
        aligned=all(aligned(one.g, one.u, one.q, one.v, one.codes) for one in segments),
        enable_fp_fusion=False,
    )  # fmt: skip


def _row(one: Coded, n: int, mode: int, most: float) -> list[int]:
    m = [bits_of(x) for x in one.numbers[:3]] if mode != ADAM.value else [0, 0, 0]
    more = [0] * 8
    if mode == ADAM.value:
        scale, *others = map(bits_of, one.numbers)
        m, more = [0, scale, 0], [address_of(one.q), *others]
    return [
        *map(address_of, (one.g, one.u, one.v)), n, *map(address_of, (one.codes, one.scales)), *m,
        *one.noise, bits_of(most), *more,
    ]  # fmt: skip


@on_its_device
def encode_codes(
    form: Format, x: Tensor, codes: Tensor, scales: Tensor, status: Tensor, noise: Noise,
    clip: float | None,
) -> None:  # fmt: skip
    known = written(form)
    if known is None:
        twins.encode_codes(form, x, codes, scales, status, noise, clip)
        return
    x = x.detach().contiguous()
    one = Coded(x, None, None, x, codes, scales, noise, (0.0, 1.0, 1.0))
    encode_all([one], known, NONE.value, form.most_scale, status)


@on_its_device
def update_codes(segments: Sequence[UpdateCodes], status: Tensor) -> None:
    groups: dict[Any, list[UpdateCodes]] = {}
    for one in segments:
        mode, *_ = mode_of(one.momentum, one.nesterov, one.decay)
        groups.setdefault((one.form, one.gradient.dtype, mode), []).append(one)
    for (form, _, mode), own in groups.items():
        known = written(form)
        if known is None:
            twins.update_codes(own, status)
        else:
            encode_all([_of_update(one) for one in own], known, mode, form.most_scale, status)


def _of_update(one: UpdateCodes) -> Coded:
    _, m, d = mode_of(one.momentum, one.nesterov, one.decay)
    if one.journal is not None:
        one.journal.clear()  # nothing is kept here: undone to rounding
    return Coded(
        one.gradient.detach().contiguous(), one.velocity, None, one.residual, one.codes,
        one.scales, one.noise, (m, one.scale, d),
    )  # fmt: skip


@on_its_device
def adam_codes(segments: Sequence[AdamCodes], status: Tensor) -> None:
    groups: dict[Any, list[AdamCodes]] = {}
    for one in segments:
        groups.setdefault((one.form, one.g.dtype), []).append(one)
    for (form, _), own in groups.items():
        known = written(form)
        if known is None:
            twins.adam_codes(own, status)
        else:
            encode_all([_of_adam(one) for one in own], known, ADAM.value, form.most_scale, status)


def _of_adam(one: AdamCodes) -> Coded:
    m, q = one.moments
    return Coded(
        one.g.detach().contiguous(), m, q, one.v, one.codes, one.scales, one.noise,
        tuple(one.how),
    )  # fmt: skip
