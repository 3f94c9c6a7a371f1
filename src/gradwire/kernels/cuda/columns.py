"""What the kernels of a selection know of a segment: the columns of its row, and its state."""

from __future__ import annotations

import triton
import triton.language as tl

from gradwire.kernels.cuda.device import FEEDBACK, address, is_finite, widened

NONE = tl.constexpr(3)
"""No recurrence: what is selected from is read only."""
BLOCK = 4096
"""Elements of a program."""
ITEMS = 2048
"""Candidates of a program."""

G, U, V, N, K, INDICES, VALUES, VELOCITIES, HINT, HINT_BITS, M, S, D = (
    tl.constexpr(i) for i in range(13)
)
FIRST, BLOCKS, SLOT, ROOM, ITEM = (tl.constexpr(i) for i in range(13, 18))
"""FIRST, BLOCKS: of all elements. SLOT, ROOM: of candidates; ITEM: the first block of them."""
KEPT, WHICH, KEEPS, MET = (tl.constexpr(i) for i in range(18, 22))
WIDTH = tl.constexpr(22)
"""Where old blocks are put aside, and where each begins; how many there is room for. MET: how many
there were to put aside, counted by the kernel: the one word that it writes, and the last."""

TOTAL, EXACT, PREFIX, NEED, NEXT, NEXT_NEED, FEW, MANY, LOWER, DONE = (
    tl.constexpr(i) for i in range(10)
)
"""Of the state: candidates; whether all elements are looked at; what the k-th largest is known to
begin with, and how many are needed of those that do; the same of the 2 k-th, where all are looked
at; how many reach the upper threshold and how many the lower; whether candidates are by the lower;
and how many blocks each of five passes has done."""
WORDS = tl.constexpr(15)
BINS = tl.constexpr(256)
TABLES = tl.constexpr(6)
"""Histograms of a segment: of four digits, and of the second and third of the 2 k-th."""


@triton.jit
def hint_of(row, which: tl.constexpr):
    """The bits of a threshold, 0: the upper, 1: the lower."""
    return hint_at(row + HINT, which)


@triton.jit
def hint_at(at, which: tl.constexpr):
    """The same, of two columns: of the words on the device, or of the number, which is both."""
    word, bits = tl.load(at), tl.load(at + 1).to(tl.int32)
    return tl.load(address(word, tl.int32, False) + which, mask=word != 0, other=bits)


@triton.jit
def enter(row, i, on, to, x, u, mode: tl.constexpr):
    """Write entries i, where `on`, to places `to` of the result. x, in fp32, and u: what waits
    there; what is not finite is sent as zero."""
    indices = address(tl.load(row + INDICES), tl.int32, False)
    values = address(tl.load(row + VALUES), tl.float32, False)
    tl.store(indices + to, i, mask=on)
    tl.store(values + to, tl.where(is_finite(x), x, 0.0), mask=on)
    if (mode != NONE) & (mode != FEEDBACK):
        velocities = address(tl.load(row + VELOCITIES), tl.float32, False)
        tl.store(velocities + to, u, mask=on)


@triton.jit
def take(row, i, on, to, dtype: tl.constexpr, mode: tl.constexpr, masks: tl.constexpr):
    """`enter` what is in memory, and clear it there."""
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
