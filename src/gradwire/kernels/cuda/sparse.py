"""Sums of sparse payloads: each program owns a part of the result, finds by bisection what of each
ascending list falls into it, and adds list after list.

Bytes: 4 for each element of an fp32 result, 12 for one of 16 bits, and 8 for each entry.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import address, rounded, widened
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import rows_on

TILE, CHUNK = 4096, 512
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
def below(indices, k, x):
    """How many entries are below x: by bisection."""
    low = 0
    high = k
    while low < high:
        middle = (low + high) // 2
        less = tl.load(indices + middle) < x
        low = tl.where(less, middle + 1, low)
        high = tl.where(less, high, middle)
    return low


@triton.jit
def add_lists(
    out,
    total,
    payloads,
    n,
    count,
    by,
    dtype: tl.constexpr,
    of_values: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """total: fp32, the result itself if that is. payloads: rows of places, values, how many."""
    first = tl.program_id(0) * TILE
    t = first + tl.arange(0, TILE)
    tl.store(total + t, tl.zeros([TILE], tl.float32), mask=t < n)
    tl.debug_barrier()
    for r in range(count):
        at = payloads + 3 * r
        places = address(tl.load(at), tl.int32, False)
        values = address(tl.load(at + 1), of_values, False)
        k = tl.load(at + 2).to(tl.int32)
        begin, end = below(places, k, first), below(places, k, first + TILE)
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


def first_violation(indices: Tensor, n: int) -> int:
    """The host waits for the device."""
    indices, k = indices.contiguous(), indices.numel()
    found = torch.full((1,), k, dtype=torch.int32, device=indices.device)
    if k:
        violation[(-(-k // CHUNK),)](indices, k, n, found, BLOCK=CHUNK)
    return int(found)


def accumulate(out: Tensor, indices: list[Tensor], values: list[Tensor], divisor: float) -> None:
    n, kinds = out.numel(), {value.dtype for value in values}
    if len(kinds) > 1:  # which no strategy sends
        values = [value.float() for value in values]
        kinds = {torch.float32}
    held = [(i.contiguous(), v.contiguous()) for i, v in zip(indices, values)]
    given = [[i.data_ptr(), v.data_ptr(), i.numel()] for i, v in held]
    table = rows_on(out.device, given or [[0, 0, 0]])
    total = out if out.dtype == torch.float32 else torch.empty(n, device=out.device)
    if n:
        add_lists[(-(-n // TILE),)](
            out, total, table, n, len(held), divisor, dtype=TYPES[out.dtype],
            of_values=TYPES[kinds.pop() if kinds else torch.float32], TILE=TILE, CHUNK=CHUNK,
            num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip


def add(v: Tensor, indices: Tensor, values: Tensor, factor: float) -> None:
    k = indices.numel()
    if k:
        add_list[(-(-k // CHUNK),)](
            v, indices.contiguous(), values, k, factor, BLOCK=CHUNK, enable_fp_fusion=False
        )
