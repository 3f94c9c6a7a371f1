"""The columns of a segment's row, and the words of its state, in the kernels of a selection."""

from __future__ import annotations

import triton
import triton.language as tl

from gradwire.kernels.cuda.device import FEEDBACK, address, is_finite, widened

NONE = tl.constexpr(3)
"""No recurrence: the tensor that is selected from is only read."""
BLOCK = 4096
"""Elements of a program."""
ITEMS = 2048
"""Candidates of a program."""

G, U, V, N, K, INDICES, VALUES, VELOCITIES, HINT, HINT_BITS, M, S, D = (
    tl.constexpr(i) for i in range(13)
)
FIRST, BLOCKS, SLOT, ROOM, ITEM = (tl.constexpr(i) for i in range(13, 18))
"""FIRST, BLOCKS: the first block, and their number. SLOT, ROOM: the first slot for candidates, and
their number; ITEM: the first block of these."""
KEPT, WHICH, KEEPS, MET = (tl.constexpr(i) for i in range(18, 22))
WIDTH = tl.constexpr(22)
"""KEPT, WHICH: the addresses of saved blocks and of their first elements; KEEPS: how many fit.
MET: how many were to be saved, counted by the kernel: the only word that it writes, and the last.
"""

TOTAL, EXACT, PREFIX, NEED, NEXT, NEXT_NEED, FEW, MANY, LOWER, DONE = (
    tl.constexpr(i) for i in range(10)
)
"""The words of a segment's state. TOTAL: the number of candidates. EXACT: whether all elements are
read. PREFIX: the known leading bits of the k-th largest; NEED: its rank among those with this
prefix. NEXT, NEXT_NEED: the same of the 2 k-th, if all are read. FEW, MANY: how many reach the
upper and the lower threshold. LOWER: whether the lower is used. DONE: blocks done, in five passes.
"""
WORDS = tl.constexpr(15)
BINS = tl.constexpr(256)
TABLES = tl.constexpr(6)
"""Histograms of a segment: for four digits, and for the second and third of the 2 k-th."""


@triton.jit
def hint_of(row, which: tl.constexpr):
    """Returns the bits of a threshold, 0: the upper, 1: the lower."""
    return hint_at(row + HINT, which)


@triton.jit
def hint_at(at, which: tl.constexpr):
    """Returns the same from two columns: the address of words on the device, else a number's bits,
    for both thresholds."""
    word, bits = tl.load(at), tl.load(at + 1).to(tl.int32)
    return tl.load(address(word, tl.int32, False) + which, mask=word != 0, other=bits)


@triton.jit
def enter(row, i, on, to, x, u, mode: tl.constexpr):
    """Writes entries i, where `on`, to positions `to` of the result. x, in fp32, and u: residual
    and velocity of these elements; a number that is not finite is sent as zero."""
    indices = address(tl.load(row + INDICES), tl.int32, False)
    values = address(tl.load(row + VALUES), tl.float32, False)
    tl.store(indices + to, i, mask=on)
    tl.store(values + to, tl.where(is_finite(x), x, 0.0), mask=on)
    if (mode != NONE) & (mode != FEEDBACK):
        velocities = address(tl.load(row + VELOCITIES), tl.float32, False)
        tl.store(velocities + to, u, mask=on)


@triton.jit
def take(row, i, on, to, dtype: tl.constexpr, mode: tl.constexpr, masks: tl.constexpr):
    """Runs `enter` for elements in memory, and clears them there."""
    v = address(tl.load(row + V), dtype, False)
    x = tl.load(v + i, mask=on, other=0.0)
    wide = widened(x)
    u = wide
    if (mode != NONE) & (mode != FEEDBACK):
        pu = address(tl.load(row + U), tl.float32, False)
        u = tl.load(pu + i, mask=on, other=0.0)
        if masks:
            tl.store(pu + i, tl.zeros_like(wide), mask=on)
    enter(row, i, on, to, wide, u, mode)
    if mode != NONE:
        tl.store(v + i, tl.zeros_like(x), mask=on & is_finite(wide))
