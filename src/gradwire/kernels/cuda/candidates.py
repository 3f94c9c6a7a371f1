"""The fast path of a selection: what reaches the last threshold, and the k largest of that.

Bytes for each element, beside what `mark` touches: 1/4 for the bits; a few for each candidate.
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
    NONE,
    PREFIX,
    ROOM,
    SLOT,
    TOTAL,
    WIDTH,
    WORDS,
    D,
    G,
    K,
    M,
    N,
    S,
    U,
    V,
    hint_of,
    take,
)
from gradwire.kernels.cuda.device import (
    FEEDBACK,
    address,
    advanced,
    block_of,
    is_finite,
    magnitude,
    number,
    packed,
    raise_if,
    read,
    widened,
    write,
)
from gradwire.kernels.cuda.kept import keep_large


@triton.jit
def mark(
    rows,
    blocks,
    bits,
    counts,
    status,
    dtype: tl.constexpr,
    mode: tl.constexpr,
    marks: tl.constexpr,
    aligned: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The recurrence, and one bit for each element that reaches the threshold.

    Bytes for each element: the gradient's; 16 by momentum, 8 by feedback, none without; 1/8.
    """
    pid = tl.program_id(0)
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    n = tl.load(row + N).to(tl.int32)
    i = first + tl.arange(0, BLOCK)
    whole = first <= n - BLOCK
    x = read(address(tl.load(row + G), dtype, aligned), i, n, whole)
    good = is_finite(x)
    if mode != NONE:
        m, s, d = number(tl.load(row + M)), number(tl.load(row + S)), number(tl.load(row + D))
        pv = address(tl.load(row + V), tl.float32, aligned)
        v = read(pv, i, n, whole)
        u = v
        if mode != FEEDBACK:
            pu = address(tl.load(row + U), tl.float32, aligned)
            u = read(pu, i, n, whole)
        keep_large(row, first, x * s, u, v, n, mode, BLOCK)
        u, x, good = advanced(x, u, v, m, s, d, mode)
        write(pv, i, x, n, whole)
        if mode != FEEDBACK:
            write(pu, i, u, n, whole)
    raise_if(status, ~good & (i < n))
    if marks:
        hint = hint_of(row)
        take = (magnitude(x) >= hint) & (i < n)
        tl.store(bits + pid * (BLOCK // 8) + tl.arange(0, BLOCK // 8), packed(take, BLOCK))
        tl.store(counts + pid, tl.sum(take.to(tl.int32), 0))


@triton.jit
def scan(rows, counts, state, table, hints, CHUNK: tl.constexpr):
    """Counts become where each block's candidates begin; one program for a segment."""
    segment = tl.program_id(0)
    row, own = rows + segment * WIDTH, state + segment * WORDS
    k, number_of = tl.load(row + K).to(tl.int32), tl.load(row + BLOCKS).to(tl.int32)
    here = counts + tl.load(row + FIRST).to(tl.int32)
    total = 0
    for at in range(0, number_of, CHUNK):
        j = at + tl.arange(0, CHUNK)
        c = tl.load(here + j, mask=j < number_of, other=0)
        tl.store(here + j, total + tl.cumsum(c, 0) - c, mask=j < number_of)
        total += tl.sum(c, 0)
    exact = (k > 0) & ((total < k) | (total > tl.load(row + ROOM).to(tl.int32)))
    if k == 0:
        tl.store(hints + segment, 0)
    tl.store(own + TOTAL, total)
    tl.store(own + EXACT, exact.to(tl.int32))
    tl.store(own + PREFIX, 0)
    tl.store(own + NEED, k)
    if exact:
        bins = tl.arange(0, BINS)
        for step in range(3):
            tl.store(table + (segment * 3 + step) * BINS + bins, tl.zeros([BINS], tl.int32))


@triton.jit
def compact(
    rows,
    blocks,
    bits,
    counts,
    state,
    places,
    magnitudes,
    dtype: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The candidates, by index: places and magnitudes. Only sectors that hold one are read."""
    pid = tl.program_id(0)
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    if (tl.load(row + K) > 0) & (tl.load(state + segment * WORDS + EXACT) == 0):
        v = address(tl.load(row + V), dtype, False)
        slot = tl.load(row + SLOT).to(tl.int32)
        b = tl.load(bits + pid * (BLOCK // 8) + tl.arange(0, BLOCK // 8)).to(tl.int32)
        take = tl.reshape((b[:, None] >> tl.arange(0, 8)[None, :]) & 1, [BLOCK])
        at = slot + tl.load(counts + pid) + tl.cumsum(take, 0) - take
        i = first + tl.arange(0, BLOCK)
        x = widened(tl.load(v + i, mask=take == 1, other=0.0))
        tl.store(places + at, i, mask=take == 1)
        tl.store(magnitudes + at, magnitude(x), mask=take == 1)


@triton.jit
def digit_of(
    magnitudes,
    total,
    prefix,
    need,
    SHIFT: tl.constexpr,
    TOP: tl.constexpr,
    WIDE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One more digit of the need-th largest that begins with the prefix, and how many are needed
    of those that begin with both."""
    h = tl.zeros([WIDE], tl.int32)
    for at in range(0, total, CHUNK):
        j = at + tl.arange(0, CHUNK)
        b = tl.load(magnitudes + j, mask=j < total, other=0)
        on = (j < total) & ((b >> TOP) == (prefix >> TOP))
        h += tl.histogram((b >> SHIFT) & (WIDE - 1), WIDE, mask=on)
    above = tl.sum(h, 0) - tl.cumsum(h, 0)
    digit = tl.sum((above >= need).to(tl.int32), 0)
    more = tl.sum(tl.where(tl.arange(0, WIDE) == digit, above, 0), 0)
    return prefix | (digit << SHIFT), need - more


@triton.jit
def select(
    rows,
    state,
    places,
    magnitudes,
    hints,
    dtype: tl.constexpr,
    mode: tl.constexpr,
    masks: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The k largest candidates of a segment, and the next threshold. One program for each."""
    segment = tl.program_id(0)
    row, own = rows + segment * WIDTH, state + segment * WORDS
    k = tl.load(row + K).to(tl.int32)
    if (k > 0) & (tl.load(own + EXACT) == 0):
        total, slot = tl.load(own + TOTAL), tl.load(row + SLOT).to(tl.int32)
        places += slot
        magnitudes += slot
        least, need = digit_of(magnitudes, total, 0, k, 23, 31, 256, CHUNK)
        least, need = digit_of(magnitudes, total, least, need, 15, 23, 256, CHUNK)
        least, need = digit_of(magnitudes, total, least, need, 7, 15, 256, CHUNK)
        least, need = digit_of(magnitudes, total, least, need, 0, 7, 128, CHUNK)
        done = 0
        ties = 0
        for at in range(0, total, CHUNK):
            j = at + tl.arange(0, CHUNK)
            b = tl.load(magnitudes + j, mask=j < total, other=-1)
            equal = (b == least).to(tl.int32)
            rank = ties + tl.cumsum(equal, 0) - equal
            keep = ((b > least) | ((equal == 1) & (rank < need))).to(tl.int32)
            i = tl.load(places + j, mask=keep == 1, other=0)
            take(row, i, keep == 1, done + tl.cumsum(keep, 0) - keep, dtype, mode, masks)
            done += tl.sum(keep, 0)
            ties += tl.sum(equal, 0)
        twice = 2 * k
        lower = (hint_of(row).to(tl.float32, bitcast=True) * 0.97).to(tl.int32, bitcast=True)
        if total >= twice:
            lower, need = digit_of(magnitudes, total, 0, twice, 23, 31, 256, CHUNK)
            lower, need = digit_of(magnitudes, total, lower, need, 15, 23, 256, CHUNK)
        tl.store(hints + segment, tl.maximum(lower, 1))
