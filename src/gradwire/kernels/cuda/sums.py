"""Sums of codes: each program owns a part of the result and adds payload after payload, in list
order, so that the bits do not depend on the order in which programs run.

Bytes for each element of the result: 4 for fp32, and those of every payload: 1 for int8, 1/2 for 4
bits.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.kernels.cuda import powers, signs, ternary
from gradwire.kernels.cuda.device import address, block_of, number, rounded, widened
from gradwire.kernels.cuda.formats import (
    FLOAT2,
    FLOAT3,
    INNER,
    LEVELS,
    OUTER,
    SIGNS,
    from_float8,
    unit_of,
    value_of,
    written,
)
from gradwire.kernels.cuda.held import hold_back, tell
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.payloads import (
    BY,
    COUNT,
    FIRST,
    MOST,
    OUT,
    SCALES,
    WIDTH,
    N,
    quotient,
)
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import (
    Columns,
    addresses,
    all_aligned,
    bits_of,
    bits_of_many,
    blocks_on,
    columns_of,
    grouped,
    on_its_device,
    tables_on,
)
from gradwire.kernels.formats import POWERS, TERNARY, Format
from gradwire.kernels.segments import SumCodes

TILE = 2048
"""Elements at a time: with more, threads need so many registers that few programs run at once."""
TURNS = 4
"""The number of tiles of a program."""
CHUNK = 1024
"""The number of scales of each payload that a program checks."""
AT_ONCE = 8
"""The most payloads whose loads are issued before the first is waited for."""


@triton.jit
def scales_are_good(
    rows, blocks, payloads, bad, full: tl.constexpr, CHUNK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Raises the word of a segment if a scale of one of its payloads is not finite, or beyond the
    largest valid one. A program checks CHUNK scales of every payload."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    most = number(tl.load(row + MOST))
    count = tl.load(row + COUNT).to(tl.int32)
    at = payloads + 2 * tl.load(row + FIRST)
    j = first + tl.arange(0, CHUNK)
    there = j < tl.load(row + SCALES).to(tl.int32)
    wrong = j < 0  # none yet
    for begin in range(0, count, AT_ONCE):
        for r in tl.static_range(AT_ONCE):
            on = full | (begin + r < count)
            word = tl.load(at + 2 * (begin + r) + 1, mask=on, other=0)
            s = tl.load(address(word, tl.float32, False) + j, mask=there & on, other=0.0)
            wrong = wrong | ~(tl.abs(s) <= most)
    if tl.max(wrong.to(tl.int32), 0) != 0:
        tl.atomic_or(bad + segment, 1)


@triton.jit
def said(
    word, scale, k: tl.constexpr, p, way: tl.constexpr, bits: tl.constexpr, steps: tl.constexpr
):
    """Returns part p of byte k of the words, decoded, times the scales. Conversions are slow: a
    small integer's bits are combined with those of 2**23, which is subtracted again."""
    at = p * bits + 8 * k
    if (way == FLOAT3) | (way == FLOAT2):
        product = from_float8((word >> at) & 255, way) * scale
    elif bits == 8:
        byte = ((word ^ -0x7F7F7F80) >> at) & 255
        product = ((byte | 0x4B000000).to(tl.float32, bitcast=True) - 8388736.0) * scale
    elif way == LEVELS:
        level = ((word >> at) & ((1 << bits) - 1)) | 0x4B000000
        product = (level.to(tl.float32, bitcast=True) - (8388608.0 + steps)) * scale
    elif way == SIGNS:
        product = tl.where(((word >> at) & 1) == 0, -scale, scale)
    else:  # the two bits differ near zero, and the upper one is the sign's
        differ = ((word ^ (word >> 1)) >> at) & 1
        size = tl.where(differ == 1, scale * INNER, scale * OUTER)
        product = tl.where(((word >> at) & 2) == 0, -size, size)
    return product


@triton.jit
def add_whole_tile(
    row, first, payloads, dtype: tl.constexpr, way: tl.constexpr, bits: tl.constexpr,
    steps: tl.constexpr, divides: tl.constexpr, aligned: tl.constexpr, B: tl.constexpr,
    R: tl.constexpr, AT_ONCE: tl.constexpr, full: tl.constexpr,
):  # fmt: skip
    """Sums R whole blocks. A thread has words of four bytes: whichever part of a block their bits
    belong to, it has four neighbours of the result, and threads exchange nothing."""
    parts: tl.constexpr = 8 // bits
    J: tl.constexpr = B // parts
    W: tl.constexpr = R * J // 4
    w, p = tl.arange(0, W), tl.arange(0, parts)[:, None]
    block = w // (J // 4)
    count, by = tl.load(row + COUNT).to(tl.int32), number(tl.load(row + BY))
    at = payloads + 2 * tl.load(row + FIRST)
    # adding to -0.0 changes no value, not even a sign; a sum of several begins with 0.0
    zero = tl.zeros([parts, W], tl.float32) * (1.0 if divides else -1.0)
    x0, x1, x2, x3 = zero, zero, zero, zero
    for begin in range(0, count, AT_ONCE):
        for r in tl.static_range(AT_ONCE):
            on = full | (begin + r < count)
            codes = address(tl.load(at + 2 * (begin + r), mask=on, other=0), tl.int32, False)
            scales = tl.load(at + 2 * (begin + r) + 1, mask=on, other=0)
            scales = address(scales, tl.float32, False) + first // B
            if full:
                word = tl.load(codes + first // (4 * parts) + w)[None, :]
                scale = tl.load(scales + block)[None, :]
            else:
                word = tl.load(codes + first // (4 * parts) + w, mask=on, other=0)[None, :]
                scale = tl.load(scales + block, mask=on, other=0.0)[None, :]
            if not divides:
                scale *= by
            scale = unit_of(scale, way)
            # a missing payload adds zeros, which do not change a sum that began with 0.0
            x0 += said(word, scale, 0, p, way, bits, steps)
            x1 += said(word, scale, 1, p, way, bits, steps)
            x2 += said(word, scale, 2, p, way, bits, steps)
            x3 += said(word, scale, 3, p, way, bits, steps)
    total = tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), [parts, W, 4])
    i = (block * B + w % (J // 4) * 4)[None, :, None] + (p * J)[:, :, None]
    i = first + i + tl.arange(0, 4)[None, None, :]
    out = address(tl.load(row + OUT), dtype, aligned)
    total = quotient(total, by) if divides else widened(tl.load(out + i)) + total
    tl.store(out + i, rounded(total, dtype))


@triton.jit
def add_tile(
    row, first, payloads, dtype: tl.constexpr, way: tl.constexpr, bits: tl.constexpr,
    steps: tl.constexpr, divides: tl.constexpr, B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Sums R blocks that are not all whole, byte by byte. The last one's parts are shorter."""
    parts: tl.constexpr = 8 // bits
    J: tl.constexpr = B // parts
    n, by = tl.load(row + N).to(tl.int32), number(tl.load(row + BY))
    block = first // B + tl.arange(0, R)[:, None, None]
    p, j = tl.arange(0, parts)[None, :, None], tl.arange(0, J)[None, None, :]
    m = tl.minimum(tl.maximum(n - block * B, 0), B)
    size = (m + parts - 1) // parts
    i = block * B + p * size + j
    on = (j < size) & (p * size + j < m)
    total = tl.zeros([R, parts, J], tl.float32)
    out = address(tl.load(row + OUT), dtype, False)
    if not divides:
        total = widened(tl.load(out + i, mask=on, other=0.0))
    for r in range(tl.load(row + COUNT).to(tl.int32)):
        at = payloads + 2 * (tl.load(row + FIRST).to(tl.int32) + r)
        codes = address(tl.load(at), tl.uint8, False)
        scales = address(tl.load(at + 1), tl.float32, False)
        byte = tl.load(codes + block * J + j, mask=j < size, other=0)
        scale = tl.load(scales + block, mask=block * B < n, other=0.0)
        if not divides:
            scale *= by
        code = (byte.to(tl.int32) >> (p * bits)) & ((1 << bits) - 1)
        total += value_of(code, way, steps, bits) * unit_of(scale, way)
    if divides:
        total = quotient(total, by)
    tl.store(out + i, rounded(total, dtype), mask=on)


@triton.jit
def add_codes_up(
    rows,
    blocks,
    payloads,
    bad,
    dtype: tl.constexpr,
    way: tl.constexpr,
    bits: tl.constexpr,
    steps: tl.constexpr,
    divides: tl.constexpr,
    aligned: tl.constexpr,
    B: tl.constexpr,
    R: tl.constexpr,
    AT_ONCE: tl.constexpr,
    full: tl.constexpr,
    TURNS: tl.constexpr,
):
    """Writes the sum of all decoded payloads over the divisor, or adds it times a factor. Each
    program has several tiles of one segment, so that it loads its row and addresses once."""
    segment, begin = block_of(blocks)
    if tl.load(bad + segment) == 0:
        row = rows + segment * WIDTH
        n = tl.load(row + N).to(tl.int32)
        for first in range(begin, tl.minimum(begin + TURNS * R * B, n), R * B):
            first = tl.multiple_of(first, 16)
            if aligned & (first <= n - R * B):
                add_whole_tile(
                    row, first, payloads, dtype, way, bits, steps, divides, aligned, B, R,
                    AT_ONCE, full,
                )  # fmt: skip
            else:
                add_tile(row, first, payloads, dtype, way, bits, steps, divides, B, R)


def _run(segments: Sequence[SumCodes], *, divides: bool, status: Tensor | None = None) -> Tensor:
    """Launches the sums of one format and dtype. Returns a word for each segment, not 0 if it is
    bad."""
    every, device, form = columns_of(segments), segments[0].out.device, segments[0].form
    sizes, counts = tuple(map(Tensor.numel, every.out)), tuple(map(len, every.payloads))
    payloads, outs = list(chain.from_iterable(every.payloads)), addresses(every.out)
    codes, scales = [addresses(own) for own in zip(*payloads)] or [array("q", [0])] * 2
    scales_of, firsts = scales_and_firsts(form, sizes, counts)
    table, given, words = tables_on(
        device,
        Columns(len(outs), outs, array("q", sizes), bits_of_many(every.divisor), firsts, counts,
                bits_of(form.most_scale), scales_of),
        Columns(len(codes), codes, scales), Columns(-(-len(segments) // 2), 0),
    )  # fmt: skip
    bad = words.view(-1).view(torch.int32)[: len(segments)]
    hold_back(bad, len(segments), status)
    at_once, full = _steps(counts)
    if divides and form.in_all != 0:
        parts = blocks_on(device, scales_of, CHUNK)
        launch(scales_are_good, (parts.shape[0],),
            table, parts, given, bad, CHUNK=CHUNK, AT_ONCE=at_once, full=full,
        )  # fmt: skip
    tell(bad, len(segments), status)
    whole = all_aligned(outs, codes)
    kernel, tile, how = _kernel_of(form, at_once, full)
    blocks = blocks_on(device, sizes, tile)
    launch(kernel, (blocks.shape[0],),
        table, blocks, given, bad, dtype=TYPES[segments[0].out.dtype], divides=divides,
        aligned=whole, enable_fp_fusion=False, **how,
    )  # fmt: skip
    return bad


@lru_cache(maxsize=256)
def scales_and_firsts(
    form: Format, sizes: tuple[int, ...], counts: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns how many scales each segment's payloads have, and which payload is its first."""
    return tuple(map(form.scales, sizes)), tuple(accumulate(counts, initial=0))[:-1]


def _kernel_of(form: Format, at_once: int, full: bool) -> tuple[Any, int, dict[str, Any]]:
    """Returns the kernel that sums a format, the elements of a program, and constants."""
    known = written(form)
    if form is POWERS:
        span = powers.TOGETHER * form.block
        return powers.add_powers_up, span, {"R": powers.TOGETHER, "num_warps": 8}
    if form is TERNARY:
        span = ternary.TOGETHER * form.block
        return ternary.add_digits_up, span, {"R": ternary.TOGETHER, "num_warps": 4}
    if known is None:
        tile = signs.TILE
        return signs.add_signs_up, tile, {"of": form.in_all, "TILE": tile, "num_warps": 4}
    constants = {
        "way": known.way, "bits": known.bits, "steps": known.steps, "B": known.block,
        "R": TILE // known.block, "AT_ONCE": at_once, "full": full, "TURNS": TURNS,
        "num_warps": min(4, 2 * known.bits),
    }  # fmt: skip
    return add_codes_up, TURNS * TILE, constants


def _steps(counts: Sequence[int]) -> tuple[int, bool]:
    """Returns how many payloads a kernel adds in one step, and whether all steps have as many."""
    most = max(1, *counts)
    at_once = -(-most // -(-most // AT_ONCE))
    return at_once, all(count % at_once == 0 for count in counts)


@on_its_device
def accumulate_codes(segments: Sequence[SumCodes], status: Tensor | None = None) -> int:
    """Writes the sums. Without a status the host waits for the device, to learn which segment is
    bad."""
    first_bad = len(segments)
    numbered = enumerate(segments)
    for _, group in grouped(numbered, lambda one: (one[1].form, one[1].out.dtype)):
        members, own = zip(*group)
        if own[0].form.mantissa is not None:  # no payload of these is bad
            twins.accumulate_codes(own, status)
            continue
        bad = _run(own, divides=True, status=status)
        if status is None:
            found = (i for i, is_bad in zip(members, bad.tolist()) if is_bad)
            first_bad = min(first_bad, next(found, first_bad))
    return first_bad


@on_its_device
def add_codes(form: Format, v: Tensor, codes: Tensor, scales: Tensor, factor: float) -> None:
    add_many_codes([(form, v, codes, scales)], factor)


def add_many_codes(
    segments: Iterable[tuple[Format, Tensor, Tensor, Tensor]], factor: float
) -> None:
    """Runs `add_codes` for each segment."""
    for form, own in grouped(segments, lambda one: one[0]):
        if form.mantissa is not None:
            for _, v, codes, scales in own:
                twins.add_codes(form, v, codes, scales, factor)
            continue
        sums = [SumCodes(form, v, [(codes, scales)], factor) for form, v, codes, scales in own]
        _run(sums, divides=False)
