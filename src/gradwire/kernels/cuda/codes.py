"""Quantizers: recurrences and Adam's step with the codes of the residual.

Bytes for each element with an fp32 gradient, besides the code's: ef 12, momentum 20, adam 28.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.kernels.cuda.adam_steps import Step, stepped, steps
from gradwire.kernels.cuda.columns import NONE, hint_at
from gradwire.kernels.cuda.device import (
    FEEDBACK,
    address,
    advanced,
    block_of,
    is_finite,
    number,
    widened,
)
from gradwire.kernels.cuda.formats import (
    QUARTERS,
    SIGNS,
    Written,
    code_of,
    gathered,
    scale_of,
    unit_of,
    written,
)
from gradwire.kernels.cuda.kept import Shelf, limit_of, ordered, put_aside, shelf_of
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.powers import pack_powers
from gradwire.kernels.cuda.selection import TYPES, hints_of, mode_of, rules_of
from gradwire.kernels.cuda.signs import pack_signs
from gradwire.kernels.cuda.sums import add_many_codes
from gradwire.kernels.cuda.tables import (
    Column,
    Columns,
    addresses,
    all_aligned,
    are_alike,
    bits_of,
    bits_of_many,
    blocks_on,
    columns_of,
    grouped,
    on_its_device,
    plain,
    rows_on,
)
from gradwire.kernels.cuda.ternary import pack_ternary
from gradwire.kernels.cuda.update import update_topk
from gradwire.kernels.formats import POWERS, SIGNS1, SIGNS2, TERNARY, Format
from gradwire.kernels.formats import SIGNS as SIGNS_ALONE
from gradwire.kernels.segments import AdamCodes, EncodeCodes, UpdateCodes, without_codes
from gradwire.kernels.values import SILENCE, Noise

ADAM = tl.constexpr(4)
TILE = 2048
"""Elements of a program, in whole blocks, for formats with a byte for each element."""
PIECE = 512
"""Elements that 4 warps work on at once, for formats with fewer bits: 4 neighbours per thread."""

G, U, V, N, CODES, SCALES, M, S, D, DICE1, DICE2, DICE3, MOST = (
    tl.constexpr(i) for i in range(13)
)
Q, BETA1, REST1, BETA2, REST2, ROOT, EPS, FACTOR = (tl.constexpr(i) for i in range(13, 21))
HINT, KEPT = tl.constexpr(21), tl.constexpr(23)
WIDTH = tl.constexpr(27)
"""The columns of a row. For Adam, U and Q are the moments. From HINT on: for recurrences, as in a
selection's rows."""


class Coded(NamedTuple):
    """The tensors and numbers of many segments to encode, field by field.

    numbers: columns M, S and D, and those from BETA1 to FACTOR, if any. u, q: None for a segment
    that has none. hints: columns HINT and the next. shelf: for segments that keep old blocks.
    """

    g: Sequence[Tensor]
    u: Sequence[Tensor | None]
    q: Sequence[Tensor | None]
    v: Sequence[Tensor]
    codes: Sequence[Tensor]
    scales: Sequence[Tensor]
    noise: Sequence[Noise]
    numbers: Sequence[Column]
    hints: tuple[Column, Column] = (0, 0)
    shelf: Shelf | None = None


@triton.jit
def told(row, mode: tl.constexpr):
    """Returns the numbers of a row that its recurrence, or Adam's step, uses. They are loaded once
    here, as the compiler would load them again after every store."""
    s = number(tl.load(row + S))
    how = number(tl.load(row + M)), s, 1.0
    if mode == FEEDBACK:
        how = 0.0, s, number(tl.load(row + D))
    if mode == ADAM:
        how = (  # type: ignore[assignment]
            s, number(tl.load(row + BETA1)), number(tl.load(row + REST1)),
            number(tl.load(row + BETA2)), number(tl.load(row + REST2)),
            number(tl.load(row + ROOT)), number(tl.load(row + EPS)),
            number(tl.load(row + FACTOR)),
        )  # fmt: skip
    return how


@triton.jit
def tensors(row, dtype: tl.constexpr, aligned: tl.constexpr):
    """Returns the addresses of a row's gradient, residual, and velocity or moments."""
    return (
        address(tl.load(row + G), dtype, aligned),
        address(tl.load(row + V), tl.float32, aligned),
        address(tl.load(row + U), tl.float32, aligned),
        address(tl.load(row + Q), tl.float32, aligned),
    )


@triton.jit
def present(at, i, on, mode: tl.constexpr):
    """Loads gradient and state of elements i; the gradient stands in for state that a recurrence
    does not have."""
    x = widened(tl.load(at[0] + i, mask=on, other=0.0))
    v, u, q = x, x, x
    if mode != NONE:
        v = tl.load(at[1] + i, mask=on, other=0.0)
        if mode != FEEDBACK:
            u = tl.load(at[2] + i, mask=on, other=0.0)
        if mode == ADAM:
            q = tl.load(at[3] + i, mask=on, other=0.0)
    return x, v, u, q


@triton.jit
def waiting(at, how, now, i, on, mode: tl.constexpr):
    """Returns the values to encode for elements i, the new velocity, and whether they would be
    finite. For Adam the moments are written."""
    x, v, u, q = now
    good = is_finite(x)
    if mode == NONE:
        x = tl.where(good, x, 0.0)
    elif mode == ADAM:
        u, q, x, good = stepped(how, x, u, q, v)
        tl.store(at[3] + i, q, mask=on)
        tl.store(at[2] + i, u, mask=on)
    else:
        u, x, good = advanced(x, u, v, how[0], how[1], how[2], mode)
    return x, u, good


@triton.jit
def within(block, i, n, whole: tl.constexpr, B: tl.constexpr):
    """Returns the mask of valid elements. One that is constant in a row keeps loads wide."""
    if whole:  # noqa: SIM108 - no expression: both would be compiled as one
        on = block * B <= n - B
    else:
        on = i < n
    return on


@triton.jit
def write_pieces(
    p, pieces, block, i, n, whole: tl.constexpr, B: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    for q in tl.static_range(B // C):
        e = i + q * C
        tl.store(p + e, pieces[q], mask=within(block, e, n, whole, B))


@triton.jit
def write_codes(
    row, v, pieces, block, i, first, n, here, by, taken, whole: tl.constexpr, mode: tl.constexpr,
    way: tl.constexpr, bits: tl.constexpr, steps: tl.constexpr, aligned: tl.constexpr,
    B: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Writes the codes of pieces, and v without what they decode to, if there is a v."""
    parts: tl.constexpr = 8 // bits
    J: tl.constexpr = B // parts
    dice1, dice2, dice3 = tl.load(row + DICE1), tl.load(row + DICE2), tl.load(row + DICE3)
    codes = address(tl.load(row + CODES), tl.uint8, aligned)
    for h in tl.static_range(J // C):
        byte = tl.zeros([R, C], tl.int32)
        for p in tl.static_range(parts):
            x = pieces[p * (J // C) + h]
            e = i + (p * J + h * C)
            on = within(block, e, n, whole, B)
            code, value = code_of(x, by, e, dice1, dice2, dice3, way, steps)
            if mode != NONE:
                tl.store(v + e, x + value * taken, mask=on)
            if whole | (bits == 8):
                byte = byte | ((code & ((1 << bits) - 1)) << (p * bits))
            else:
                tl.store(here + (e - first), code.to(tl.uint8), mask=on)
        if whole | (bits == 8):
            at = block * J + (h * C + tl.arange(0, C)[None, :])
            tl.store(codes + at, byte.to(tl.uint8), mask=on)
    if (not whole) & (bits < 8):
        pack_last(codes, here, n, bits, B)


@triton.jit
def encode_blocks(
    row, first, n, here, status, keeps, whole: tl.constexpr, dtype: tl.constexpr,
    mode: tl.constexpr, way: tl.constexpr, bits: tl.constexpr, steps: tl.constexpr,
    aligned: tl.constexpr, B: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Encodes those of R blocks that are whole, or one that is not, in pieces of C columns. here:
    a buffer for the codes of the latter. keeps: whether the old state of TILE elements, or what is
    left of n, is saved if a gradient is far larger (found: 1; 2: not finite). Returns whether it
    still is to be saved."""
    block = first // B + tl.arange(0, R)[:, None]
    i = block * B + tl.arange(0, C)[None, :]
    given, how = tensors(row, dtype, aligned), told(row, mode)
    now = present(given, i, within(block, i, n, whole, B), mode)
    top, found, pieces, us = tl.zeros([R, C], tl.float32), (i < 0).to(tl.int32), (), ()
    recurs: tl.constexpr = (mode != NONE) & (mode != ADAM)
    limit = 0
    if recurs:  # noqa: SIM102 - known when compiled, and the next is not
        if keeps:
            limit = limit_of(hint_at(row + HINT, 0), first, n, given[1], TILE)
    for q in tl.static_range(B // C):
        e = i + q * C
        following = now
        if (q + 1) * C < B:  # loaded before this one is written
            following = present(given, e + C, within(block, e + C, n, whole, B), mode)
        on = within(block, e, n, whole, B)
        if not whole:  # several threads may have the same element: all read before one writes
            tl.debug_barrier()
        if recurs:
            found = found | (keeps & (ordered(now[0] * how[1]) >= limit)).to(tl.int32)
        x, u, good = waiting(given, how, now, e, on, mode)
        now = following
        pieces = pieces + (x,)  # type: ignore[assignment]  # noqa: RUF005 - as Triton has it
        us = us + (u,)  # type: ignore[assignment]  # noqa: RUF005
        found = found | ((~good & on).to(tl.int32) << 1)
        top = gathered(top, x, way)
    m = B if whole else n - first
    by, scale, top = scale_of(top, m, number(tl.load(row + MOST)), way, steps, R)
    scales = address(tl.load(row + SCALES), tl.float32, False)
    tl.store(scales + block, scale, mask=block * B < (n - B + 1 if whole else n))
    worst = tl.max(found | ((~is_finite(top)).to(tl.int32) << 1))
    if worst > 1:
        tl.atomic_or(status, tl.full([], 1, tl.int64))
    if recurs:  # noqa: SIM102 - known when compiled, and the next is not
        if keeps & (worst != 0):
            put_aside(row + KEPT, first, n, given[2], given[1], mode, TILE)
            keeps = n < 0
    if ((way == SIGNS) | (way == QUARTERS)) & whole:
        # This load reads nothing. A sum over lanes gives each thread a whole row, and the compiler
        # would keep this layout; but it takes the layout of what was loaded last.
        zero = tl.load(given[1] + i, mask=i < 0, other=0.0)
        by, scale = by + zero, scale + zero
    if not whole:
        tl.debug_barrier()
    if recurs & (mode != FEEDBACK):
        write_pieces(given[2], us, block, i, n, whole, B, C)
    write_codes(
        row, given[1], pieces, block, i, first, n, here, by, unit_of(scale * -1.0, way), whole,
        mode, way, bits, steps, aligned, B, R, C,
    )  # fmt: skip
    return keeps


@triton.jit
def pack_last(codes, here, n, bits: tl.constexpr, B: tl.constexpr):
    """Writes the bytes of the last block, whose parts are shorter, from the codes in `here`."""
    parts: tl.constexpr = 8 // bits
    J: tl.constexpr = B // parts
    tl.debug_barrier()
    m = n % B
    size = (m + parts - 1) // parts
    j, p = tl.arange(0, J)[None, :], tl.arange(0, parts)[:, None]
    on = (j < size) & (p * size + j < m)
    c = tl.load(here + p * size + j, mask=on, other=0).to(tl.int32)
    byte = tl.sum(c << (p * bits), 0).to(tl.uint8)
    j = tl.arange(0, J)
    tl.store(codes + n // B * J + j, byte, mask=j < size)


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
    C: tl.constexpr,
):
    """Runs the recurrence, encodes the residual, and subtracts what was encoded, in one pass."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    n = tl.load(row + N).to(tl.int32)
    here, keeps = ends + segment * B, tl.load(row + KEPT) != 0
    last = n // B * B
    if first < last:
        keeps = encode_blocks(
            row, first, n, here, status, keeps, True, dtype, mode, way, bits, steps, aligned, B, R,
            C, R * B,
        )  # fmt: skip
    if (first <= last) & (last < n) & (last < first + R * B):
        encode_blocks(
            row, last, n, here, status, keeps, False, dtype, mode, way, bits, steps, aligned, B, 1,
            C, R * B,
        )  # fmt: skip


def shape_of(form: Written) -> tuple[int, int]:
    """Returns the blocks of a program, and the columns that it works on at once."""
    together = TILE // form.block if form.bits == 8 else PIECE // form.columns
    return together, form.columns


def tile_of(form: Written) -> int:
    """Returns the elements of a program."""
    return shape_of(form)[0] * form.block


def encode_all(many: Coded, form: Written, mode: int, most: float, status: Tensor) -> None:
    """Encodes many segments in one launch; their gradients have one dtype."""
    device, gradients = status.device, plain(many.g)
    sizes = tuple(map(Tensor.numel, gradients))
    together, columns = shape_of(form)
    blocks, shelf = blocks_on(device, sizes, tile_of(form)), many.shelf
    g, u, q, v, codes, scales = map(addresses, (gradients, *many[1:6]))
    dice = (0, 0, 0) if are_alike(many.noise, (SILENCE, many.noise[0])) else zip(*many.noise)
    table = rows_on(device, Columns(
        len(sizes), g, u, v, sizes, codes, scales, *many.numbers[:3], *dice, bits_of(most), q,
        *(many.numbers[3:] or (0,) * 7), *many.hints,
        *((0, 0, 0, 0) if shelf is None else shelf.columns()),
    ))  # fmt: skip
    if shelf is not None:
        shelf.table = table
    ends = torch.empty((len(sizes), form.block), dtype=torch.uint8, device=device)
    launch(encode, (blocks.shape[0],),
        table, blocks, ends, status, dtype=TYPES[gradients[0].dtype], mode=mode, way=form.way,
        bits=form.bits, steps=form.steps, B=form.block, R=together, C=columns,
        num_warps=8 if form.bits == 8 else 4, aligned=all_aligned(g, u, q, v, codes),
        enable_fp_fusion=False,
    )  # fmt: skip


@on_its_device
def encode_codes(
    form: Format, x: Tensor, codes: Tensor, scales: Tensor, status: Tensor, noise: Noise,
    clip: float | None,
) -> None:  # fmt: skip
    encode_many_codes([EncodeCodes(form, x, codes, scales, noise, clip)], status)


@on_its_device
def encode_many_codes(segments: Sequence[EncodeCodes], status: Tensor) -> None:
    for (form, _), own in grouped(segments, lambda one: (one.form, one.x.dtype)):
        known = written(form)
        if form.mantissa is not None:
            twins.encode_many_codes(own, status)
        elif known is None:
            _PACKS[form](_contiguous(own), status)
        else:
            encode_all(_as_they_are(columns_of(own)), known, NONE.value, form.most_scale, status)


def _contiguous(segments: Sequence[EncodeCodes]) -> Sequence[EncodeCodes]:
    if all(one.x.is_contiguous() for one in segments):
        return segments
    return [one._replace(x=one.x.detach().contiguous()) for one in segments]


_PACKS = {
    SIGNS_ALONE: pack_signs, SIGNS1: pack_signs, SIGNS2: pack_signs, POWERS: pack_powers,
    TERNARY: pack_ternary,
}  # fmt: skip
"""The functions for formats that no kernel fuses with a recurrence."""


def _as_they_are(every: Any) -> Coded:
    nothing, one = (None,) * len(every.x), bits_of(1.0)
    return Coded(
        every.x, nothing, nothing, every.x, every.codes, every.scales, every.noise, (0, one, one)
    )  # fmt: skip


@on_its_device
def update_codes(segments: Sequence[UpdateCodes], status: Tensor) -> None:
    if not segments:
        return
    every = columns_of(segments)
    alike = are_alike(
        every.form, [g.dtype for g in every.gradient], every.momentum, every.nesterov
    )
    groups = [(_kind(segments[0]), segments)] if alike else grouped(segments, _kind)
    for (form, _, mode), own in groups:
        known = written(form)
        if known is None:
            update_topk(without_codes(own), status)
            send([_of_what_waits(one) for one in own], status)
        else:
            encode_all(_of_updates(columns_of(own), known), known, mode, form.most_scale, status)


def _kind(one: UpdateCodes) -> tuple[Format, torch.dtype, int]:
    mode, *_ = mode_of(one.momentum, one.nesterov, one.decay)
    return one.form, one.gradient.dtype, mode


def _of_what_waits(one: UpdateCodes) -> EncodeCodes:
    return EncodeCodes(one.form, one.residual, one.codes, one.scales, one.noise, one.clip)


def send(segments: Sequence[EncodeCodes], status: Tensor) -> None:
    """Encodes the residuals, x, and subtracts what was encoded: for formats that know their scales
    late."""
    encode_many_codes(segments, status)
    add_many_codes([one[:4] for one in segments], -1.0)


def _of_updates(every: Any, form: Written) -> Coded:
    nothing, device = (None,) * len(every.residual), every.residual[0].device
    sizes = tuple(map(Tensor.numel, every.residual))
    return Coded(
        every.gradient, every.velocity, nothing, every.residual, every.codes, every.scales,
        every.noise, tuple(rules_of(every)), hints_of(every.hint, device),
        shelf_of(every, sizes, device, tile_of(form)),
    )  # fmt: skip


@on_its_device
def adam_codes(segments: Sequence[AdamCodes], status: Tensor) -> None:
    for (form, _), own in grouped(segments, lambda one: (one.form, one.g.dtype)):
        known = written(form)
        if known is None:
            steps([Step(one.g, one.moments, one.v, one.how) for one in own], status)
            send([EncodeCodes(form, one.v, *one[5:]) for one in own], status)
        else:
            encode_all(_of_adam(columns_of(own)), known, ADAM.value, form.most_scale, status)


def _of_adam(every: Any) -> Coded:
    m, q = zip(*every.moments)
    scale, *others = map(bits_of_many, zip(*every.how))
    return Coded(
        every.g, m, q, every.v, every.codes, every.scales, every.noise, (0, scale, 0, *others)
    )  # fmt: skip
