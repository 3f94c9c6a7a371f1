"""Casts, sums of dense payloads, and the status word.

Bytes for each element: what is read and what is written, once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

import gradwire.kernels.torch.sparse as twins
from gradwire.kernels.cuda.device import (
    address,
    is_finite,
    part_of,
    raise_if,
    read,
    rounded,
    widened,
    write,
)
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import aligned, on_its_device, programs, rows_on

BLOCK = 4096


@triton.jit
def cast_all(source, target, n, bad, to: tl.constexpr, checks: tl.constexpr, BLOCK: tl.constexpr):
    """target = source, rounded; where it is checked, tell whether something is not finite then."""
    i, whole = part_of(n, BLOCK)
    y = rounded(read(source, i, n, whole), to)
    if checks:
        raise_if(bad, ~is_finite(widened(y)))
    write(target, i, y, n, whole)


@triton.jit
def zero_if(bad, target, n, status, BLOCK: tl.constexpr):
    """Zeros, and the status raised, where the cast told so: else it ends at once."""
    if tl.load(bad) != 0:
        i, whole = part_of(n, BLOCK)
        write(target, i, tl.zeros([BLOCK], tl.float32).to(target.dtype.element_ty), n, whole)
        tl.atomic_or(status, tl.full([], 1, tl.int64))


@triton.jit
def add_scaled(v, source, n, factor, BLOCK: tl.constexpr):
    i, whole = part_of(n, BLOCK)
    write(v, i, read(v, i, n, whole) + read(source, i, n, whole) * factor, n, whole)


@triton.jit
def look(x, n, status, BLOCK: tl.constexpr):
    """Raise the status if x has inf or NaN."""
    i, whole = part_of(n, BLOCK)
    raise_if(status, ~is_finite(read(x, i, n, whole)))


@triton.jit
def spoil(status, x, n, dtype: tl.constexpr, BLOCK: tl.constexpr):
    """x = NaN, if the status is raised: else it ends at once."""
    if tl.load(status) != 0:
        i, whole = part_of(n, BLOCK)
        write(x, i, rounded(tl.full([BLOCK], float("nan"), tl.float32), dtype), n, whole)


@triton.jit
def add_dense(
    out, payloads, n, count, by, dtype: tl.constexpr, of_values: tl.constexpr,
    aligned: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i, whole = part_of(n, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for r in range(count):
        total += read(address(tl.load(payloads + r), of_values, aligned), i, n, whole)
    total = tl.div_rn(total, tl.zeros_like(total) + by)
    write(out, i, rounded(total, dtype), n, whole)


@triton.jit(do_not_specialize=["magic", "digest", "step", "count"])
def judge_all(headers, magic, digest, step, count, status, ROWS: tl.constexpr):
    """All that headers say, and DAMAGED where one has other flags or facts. One program."""
    r = tl.arange(0, ROWS)
    on = r < count
    flags = tl.load(headers + 4 * r + 1, mask=on, other=0)
    whole = (flags & ~3) == 0
    whole = whole & (tl.load(headers + 4 * r, mask=on, other=0) == magic)
    whole = whole & (tl.load(headers + 4 * r + 2, mask=on, other=0) == digest)
    whole = whole & (tl.load(headers + 4 * r + 3, mask=on, other=0) == step)
    told = tl.where(on, tl.where(whole, flags, 2), 0)
    all_told = tl.max(told & 1, 0) | tl.max(told & 2, 0)
    if all_told != 0:
        tl.atomic_or(status, all_told)


@on_its_device
def cast(source: Tensor, target: Tensor, status: Tensor | None) -> None:
    n, checks = source.numel(), status is not None
    if n:
        bad = torch.zeros_like(status) if status is not None else target
        launch(cast_all, programs(n, BLOCK),
            source.detach().contiguous(), target, n, bad, to=TYPES[target.dtype], checks=checks,
            BLOCK=BLOCK,
        )  # fmt: skip
        if checks:
            launch(zero_if, programs(n, BLOCK), bad, target, n, status, BLOCK=BLOCK)


@on_its_device
def add_cast(v: Tensor, source: Tensor, factor: float) -> None:
    n = v.numel()
    if n:
        launch(add_scaled, programs(n, BLOCK), v, source.contiguous(), n, factor, BLOCK=BLOCK,
               enable_fp_fusion=False)  # fmt: skip


@on_its_device
def flag_non_finite(x: Tensor, status: Tensor) -> None:
    n = x.numel()
    if n:
        launch(look, programs(n, BLOCK), x.detach().contiguous(), n, status, BLOCK=BLOCK)


@on_its_device
def spoil_if(status: Tensor, x: Tensor) -> None:
    if x.dtype == torch.float64 or not x.is_contiguous():
        x.masked_fill_(status != 0, math.nan)
    elif x.numel():
        grid = programs(x.numel(), BLOCK)
        launch(spoil, grid, status, x, x.numel(), dtype=TYPES[x.dtype], BLOCK=BLOCK)


@on_its_device
def accumulate_dense(out: Tensor, payloads: list[Tensor], divisor: float) -> None:
    kinds = {payload.dtype for payload in payloads}
    if len(kinds) != 1 or out.dtype == torch.float64:
        twins.accumulate_dense(out, payloads, divisor)
        return
    held, n = [payload.detach().contiguous() for payload in payloads], out.numel()
    table = rows_on(out.device, [[payload.data_ptr()] for payload in held])
    if n:
        launch(add_dense, programs(n, BLOCK),
            out, table, n, len(held), divisor, dtype=TYPES[out.dtype],
            of_values=TYPES[kinds.pop()], aligned=aligned(*held), BLOCK=BLOCK,
            enable_fp_fusion=False,
        )  # fmt: skip


@triton.jit(do_not_specialize=["magic", "flags", "digest", "step"])
def stamp_words(words, magic, flags, digest, step):
    """A header's four words."""
    tl.store(words, magic.to(tl.int64))
    tl.store(words + 1, flags.to(tl.int64))
    tl.store(words + 2, digest.to(tl.int64))
    tl.store(words + 3, step.to(tl.int64))


@on_its_device
def stamp(words: Tensor, facts: Sequence[int]) -> None:
    if len(facts) == 4:
        launch(stamp_words, (1,), words, *facts)
    else:
        words.copy_(rows_on(words.device, [facts])[0])


@on_its_device
def judge(headers: Tensor, facts: Sequence[int], status: Tensor) -> None:
    count = headers.shape[0]
    rows = triton.next_power_of_2(max(count, 1))
    launch(judge_all, (1,), headers.contiguous(), *facts, count, status, ROWS=rows)
