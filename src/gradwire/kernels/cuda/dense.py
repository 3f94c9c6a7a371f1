"""Casts, sums of dense payloads, and the status word.

Bytes for each element: each input and output once.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import accumulate as running
from itertools import chain
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import gradwire.kernels.torch.sparse as twins
from gradwire.kernels.cuda.device import (
    address,
    block_of,
    is_finite,
    number,
    part_of,
    raise_if,
    read,
    rounded,
    widened,
    write,
)
from gradwire.kernels.cuda.held import hold_back
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
    programs,
    rows_on,
    tables_on,
)
from gradwire.kernels.segments import CastInto, SumDense

BLOCK = 4096


@triton.jit
def cast_all(
    rows, blocks, bad, of: tl.constexpr, to: tl.constexpr, checks: tl.constexpr,
    aligned: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes each source to its target, rounded. checks: a segment's word is raised if a result is
    not finite."""
    segment, first = block_of(blocks)
    row = rows + segment * 3
    n = tl.load(row + 2).to(tl.int32)
    i, whole = first + tl.arange(0, BLOCK), first <= n - BLOCK
    y = rounded(read(address(tl.load(row), of, aligned), i, n, whole), to)
    if checks:  # noqa: SIM102 - known when compiled, and the next is not
        if tl.max((~is_finite(widened(y))).to(tl.int32), 0) != 0:
            tl.atomic_or(bad + segment, 1)
    write(address(tl.load(row + 1), to, aligned), i, y, n, whole)


@triton.jit
def zero_if(rows, blocks, bad, status, to: tl.constexpr, BLOCK: tl.constexpr):
    """Writes zeros and raises the status if a segment's word is raised; else ends at once."""
    segment, first = block_of(blocks)
    if tl.load(bad + segment) != 0:
        row = rows + segment * 3
        n, i = tl.load(row + 2).to(tl.int32), first + tl.arange(0, BLOCK)
        zeros = tl.zeros([BLOCK], tl.float32).to(to)
        write(address(tl.load(row + 1), to, False), i, zeros, n, first <= n - BLOCK)
        tl.atomic_or(status, tl.full([], 1, tl.int64))


@triton.jit
def add_scaled(v, source, n, factor, BLOCK: tl.constexpr):
    i, whole = part_of(n, BLOCK)
    write(v, i, read(v, i, n, whole) + read(source, i, n, whole) * factor, n, whole)


@triton.jit
def look(x, n, status, BLOCK: tl.constexpr):
    """Raises the status if x has inf or NaN."""
    i, whole = part_of(n, BLOCK)
    raise_if(status, ~is_finite(read(x, i, n, whole)))


@triton.jit
def spoil(status, x, n, dtype: tl.constexpr, BLOCK: tl.constexpr):
    """Fills x with NaN if the status is raised; else ends at once."""
    if tl.load(status) != 0:
        i, whole = part_of(n, BLOCK)
        write(x, i, rounded(tl.full([BLOCK], float("nan"), tl.float32), dtype), n, whole)


@triton.jit
def difference(x, source, out, n, status, BLOCK: tl.constexpr):
    """Writes out = x - source; ends at once if the status is raised."""
    if tl.load(status) == 0:
        i, whole = part_of(n, BLOCK)
        write(out, i, read(x, i, n, whole) - read(source, i, n, whole), n, whole)


OUT, N, FIRST, COUNT, BY = (tl.constexpr(i) for i in range(5))
WIDTH = tl.constexpr(5)
"""The columns of a sum: its payloads are COUNT addresses, from FIRST on."""


@triton.jit
def add_dense(
    rows, blocks, payloads, bad, dtype: tl.constexpr, of_values: tl.constexpr,
    aligned: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the sum of a segment's payloads over the divisor, unless its word is raised."""
    segment, first = block_of(blocks)
    if tl.load(bad + segment) == 0:
        row = rows + segment * WIDTH
        n, by = tl.load(row + N).to(tl.int32), number(tl.load(row + BY))
        i, whole = first + tl.arange(0, BLOCK), first <= n - BLOCK
        total = tl.zeros([BLOCK], tl.float32)
        at = payloads + tl.load(row + FIRST)
        for r in range(tl.load(row + COUNT).to(tl.int32)):
            total += read(address(tl.load(at + r), of_values, aligned), i, n, whole)
        total = tl.div_rn(total, tl.zeros_like(total) + by)
        write(address(tl.load(row + OUT), dtype, aligned), i, rounded(total, dtype), n, whole)


@triton.jit(do_not_specialize=["magic", "digest", "step", "count"])
def judge_all(headers, magic, digest, step, count, status, ROWS: tl.constexpr):
    """Raises the status by the headers' flags, and by DAMAGED if one has unknown flags or other
    facts. One program."""
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
    _cast([CastInto(source, target)], status)


@on_its_device
def cast_many(segments: Sequence[CastInto], status: Tensor | None) -> None:
    _cast(segments, status)


def _cast(segments: Sequence[CastInto], status: Tensor | None) -> None:
    for (of, to), own in grouped(segments, lambda one: (one.source.dtype, one.target.dtype)):
        sources, targets = plain([x for x, _ in own]), [y for _, y in own]
        sizes, device = tuple(map(Tensor.numel, targets)), targets[0].device
        x, y, n = addresses(sources), addresses(targets), array("q", sizes)
        table, words = tables_on(
            device, Columns(len(own), x, y, n), Columns(-(-len(own) // 2), 0)
        )  # fmt: skip
        blocks, bad = blocks_on(device, sizes, BLOCK), words.view(torch.int32).view(-1)
        launch(cast_all, (blocks.shape[0],),
            table, blocks, bad, of=TYPES[of], to=TYPES[to], checks=status is not None,
            aligned=all_aligned(x, y), BLOCK=BLOCK,
        )  # fmt: skip
        if status is not None:
            launch(zero_if, (blocks.shape[0],),
                table, blocks, bad, status, to=TYPES[to], BLOCK=BLOCK,
            )  # fmt: skip


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
def subtract(x: Tensor, y: Tensor, out: Tensor, status: Tensor) -> None:
    n = out.numel()
    if n:
        grid = programs(n, BLOCK)
        launch(difference, grid, x, y.detach().contiguous(), out, n, status, BLOCK=BLOCK)


@on_its_device
def accumulate_dense(out: Tensor, payloads: list[Tensor], divisor: float) -> None:
    accumulate_many_dense([SumDense(out, payloads, divisor)])


@on_its_device
def accumulate_many_dense(segments: Sequence[SumDense], status: Tensor | None = None) -> None:
    for kinds, own in grouped(segments, _kinds_of):
        if len(kinds) == 2 and torch.float64 not in kinds:
            _add_up(columns_of(own), kinds[0], kinds[1], status)
        else:
            twins.accumulate_many_dense(own, status)


def _kinds_of(one: SumDense) -> tuple[torch.dtype, ...]:
    """Returns the dtype of the result, and those of its payloads."""
    return one.out.dtype, *({x.dtype for x in one.payloads} or {torch.float32})


def _add_up(every: Any, dtype: torch.dtype, of: torch.dtype, status: Tensor | None) -> None:
    """Launches the sums. every: a `SumDense` with the columns of many."""
    device, number_of = every.out[0].device, len(every.out)
    sizes, counts = tuple(map(Tensor.numel, every.out)), tuple(map(len, every.payloads))
    payloads = plain(list(chain.from_iterable(every.payloads)))
    outs, given = addresses(every.out), addresses(payloads)
    table, places, words = tables_on(
        device,
        Columns(number_of, outs, array("q", sizes), tuple(running(counts, initial=0))[:-1],
                counts, bits_of_many(every.divisor)),
        Columns(len(given), given), Columns(-(-number_of // 2), 0),
    )  # fmt: skip
    bad = words.view(-1).view(torch.int32)
    hold_back(bad, number_of, status)
    blocks = blocks_on(device, sizes, BLOCK)
    launch(add_dense, (blocks.shape[0],),
        table, blocks, places, bad, dtype=TYPES[dtype], of_values=TYPES[of], BLOCK=BLOCK,
        aligned=all_aligned(outs, given), enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit(do_not_specialize=["magic", "flags", "digest", "step"])
def stamp_words(words, magic, flags, digest, step):
    """Writes the four words of a header."""
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
