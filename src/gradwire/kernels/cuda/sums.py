"""Sums of payloads: each program owns a part of the result and adds payload after payload, in list
order, so that the bits do not depend on what runs when.

Bytes for each element of the result: 4 for fp32, and those of every payload: of int8 1, of 4 bits
1/2; of dense ones their own; of sparse ones 8 for each entry, and 8 more of fp32 in a 16-bit sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import gradwire.kernels.torch.codes as twins
from gradwire.kernels.cuda.device import address, block_of, number, rounded, widened
from gradwire.kernels.cuda.formats import Written, value_of, written
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import (
    address_of,
    aligned,
    bits_of,
    blocks_on,
    on_its_device,
    rows_on,
)
from gradwire.kernels.formats import Format
from gradwire.kernels.segments import SumCodes

TILE = 2048
SHARES = 16
"""Programs that look at one segment's scales."""
OUT, N, BY, FIRST, COUNT, MOST = (tl.constexpr(i) for i in range(6))
WIDTH = tl.constexpr(6)
"""Columns: the payloads of a segment are COUNT rows of theirs, from FIRST on."""


@triton.jit
def scales_are_good(rows, payloads, bad, B: tl.constexpr, CHUNK: tl.constexpr):
    """Raise the word of a segment where a scale of one of its payloads is none that is written:
    not finite, or beyond the most. Programs of a segment take turns."""
    segment, share = tl.program_id(0), tl.num_programs(1) * CHUNK
    row = rows + segment * WIDTH
    n, most = tl.load(row + N).to(tl.int32), number(tl.load(row + MOST))
    blocks = (n + B - 1) // B
    for r in range(tl.load(row + COUNT).to(tl.int32)):
        at = payloads + 2 * (tl.load(row + FIRST).to(tl.int32) + r)
        scales = address(tl.load(at + 1), tl.float32, False)
        for begin in range(tl.program_id(1) * CHUNK, blocks, share):
            j = begin + tl.arange(0, CHUNK)
            s = tl.load(scales + j, mask=j < blocks, other=0.0)
            if tl.max((~(tl.abs(s) <= most)).to(tl.int32), 0) != 0:
                tl.atomic_or(bad + segment, 1)


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
):
    """The sum of all payloads' codes with their scales, times or over a number."""
    segment, first = block_of(blocks)
    if tl.load(bad + segment) == 0:
        row = rows + segment * WIDTH
        n, by = tl.load(row + N).to(tl.int32), number(tl.load(row + BY))
        parts: tl.constexpr = 8 // bits
        J: tl.constexpr = B // parts
        block = first // B + tl.arange(0, R)[:, None, None]
        p, j = tl.arange(0, parts)[None, :, None], tl.arange(0, J)[None, None, :]
        m = tl.minimum(tl.maximum(n - block * B, 0), B)
        whole = first <= n - R * B
        if whole:
            i = block * B + p * J + j
            on = i < n
        else:  # the last block's parts are shorter
            size = (m + parts - 1) // parts
            i = block * B + p * size + j
            on = (j < size) & (p * size + j < m)
        total = tl.zeros([R, parts, J], tl.float32)
        out = address(tl.load(row + OUT), dtype, aligned)
        if not divides:
            total = widened(tl.load(out + i, mask=on, other=0.0))
        for r in range(tl.load(row + COUNT).to(tl.int32)):
            at = payloads + 2 * (tl.load(row + FIRST).to(tl.int32) + r)
            codes = address(tl.load(at), tl.uint8, aligned)
            scales = address(tl.load(at + 1), tl.float32, False)
            if whole:
                byte = tl.load(codes + block * J + j)
            else:
                here = (block * B < n) & (j < (m + parts - 1) // parts)
                byte = tl.load(codes + block * J + j, mask=here, other=0)
            scale = tl.load(scales + block, mask=block * B < n, other=0.0)
            if not divides:
                scale *= by
            code = (byte.to(tl.int32) >> (p * bits)) & ((1 << bits) - 1)
            total += value_of(code, way, steps, bits) * scale
        if divides:
            total = tl.div_rn(total, tl.zeros_like(total) + by)
        if whole:
            tl.store(out + i, rounded(total, dtype))
        else:
            tl.store(out + i, rounded(total, dtype), mask=on)


def _run(
    segments: Sequence[SumCodes], form: Written, bad: Tensor, *, divides: bool, most: float
) -> None:
    device, dtype = bad.device, segments[0].out.dtype
    sizes = tuple(one.out.numel() for one in segments)
    blocks = blocks_on(device, sizes, TILE)
    rows, given = [], list[list[int]]()
    for one, n in zip(segments, sizes):
        count = len(one.payloads)
        by = bits_of(one.divisor)
        rows.append([address_of(one.out), n, by, len(given), count, bits_of(most)])
        given += [[codes.data_ptr(), scales.data_ptr()] for codes, scales in one.payloads]
    table, payloads = rows_on(device, rows), rows_on(device, given or [[0, 0]])
    if divides:
        scales_are_good[(len(segments), SHARES)](table, payloads, bad, B=form.block, CHUNK=1024)
    whole = all(aligned(one.out, *(codes for codes, _ in one.payloads)) for one in segments)
    add_codes_up[(blocks.shape[0],)](
        table, blocks, payloads, bad, dtype=TYPES[dtype], way=form.way, bits=form.bits,
        steps=form.steps, divides=divides, aligned=whole, B=form.block, R=TILE // form.block,
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip


@on_its_device
def accumulate_codes(segments: Sequence[SumCodes]) -> int:
    """The host waits for the device, to tell which one is bad."""
    groups: dict[Any, list[int]] = {}
    for i, one in enumerate(segments):
        groups.setdefault((one.form, one.out.dtype), []).append(i)
    first_bad = len(segments)
    for (form, _), members in groups.items():
        own, known = [segments[i] for i in members], written(form)
        if known is None:
            found = twins.accumulate_codes(own)
        else:
            bad = torch.zeros(len(own), dtype=torch.int32, device=own[0].out.device)
            _run(own, known, bad, divides=True, most=form.most_scale)
            found = next((i for i, is_bad in enumerate(bad.tolist()) if is_bad), len(own))
        if found < len(own):
            first_bad = min(first_bad, members[found])
    return first_bad


@on_its_device
def add_codes(form: Format, v: Tensor, codes: Tensor, scales: Tensor, factor: float) -> None:
    known = written(form)
    if known is None:
        twins.add_codes(form, v, codes, scales, factor)
        return
    bad = torch.zeros(1, dtype=torch.int32, device=v.device)
    one = SumCodes(form, v, [(codes, scales)], factor)
    _run([one], known, bad, divides=False, most=form.most_scale)
