"""The k largest of segments that are one block each: recurrence, selection and output in one
launch, with a program for each segment, whose elements stay in its registers.

The k-th largest is found bit by bit of the magnitudes, in 31 turns. No threshold is needed; the
k-th largest is returned as one because the journal needs it (`kept.keep_far`).
Bytes for each element with an fp32 gradient: dgc 20, ef 12; and 8 or 12 for each entry.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gradwire.kernels.cuda.candidates import remember, stepped
from gradwire.kernels.cuda.columns import WIDTH, K, N, enter
from gradwire.kernels.cuda.device import is_finite, magnitude, raise_if
from gradwire.kernels.cuda.radix import among


@triton.jit
def kth_largest(b, k):
    """Returns the largest number of 31 bits that k elements of b reach."""
    least = 0
    for turn in range(31):
        more = least | (1 << (30 - turn))
        least = tl.where(tl.sum((b >= more).to(tl.int32), 0) >= k, more, least)
    return least


@triton.jit
def choose(
    rows, hints, status, dtype: tl.constexpr, mode: tl.constexpr, masks: tl.constexpr,
    aligned: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Does all the work for one segment; `hints` gets two equal words."""
    segment = tl.program_id(0)
    row = rows + segment * WIDTH
    n, k = tl.load(row + N).to(tl.int32), tl.load(row + K).to(tl.int32)
    i, whole = tl.arange(0, BLOCK), n >= BLOCK
    u, x, good = stepped(row, 0, i, n, whole, dtype, mode, aligned, BLOCK)
    raise_if(status, ~good & (i < n))
    b = magnitude(x)  # zeros from n on, which are never preferred: ties go to the lower index
    least = kth_largest(b, k)
    need = k - tl.sum((b > least).to(tl.int32), 0)
    on, to = among(b, least, need, 0, 0)
    enter(row, i, on, to, x, u, mode)
    if masks:
        u = tl.where(on, 0.0, u)
    remember(row, i, u, tl.where(on & is_finite(x), 0.0, x), n, whole, mode, aligned)
    hint = tl.where(k == 0, 0, tl.maximum(least, 1))
    tl.store(hints + 2 * segment + tl.arange(0, 2), tl.zeros([2], tl.int32) + hint)
