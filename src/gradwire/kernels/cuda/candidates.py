"""Elements that reach a threshold of the last step: a bit for each, then places and magnitudes.

There are two thresholds, as the size of the next gradients is unknown. Candidates are the elements
that reach the upper one, or, if these are fewer than k, the lower one.
Bytes for each element, besides those of `mark`: 1/8 for the bits; for each candidate 12, and a
sector of 32 that it is read from.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gradwire.kernels.cuda.columns import (
    BINS,
    BLOCKS,
    EXACT,
    FEW,
    FIRST,
    LOWER,
    MANY,
    NEED,
    NEXT_NEED,
    NONE,
    ROOM,
    SLOT,
    TABLES,
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
from gradwire.kernels.cuda.kept import keep_far


@triton.jit
def stepped(
    row, first, i, n, whole, dtype: tl.constexpr, mode: tl.constexpr, aligned: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns a block's new u and v, not written yet, and whether both would be finite. What
    inverting would lose is saved first."""
    x = read(address(tl.load(row + G), dtype, aligned), i, n, whole)
    good = is_finite(x)
    u = x
    if mode != NONE:
        m, s, d = number(tl.load(row + M)), number(tl.load(row + S)), number(tl.load(row + D))
        pv = address(tl.load(row + V), tl.float32, aligned)
        v, pu = read(pv, i, n, whole), pv
        u = v
        if mode != FEEDBACK:
            pu = address(tl.load(row + U), tl.float32, aligned)
            u = read(pu, i, n, whole)
        keep_far(row, first, x * s, pu, pv, n, mode, BLOCK)
        u, x, good = advanced(x, u, v, m, s, d, mode)
    return u, x, good


@triton.jit
def remember(row, i, u, x, n, whole, mode: tl.constexpr, aligned: tl.constexpr):
    """Writes u and v, if the mode has them."""
    if mode != NONE:
        write(address(tl.load(row + V), tl.float32, aligned), i, x, n, whole)
        if mode != FEEDBACK:
            write(address(tl.load(row + U), tl.float32, aligned), i, u, n, whole)


@triton.jit
def mark(
    rows,
    spans,
    bits,
    counts,
    status,
    exacts,
    all_of,
    dtype: tl.constexpr,
    mode: tl.constexpr,
    marks: tl.constexpr,
    aligned: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Runs the recurrence, and writes for each element and threshold a bit: whether it reaches it.
    A program has several blocks of one segment, so that it reads its row once. all_of: the blocks
    of all segments; bits and counts of the lower threshold come after these.

    Bytes for each element: the gradient's; 16 with momentum, 8 with feedback, 0 without; 1/4.
    """
    segment, begin = block_of(spans)
    row = rows + segment * WIDTH
    n = tl.load(row + N).to(tl.int32)
    if marks:  # noqa: SIM102 - known when compiled, and the next is not
        if tl.program_id(0) == 0:
            tl.store(exacts, 0)
    for at in range(begin, tl.minimum(begin + SPAN, n), BLOCK):
        first = tl.multiple_of(at, 16)
        i = first + tl.arange(0, BLOCK)
        whole = first <= n - BLOCK
        u, x, good = stepped(row, first, i, n, whole, dtype, mode, aligned, BLOCK)
        remember(row, i, u, x, n, whole, mode, aligned)
        raise_if(status, ~good & (i < n))
        if marks:
            upper = (magnitude(x) >= hint_of(row, 0)) & (i < n)
            lower = (magnitude(x) >= hint_of(row, 1)) & (i < n)
            flags = upper.to(tl.int32) + (lower.to(tl.int32) << 16)  # both in each sum
            block = tl.load(row + FIRST).to(tl.int32) + first // BLOCK
            at_bits = bits + block * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
            eights, count = packed(flags, BLOCK), tl.sum(flags, 0)
            tl.store(at_bits, eights.to(tl.uint8))
            tl.store(at_bits + all_of * (BLOCK // 8), (eights >> 16).to(tl.uint8))
            tl.store(counts + block, count & 0xFFFF)
            tl.store(counts + all_of + block, count >> 16)


@triton.jit
def begins(counts, number_of, CHUNK: tl.constexpr):
    """Replaces counts by the offsets where each block's candidates begin. Returns their sum."""
    total = 0
    for at in range(0, number_of, CHUNK):
        j = at + tl.arange(0, CHUNK)
        c = tl.load(counts + j, mask=j < number_of, other=0)
        tl.store(counts + j, total + tl.cumsum(c, 0) - c, mask=j < number_of)
        total += tl.sum(c, 0)
    return total


@triton.jit
def scan(rows, counts, state, bins, hints, exacts, all_of, CHUNK: tl.constexpr):
    """Chooses the threshold whose candidates are used, and initializes the state of the following
    passes. One program for a segment; `exacts` is raised if all elements must be read."""
    segment = tl.program_id(0)
    row, own = rows + segment * WIDTH, state + segment * WORDS
    k, number_of = tl.load(row + K).to(tl.int32), tl.load(row + BLOCKS).to(tl.int32)
    here = counts + tl.load(row + FIRST).to(tl.int32)
    few = begins(here, number_of, CHUNK)
    many = begins(here + all_of, number_of, CHUNK)
    total = tl.where(few < k, many, few)
    exact = (k > 0) & ((total < k) | (total > tl.load(row + ROOM).to(tl.int32)))
    if exact:
        tl.atomic_or(exacts, 1)
    if k == 0:
        tl.store(hints + 2 * segment + tl.arange(0, 2), tl.zeros([2], tl.int32))
    words = tl.arange(0, 16)
    begun = tl.where(words == TOTAL, tl.where(k == 0, 0, total), 0)
    begun = tl.where(words == EXACT, exact.to(tl.int32), begun)
    begun = tl.where(words == NEED, k, begun)
    twice = exact & (tl.load(row + N).to(tl.int32) // 2 >= k)
    begun = tl.where((words == NEXT_NEED) & twice, 2 * k, begun)
    begun = tl.where(words == FEW, few, begun)
    begun = tl.where(words == MANY, many, begun)
    begun = tl.where(words == LOWER, (few < k).to(tl.int32), begun)
    tl.store(own + words, begun, mask=words < WORDS)
    digits = tl.arange(0, BINS)
    for step in range(TABLES):
        tl.store(bins + (segment * TABLES + step) * BINS + digits, tl.zeros([BINS], tl.int32))


@triton.jit
def ones_of(word):
    """Returns how many of 32 bits are set."""
    pairs = word - ((word >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    eights = (fours + (fours >> 4)) & 0x0F0F0F0F
    return ((eights * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def compact(
    rows,
    spans,
    bits,
    counts,
    state,
    places,
    magnitudes,
    all_of,
    dtype: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Writes the candidates of a span of blocks, by index: places and magnitudes. Each turn takes
    the lowest set bit out of every 32; most have none. Only sectors that hold one are read."""
    segment, first = block_of(spans)
    row = rows + segment * WIDTH
    if (tl.load(row + K) > 0) & (tl.load(state + segment * WORDS + EXACT) == 0):
        v, n = address(tl.load(row + V), dtype, False), tl.load(row + N).to(tl.int32)
        plane = tl.load(state + segment * WORDS + LOWER) * all_of
        block = plane + tl.load(row + FIRST).to(tl.int32) + first // BLOCK
        words = (bits + block * (BLOCK // 8)).to(tl.pointer_type(tl.uint32))
        at = tl.arange(0, SPAN // 32)
        word = tl.load(words + at, mask=at < (n - first + 31) // 32, other=0)
        ones = ones_of(word)
        before = tl.load(row + SLOT).to(tl.int32) + tl.load(counts + block)
        to = before + tl.cumsum(ones, 0) - ones
        for _ in range(tl.max(ones, 0)):
            on = word != 0
            rest = word & (word - 1)
            i = first + at * 32 + ones_of((word ^ rest) - 1)
            x = widened(tl.load(v + i, mask=on, other=0.0))
            tl.store(places + to, i, mask=on)
            tl.store(magnitudes + to, magnitude(x), mask=on)
            to += 1
            word = rest
