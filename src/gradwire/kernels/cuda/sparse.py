"""Sums of sparse payloads: each program owns a part of the result, finds by bisection what of each
ascending list falls into it, and adds list after list.

Bytes: 4 for each element of an fp32 result, 12 for one of 16 bits, and 8 for each entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import address, block_of, number, rounded, widened
from gradwire.kernels.cuda.lists import Listed, decode_all, whole_words
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import bits_of, blocks_on, on_its_device, rows_on
from gradwire.kernels.segments import SumCoded

TILE, CHUNK = 4096, 512
OUT, TOTAL, N, FIRST, COUNT, BY = (tl.constexpr(i) for i in range(6))
WIDTH = tl.constexpr(6)
_FAR = tl.constexpr(2147483647)


@triton.jit
def violation(indices, k, n, found, BLOCK: tl.constexpr):
    """The first entry that is out of range or not above the one before."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(indices + j, mask=j < k, other=0)
    before = tl.load(indices + j - 1, mask=(j < k) & (j > 0), other=-1)
    wrong = (j < k) & ((here <= before) | (here >= n))
    first = tl.min(tl.where(wrong, j, _FAR), 0)
    if first != _FAR:
        tl.atomic_min(found, first)


@triton.jit
def between(indices, k, first, TILE: tl.constexpr):
    """Of an ascending list the first entry that is not below `first`, and the first that is not
    below what is TILE further: by bisection, both at once."""
    side = tl.arange(0, 2)
    wanted = first.to(tl.int64) + side * TILE
    low, high = side * 0, side * 0 + k
    for _ in range(31):  # halves a list of any length to nothing
        middle = low + (high - low) // 2
        open_ = low < high
        less = tl.load(indices + middle, mask=open_, other=0).to(tl.int64) < wanted
        low = tl.where(open_ & less, middle + 1, low)
        high = tl.where(open_ & ~less, middle, high)
    return tl.sum(tl.where(side == 0, low, 0), 0), tl.sum(tl.where(side == 1, low, 0), 0)


@triton.jit
def add_lists(
    rows, blocks, payloads, bad, dtype: tl.constexpr, of_values: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """A part of one segment's sum, in fp32: in the result itself, if that is."""
    segment, first = block_of(blocks)
    if tl.load(bad + segment) == 0:
        row = rows + segment * WIDTH
        n, by = tl.load(row + N).to(tl.int32), number(tl.load(row + BY))
        total = address(tl.load(row + TOTAL), tl.float32, False)
        out = address(tl.load(row + OUT), dtype, False)
        t = first + tl.arange(0, TILE)
        tl.store(total + t, tl.zeros([TILE], tl.float32), mask=t < n)
        tl.debug_barrier()
        for r in range(tl.load(row + COUNT).to(tl.int32)):
            at = payloads + 3 * (tl.load(row + FIRST).to(tl.int32) + r)
            places = address(tl.load(at), tl.int32, False)
            values = address(tl.load(at + 1), of_values, False)
            k = tl.load(at + 2).to(tl.int32)
            begin, end = between(places, k, first, TILE)
            for chunk in range(begin, end, CHUNK):
                j = chunk + tl.arange(0, CHUNK)
                i = tl.load(places + j, mask=j < end, other=0)
                x = widened(tl.load(values + j, mask=j < end, other=0.0))
                sum_ = tl.load(total + i, mask=j < end, other=0.0) + x
                tl.store(total + i, sum_, mask=j < end)
            tl.debug_barrier()
        s = tl.load(total + t, mask=t < n, other=0.0)
        tl.store(out + t, rounded(tl.div_rn(s, tl.zeros_like(s) + by), dtype), mask=t < n)


@triton.jit
def add_list(v, places, values, k, factor, BLOCK: tl.constexpr):
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.load(places + j, mask=j < k, other=0)
    x = tl.load(values + j, mask=j < k, other=0.0)
    tl.store(v + i, tl.load(v + i, mask=j < k, other=0.0) + x * factor, mask=j < k)


@on_its_device
def first_violation(indices: Tensor, n: int) -> int:
    """The host waits for the device."""
    indices, k = indices.contiguous(), indices.numel()
    found = torch.full((1,), k, dtype=torch.int32, device=indices.device)
    if k:
        violation[(-(-k // CHUNK),)](indices, k, n, found, BLOCK=CHUNK)
    return int(found)


class Sum(NamedTuple):
    """One segment: places, int32, and values of each payload, in order."""

    out: Tensor
    places: Sequence[Tensor]
    values: Sequence[Tensor]
    divisor: float


def add_up(sums: Sequence[Sum], bad: Tensor) -> None:
    """One launch for each pair of dtypes. bad: (sums,) int32; those whose word is not 0 are left
    out."""
    groups: dict[Any, list[int]] = {}
    for i, one in enumerate(sums):
        kinds = {value.dtype for value in one.values} or {torch.float32}
        groups.setdefault((one.out.dtype, *sorted(kinds, key=str)), []).append(i)
    for (dtype, *kinds), members in groups.items():
        own = [sums[i] for i in members]
        if len(kinds) > 1:  # which no strategy sends
            own = [one._replace(values=[x.float() for x in one.values]) for one in own]
        words = bad if len(members) == len(sums) else bad[torch.tensor(members, device=bad.device)]
        _add_up(own, words, dtype, kinds[0] if len(kinds) == 1 else torch.float32)


def _add_up(sums: Sequence[Sum], bad: Tensor, dtype: torch.dtype, of_values: torch.dtype) -> None:
    device = bad.device
    wholes = dtype == torch.float32
    totals = [x.out if wholes else torch.empty(x.out.numel(), device=device) for x in sums]
    held = [[(i.contiguous(), v.contiguous()) for i, v in zip(x.places, x.values)] for x in sums]
    rows, given = [], list[list[int]]()
    for one, total, pairs in zip(sums, totals, held):
        rows.append([
            one.out.data_ptr(), total.data_ptr(), one.out.numel(), len(given), len(pairs),
            bits_of(one.divisor),
        ])  # fmt: skip
        given += [[i.data_ptr(), v.data_ptr(), i.numel()] for i, v in pairs]
    blocks = blocks_on(device, tuple(x.out.numel() for x in sums), TILE)
    add_lists[(blocks.shape[0],)](
        rows_on(device, rows), blocks, rows_on(device, given or [[0, 0, 0]]), bad,
        dtype=TYPES[dtype], of_values=TYPES[of_values], TILE=TILE, CHUNK=CHUNK, num_warps=8,
        enable_fp_fusion=False,
    )  # fmt: skip


@on_its_device
def accumulate(out: Tensor, indices: list[Tensor], values: list[Tensor], divisor: float) -> None:
    none = torch.zeros(1, dtype=torch.int32, device=out.device)
    add_up([Sum(out, indices, values, divisor)], none)


@on_its_device
def accumulate_coded(segments: Sequence[SumCoded]) -> int:
    """All lists of all segments are read and checked first, then added; the host waits for the
    device once, to tell which segment is bad."""
    lists, owners, sums = list[Listed](), list[int](), list[Sum]()
    for number_of, (out, codes, sections, values, divisor) in enumerate(segments):
        places = []
        for code, section, value in zip(codes, sections, values):
            room = torch.empty(value.numel(), dtype=torch.int32, device=out.device)
            if code == "int32":
                room = section.contiguous().view(torch.int32)
            lists.append(Listed(whole_words(section), code, out.numel(), room))
            owners.append(number_of)
            places.append(room)
        sums.append(Sum(out, places, values, divisor))
    if not segments:
        return 0
    device = segments[0].out.device
    bad = torch.zeros(len(segments), dtype=torch.int32, device=device)
    if lists:
        told = decode_all(lists)
        wanted = rows_on(
            device, [[one.out.numel(), 0, owner] for one, owner in zip(lists, owners)]
        )
        wrong = (told != wanted[:, :2]).any(1)
        bad.index_add_(0, wanted[:, 2], wrong.int())
    add_up(sums, bad)
    return next((i for i, word in enumerate(bad.tolist()) if word), len(segments))


@on_its_device
def add(v: Tensor, indices: Tensor, values: Tensor, factor: float) -> None:
    k = indices.numel()
    if k:
        add_list[(-(-k // CHUNK),)](
            v, indices.contiguous(), values, k, factor, BLOCK=CHUNK, enable_fp_fusion=False
        )
