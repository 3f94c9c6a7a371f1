"""The k largest, exactly: of a segment's candidates, or of all its elements if the candidates were
too few or too many.

    digit x4 ──► count ──► emit

A pass counts how often each digit of the magnitudes' bits follows the known leading bits of the
k-th largest; the program that ends last finds its next digit. Programs take turns with the blocks
of candidates; and with those of all elements, if `exacts` says that some segment needs it.
Bytes: for a candidate 24; for an element, if all are read, 24.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gradwire.kernels.cuda.columns import (
    BINS,
    BLOCKS,
    DONE,
    EXACT,
    FEW,
    FIRST,
    ITEM,
    MANY,
    NEED,
    NEXT,
    NEXT_NEED,
    PREFIX,
    SLOT,
    TABLES,
    TOTAL,
    WIDTH,
    WORDS,
    K,
    N,
    V,
    hint_of,
    take,
)
from gradwire.kernels.cuda.device import address, block_at, magnitude, widened


@triton.jit
def is_last(own, step, parts):
    """Whether all other blocks of the segment have done this step; their writes can be read."""
    tl.debug_barrier()
    return tl.atomic_add(own + DONE + step, 1) == parts - 1


@triton.jit
def picked(bins, need, WIDE: tl.constexpr):
    """Returns the digit of the need-th largest, and its rank among those with this digit."""
    h = tl.load(bins + tl.arange(0, WIDE), cache_modifier=".cg")  # L2: other programs wrote it
    above = tl.sum(h, 0) - tl.cumsum(h, 0)
    digit = tl.sum((above >= need).to(tl.int32), 0)
    return digit, need - tl.sum(tl.where(tl.arange(0, WIDE) == digit, above, 0), 0)


@triton.jit
def add_digits(bins, b, on, prefix, SHIFT: tl.constexpr, TOP: tl.constexpr, WIDE: tl.constexpr):
    """Counts those that begin with the prefix by their next digit."""
    on = on & ((b >> TOP) == (prefix >> TOP))
    h = tl.histogram((b >> SHIFT) & (WIDE - 1), WIDE, mask=on)
    tl.atomic_add(bins + tl.arange(0, WIDE), h, mask=h > 0, sem="relaxed")


@triton.jit
def reached_by(rank, k, kth, few, upper, many, lower):
    """Returns the magnitude that about `rank` elements reach, by linear interpolation between
    three of which it is known how many reach them (`few` may be no more than k); no less than 3/4
    of the lowest."""
    between = (few > k) & (few < rank) & (few < many)
    before = (few > k) & ((few >= rank) | (few == many))
    near, begin = tl.where(between, few, k), tl.where(between, upper, kth)
    far, end = tl.where(before, few, many), tl.where(before, upper, lower)
    more = tl.maximum(far - near, 1).to(tl.float32)
    least = begin - (begin - end) * tl.div_rn(rank - near.to(tl.float32), more)
    return tl.maximum(tl.maximum(least, 0.75 * end).to(tl.int32, bitcast=True), 1)


@triton.jit
def foresee(row, own, hints, kth):
    """Writes the next thresholds: the magnitudes that 1.75 k and 3.5 k elements reach now. kth:
    the bits of the k-th largest."""
    k = tl.load(row + K).to(tl.int32)
    few, many = tl.load(own + FEW), tl.load(own + MANY)
    upper, lower = hint_of(row, 0), hint_of(row, 1)
    if tl.load(own + EXACT) != 0:  # then the 2 k-th of all is known, if n is at least 2 k
        twice = tl.load(own + NEXT_NEED) != 0
        few = tl.where(twice, 2 * k, k)
        upper = tl.where(twice, tl.load(own + NEXT), 0)
        many = few
        lower = upper
    kth, upper = kth.to(tl.float32, bitcast=True), upper.to(tl.float32, bitcast=True)
    lower = lower.to(tl.float32, bitcast=True)
    tl.store(hints, reached_by(1.75 * k, k, kth, few, upper, many, lower))
    tl.store(hints + 1, reached_by(3.5 * k, k, kth, few, upper, many, lower))


@triton.jit
def one_digit(b, on, row, own, bins, hints, parts, step: tl.constexpr):
    """Does one block's part of a step: bits 23 to 30, 15 to 22, 7 to 14, 0 to 6; and, if all are
    read, the same for the 2 k-th largest, except the last step."""
    shift: tl.constexpr = 23 - 8 * step if step < 3 else 0
    top: tl.constexpr = 31 - 8 * step
    wide: tl.constexpr = 256 if step < 3 else 128
    other: tl.constexpr = 3 + step if step > 0 else 0
    prefix, need = tl.load(own + PREFIX), tl.load(own + NEED)
    next_prefix, next_need = tl.load(own + NEXT), tl.load(own + NEXT_NEED)
    add_digits(bins + step * BINS, b, on, prefix, shift, top, wide)
    if (step == 1) | (step == 2):  # noqa: SIM102 - known when compiled, and the next is not
        if next_need > 0:
            add_digits(bins + other * BINS, b, on, next_prefix, shift, top, wide)
    if is_last(own, step, parts):
        digit, left = picked(bins + step * BINS, need, wide)
        least = prefix | (digit << shift)
        tl.store(own + PREFIX, least)
        tl.store(own + NEED, left)
        if step < 3:
            if next_need > 0:
                digit, left = picked(bins + other * BINS, next_need, wide)
                next_prefix |= digit << shift
                tl.store(own + NEXT, next_prefix)
                tl.store(own + NEXT_NEED, left)
        else:
            foresee(row, own, hints, least)


@triton.jit
def of_all(row, first, dtype: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the magnitudes of a block of a segment, and the mask of those below n."""
    v, n = address(tl.load(row + V), dtype, False), tl.load(row + N).to(tl.int32)
    i = first + tl.arange(0, BLOCK)
    return magnitude(widened(tl.load(v + i, mask=i < n, other=0.0))), i < n


@triton.jit
def digit(
    rows, blocks, wholes, state, bins, magnitudes, hints, exacts, number_of, all_of,
    dtype: tl.constexpr, step: tl.constexpr, ITEMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Finds one more digit of the k-th largest of every segment."""
    for at in range(tl.program_id(0), number_of, tl.num_programs(0)):
        segment, first = block_at(blocks, at)
        row, own = rows + segment * WIDTH, state + segment * WORDS
        total = tl.load(own + TOTAL)
        if (tl.load(own + EXACT) == 0) & (first < total):
            j = first + tl.arange(0, ITEMS)
            here = magnitudes + tl.load(row + SLOT).to(tl.int32)
            b = tl.load(here + j, mask=j < total, other=0)
            parts = (total + ITEMS - 1) // ITEMS
            table = bins + segment * TABLES * BINS
            one_digit(b, j < total, row, own, table, hints + 2 * segment, parts, step)
    if tl.load(exacts) != 0:
        for at in range(tl.program_id(0), all_of, tl.num_programs(0)):
            segment, first = block_at(wholes, at)
            row, own = rows + segment * WIDTH, state + segment * WORDS
            if tl.load(own + EXACT) != 0:
                b, on = of_all(row, first, dtype, BLOCK)
                parts = tl.load(row + BLOCKS).to(tl.int32)
                table = bins + segment * TABLES * BINS
                one_digit(b, on, row, own, table, hints + 2 * segment, parts, step)


@triton.jit
def count_block(b, own, above, equal, at, begin, parts, CHUNK: tl.constexpr):
    """Counts how many of a block are larger than the k-th, and how many equal it; the last block
    of a segment replaces both by their sums over the blocks before."""
    least = tl.load(own + PREFIX)
    tl.store(above + at, tl.sum((b > least).to(tl.int32), 0))
    tl.store(equal + at, tl.sum((b == least).to(tl.int32), 0))
    if is_last(own, 4, parts):
        a = 0
        e = 0
        for chunk in range(0, parts, CHUNK):
            j = chunk + tl.arange(0, CHUNK)
            on = j < parts
            c = tl.load(above + begin + j, mask=on, other=0, cache_modifier=".cg")
            f = tl.load(equal + begin + j, mask=on, other=0, cache_modifier=".cg")
            tl.store(above + begin + j, a + tl.cumsum(c, 0) - c, mask=on)
            tl.store(equal + begin + j, e + tl.cumsum(f, 0) - f, mask=on)
            a += tl.sum(c, 0)
            e += tl.sum(f, 0)


@triton.jit
def count(
    rows, blocks, wholes, state, magnitudes, above, equal, exacts, number_of, all_of,
    dtype: tl.constexpr, ITEMS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Finds where each block's part of the result begins."""
    for at in range(tl.program_id(0), number_of, tl.num_programs(0)):
        segment, first = block_at(blocks, at)
        row, own = rows + segment * WIDTH, state + segment * WORDS
        total = tl.load(own + TOTAL)
        if (tl.load(own + EXACT) == 0) & (first < total):
            j = first + tl.arange(0, ITEMS)
            here = magnitudes + tl.load(row + SLOT).to(tl.int32)
            b = tl.load(here + j, mask=j < total, other=-1)
            begin = tl.load(row + ITEM).to(tl.int32)
            count_block(b, own, above, equal, at, begin, (total + ITEMS - 1) // ITEMS, CHUNK)
    if tl.load(exacts) != 0:
        for at in range(tl.program_id(0), all_of, tl.num_programs(0)):
            segment, first = block_at(wholes, at)
            row, own = rows + segment * WIDTH, state + segment * WORDS
            if tl.load(own + EXACT) != 0:
                b, on = of_all(row, first, dtype, BLOCK)
                begin = number_of + tl.load(row + FIRST).to(tl.int32)
                parts = tl.load(row + BLOCKS).to(tl.int32)
                b = tl.where(on, b, -1)
                count_block(b, own, above, equal, number_of + at, begin, parts, CHUNK)


@triton.jit
def among(b, least, need, above, equal):
    """Returns which of a block are among the k largest, ties by index, and where each one goes.

    least: the k-th largest; need: how many that equal it are taken. above, equal: how many of the
    blocks before are larger, and equal. Both counts go through one sum.
    """
    more, same = (b > least).to(tl.int32), (b == least).to(tl.int32)
    before = tl.cumsum(more + (same << 16), 0)
    rank = equal + (before >> 16) - same
    on = (more == 1) | ((same == 1) & (rank < need))
    return on, above + (before & 0xFFFF) - more + tl.minimum(rank, need)


@triton.jit
def kept(b, own, above, equal, at):
    """Returns `among` for one of a segment's many blocks."""
    least, need = tl.load(own + PREFIX), tl.load(own + NEED)
    return among(b, least, need, tl.load(above + at), tl.load(equal + at))


@triton.jit
def emit(
    rows, blocks, wholes, state, places, magnitudes, above, equal, exacts, number_of, all_of,
    dtype: tl.constexpr, mode: tl.constexpr, masks: tl.constexpr, ITEMS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the k largest of every segment, by index, and clears them in the state."""
    for at in range(tl.program_id(0), number_of, tl.num_programs(0)):
        segment, first = block_at(blocks, at)
        row, own = rows + segment * WIDTH, state + segment * WORDS
        total = tl.load(own + TOTAL)
        if (tl.load(own + EXACT) == 0) & (first < total):
            j = tl.load(row + SLOT).to(tl.int32) + first + tl.arange(0, ITEMS)
            there = first + tl.arange(0, ITEMS) < total
            b = tl.load(magnitudes + j, mask=there, other=-1)
            on, to = kept(b, own, above, equal, at)
            i = tl.load(places + j, mask=on, other=0)
            take(row, i, on, to, dtype, mode, masks)
    if tl.load(exacts) != 0:
        for at in range(tl.program_id(0), all_of, tl.num_programs(0)):
            segment, first = block_at(wholes, at)
            row, own = rows + segment * WIDTH, state + segment * WORDS
            if tl.load(own + EXACT) != 0:
                b, there = of_all(row, first, dtype, BLOCK)
                on, to = kept(tl.where(there, b, -1), own, above, equal, number_of + at)
                take(row, first + tl.arange(0, BLOCK), on, to, dtype, mode, masks)
