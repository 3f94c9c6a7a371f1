"""The exact path of a selection: the k largest of all elements, where the candidates were too few
or too many; else each kernel ends at once.

Three histograms of magnitudes' bits, 11, 10 and 10, find the k-th largest; two passes write what
is larger, and of what equals it the first. Bytes for each element: 20.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gradwire.kernels.cuda.columns import (
    BINS,
    BLOCKS,
    EXACT,
    FIRST,
    NEED,
    PREFIX,
    WIDTH,
    WORDS,
    N,
    V,
    take,
)
from gradwire.kernels.cuda.device import address, block_of, magnitude, widened


@triton.jit
def picked(state, table, segment, step: tl.constexpr):
    """Prefix and need, once this histogram is there."""
    own = state + segment * WORDS
    prefix, need = tl.load(own + PREFIX), tl.load(own + NEED)
    for at in tl.static_range(step):
        h = tl.load(table + (segment * 3 + at) * BINS + tl.arange(0, BINS))
        above = tl.sum(h, 0) - tl.cumsum(h, 0)
        digit = tl.sum((above >= need).to(tl.int32), 0)
        need -= tl.sum(tl.where(tl.arange(0, BINS) == digit, above, 0), 0)
        prefix |= digit << (20 - 10 * at)
    return prefix, need


@triton.jit
def hist(
    rows,
    blocks,
    state,
    table,
    dtype: tl.constexpr,
    step: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How often each digit stands where those before it are the prefix: bits 20 to 30, 10 to 19, 0
    to 9 of the magnitudes."""
    segment, first = block_of(blocks)
    if tl.load(state + segment * WORDS + EXACT) != 0:
        row = rows + segment * WIDTH
        v, n = address(tl.load(row + V), dtype, False), tl.load(row + N).to(tl.int32)
        prefix, _ = picked(state, table, segment, step)
        shift: tl.constexpr = 20 - 10 * step
        top: tl.constexpr = 31 if step == 0 else shift + 10
        bins: tl.constexpr = 2048 if step == 0 else 1024
        i = first + tl.arange(0, BLOCK)
        b = magnitude(widened(tl.load(v + i, mask=i < n, other=0.0)))
        on = (i < n) & ((b >> top) == (prefix >> top))
        h = tl.histogram((b >> shift) & (bins - 1), bins, mask=on)
        tl.atomic_add(table + (segment * 3 + step) * BINS + tl.arange(0, bins), h, mask=h > 0)


@triton.jit
def count(rows, blocks, state, table, above, equal, dtype: tl.constexpr, BLOCK: tl.constexpr):
    """How many of each block are larger than the k-th, and how many equal to it."""
    pid = tl.program_id(0)
    segment, first = block_of(blocks)
    if tl.load(state + segment * WORDS + EXACT) != 0:
        row = rows + segment * WIDTH
        v, n = address(tl.load(row + V), dtype, False), tl.load(row + N).to(tl.int32)
        least, _ = picked(state, table, segment, 3)
        i = first + tl.arange(0, BLOCK)
        x = widened(tl.load(v + i, mask=i < n, other=0.0))
        b = tl.where(i < n, magnitude(x), -1)
        tl.store(above + pid, tl.sum((b > least).to(tl.int32), 0))
        tl.store(equal + pid, tl.sum((b == least).to(tl.int32), 0))


@triton.jit
def offset(rows, state, above, equal, CHUNK: tl.constexpr):
    """Both become sums over the blocks before. One program for a segment."""
    segment = tl.program_id(0)
    if tl.load(state + segment * WORDS + EXACT) != 0:
        row = rows + segment * WIDTH
        number_of, first = tl.load(row + BLOCKS).to(tl.int32), tl.load(row + FIRST).to(tl.int32)
        a = 0
        e = 0
        for at in range(0, number_of, CHUNK):
            j = at + tl.arange(0, CHUNK)
            on = j < number_of
            c = tl.load(above + first + j, mask=on, other=0)
            f = tl.load(equal + first + j, mask=on, other=0)
            tl.store(above + first + j, a + tl.cumsum(c, 0) - c, mask=on)
            tl.store(equal + first + j, e + tl.cumsum(f, 0) - f, mask=on)
            a += tl.sum(c, 0)
            e += tl.sum(f, 0)


@triton.jit
def emit(
    rows,
    blocks,
    state,
    table,
    above,
    equal,
    hints,
    dtype: tl.constexpr,
    mode: tl.constexpr,
    masks: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The k largest of all elements, and the next threshold."""
    pid = tl.program_id(0)
    segment, first = block_of(blocks)
    if tl.load(state + segment * WORDS + EXACT) != 0:
        row = rows + segment * WIDTH
        v, n = address(tl.load(row + V), dtype, False), tl.load(row + N).to(tl.int32)
        least, need = picked(state, table, segment, 3)
        i = first + tl.arange(0, BLOCK)
        x = widened(tl.load(v + i, mask=i < n, other=0.0))
        b = tl.where(i < n, magnitude(x), -1)
        more, same = (b > least).to(tl.int32), (b == least).to(tl.int32)
        rank = tl.load(equal + pid) + tl.cumsum(same, 0) - same
        on = (more == 1) | ((same == 1) & (rank < need))
        to = tl.load(above + pid) + tl.cumsum(more, 0) - more + tl.minimum(rank, need)
        take(row, i, on, to, dtype, mode, masks)
        if first == 0:
            lower = (least.to(tl.float32, bitcast=True) * 0.9).to(tl.int32, bitcast=True)
            tl.store(hints + segment, tl.maximum(lower, 1))
