"""The journal on the device: old blocks of state, which undoing would lose to rounding."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.columns import (
    BLOCK,
    KEEPS,
    KEPT,
    MET,
    WHICH,
    WIDTH,
    N,
    U,
    V,
    hint_of,
)
from gradwire.kernels.cuda.device import FEEDBACK, address, block_of, magnitude
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.tables import (
    Column,
    Columns,
    addresses,
    all_aligned,
    blocks_on,
    grouped,
    on_its_device,
    rows_on,
)
from gradwire.kernels.journal import FAR as JOURNAL_FAR
from gradwire.kernels.journal import HUGE as JOURNAL_HUGE
from gradwire.kernels.journal import Journal

FAR, HUGE = tl.constexpr(JOURNAL_FAR), tl.constexpr(JOURNAL_HUGE)
NORMAL = tl.constexpr(0x00800000)
"""The bits of the smallest normal number."""
PART = tl.constexpr(512)
"""The number of elements that are saved at once."""
LEAST = 8 * BLOCK
"""The elements of a segment for which there is always room. Beyond this there is a byte for each
element: room for one in four, or one in eight with a velocity."""


class Shelf:
    """Buffers for old u and v of blocks of many segments, which one update saves in any order. One
    allocation.

    sizes: of the segments; 0 for one that keeps nothing. block: elements of a block. table: the
    rows of the update, once they are on the device; MET is the last word of each.
    """

    def __init__(
        self, sizes: tuple[int, ...], with_velocity: bool, device: torch.device, block: int
    ) -> None:
        self.sizes, self.with_velocity, self.block = sizes, with_velocity, block
        self.slots, self.begins = slots_of(sizes, with_velocity, block)
        self.size = block * (1 + with_velocity)
        room = torch.empty(self.begins[-1] * (self.size + 1), device=device, dtype=torch.float32)
        self.kept, which = room.split([self.size * self.begins[-1], self.begins[-1]])
        self.which = which.view(torch.int32)
        self.table: Tensor | None = None

    def columns(self) -> tuple[Column, ...]:
        """Returns the columns KEPT, WHICH, KEEPS and MET."""
        kept, which = self.kept.data_ptr(), self.which.data_ptr()
        begins = self.begins[:-1]
        return (
            [kept + 4 * self.size * at if n else 0 for at, n in zip(begins, self.slots)],
            [which + 4 * at for at in begins], self.slots, 0,
        )  # fmt: skip

    def places(self, number: int) -> tuple[int, int, int, int]:
        """Returns KEPT, WHICH and KEEPS of a segment, and the address of MET in the update's rows;
        0 if the update did not get so far."""
        begin, met = self.begins[number], 0
        if self.table is not None:
            met = self.table.data_ptr() + 8 * ((number + 1) * self.table.shape[1] - 1)
        kept = self.kept.data_ptr() + 4 * self.size * begin
        return kept, self.which.data_ptr() + 4 * begin, self.slots[number], met


@lru_cache(maxsize=256)
def slots_of(
    sizes: tuple[int, ...], with_velocity: bool, block: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Returns how many blocks of each segment can be kept, and where each segment's begin, with
    the end of the last."""
    share, least = (8 if with_velocity else 4) * block, LEAST // block
    slots = array("q", (min(-(-n // block), max(least, -(-n // share))) for n in sizes))
    return slots, array("q", accumulate(slots, initial=0))


def shelf_of(every: Any, sizes: tuple[int, ...], device: torch.device, block: int) -> Shelf | None:
    """Returns the shelf for old blocks of the segments that have a journal; None if none has."""
    journals: Sequence[Journal | None] = every.journal
    if None in journals:
        if not any(journals):
            return None
        sizes = tuple(0 if one is None else n for one, n in zip(journals, sizes))
    shelf = Shelf(sizes, every.velocity[0] is not None, device, block)
    for number, journal in enumerate(journals):
        if journal is not None:
            journal.keep(Blocks(shelf, number))
    return shelf


class Blocks:
    """The blocks of one segment on a shelf; implements `journal.Kept`."""

    __slots__ = "number", "shelf"

    def __init__(self, shelf: Shelf, number: int) -> None:
        self.shelf, self.number = shelf, number

    def elements(self) -> int:
        """Returns how many elements are kept; the host waits for the device."""
        shelf, number = self.shelf, self.number
        if shelf.table is None:
            return 0
        begin, met = shelf.begins[number], int(shelf.table[number, -1])
        firsts = shelf.which[begin : begin + min(met, shelf.slots[number])].tolist()
        return sum(min(shelf.block, shelf.sizes[number] - first) for first in firsts)

    def fits(self, n: int, with_velocity: bool) -> bool:
        own = self.shelf.sizes[self.number], self.shelf.with_velocity
        return (n, with_velocity) == own

    @staticmethod
    @on_its_device
    def put_all_back(given: Sequence[tuple[Blocks, Tensor | None, Tensor]]) -> None:
        """Writes all back; they are on one device, and those of one block size share a launch."""
        for block, own in grouped(given, lambda one: one[0].shelf.block):
            _put_back(block, own)


def _put_back(block: int, given: Sequence[tuple[Blocks, Tensor | None, Tensor]]) -> None:
    us, vs = addresses([u for _, u, _ in given]), addresses([v for *_, v in given])
    own = [one for one, _, _ in given]
    slots = tuple(one.shelf.slots[one.number] for one in own)
    if any(slots):
        device = given[0][2].device
        sizes = array("q", (one.shelf.sizes[one.number] for one in own))
        places = zip(*(one.shelf.places(one.number) for one in own))
        rows = rows_on(device, Columns(
            len(own), 0, us, vs, sizes, *[0] * (KEPT.value - N.value - 1), *places,
        ))  # fmt: skip
        blocks = blocks_on(device, tuple(block * slot for slot in slots), block)
        launch(put_back, (blocks.shape[0],),
            rows, blocks, aligned=all_aligned(us, vs), BLOCK=block, num_warps=8,
        )  # fmt: skip


@triton.jit
def put_back(rows, blocks, aligned: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the block that a slot keeps back to where it was."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    slot, counted = first // BLOCK, tl.load(row + MET)
    met = tl.load(address(counted, tl.int64, False), mask=counted != 0, other=0)
    if slot < tl.minimum(met, tl.load(row + KEEPS)):
        n = tl.load(row + N).to(tl.int32)
        i = tl.load(address(tl.load(row + WHICH), tl.int32, False) + slot)
        i = tl.multiple_of(i, 16) + tl.arange(0, BLOCK)
        u, n_of = tl.load(row + U), tl.arange(0, BLOCK)
        size = tl.where(u != 0, 2 * BLOCK, BLOCK).to(tl.int64)
        here = address(tl.load(row + KEPT), tl.float32, True) + slot * size + n_of
        tl.store(address(tl.load(row + V), tl.float32, aligned) + i, tl.load(here), mask=i < n)
        if u != 0:
            kept = tl.load(here + BLOCK)
            tl.store(address(u, tl.float32, aligned) + i, kept, mask=i < n)


@triton.jit
def ordered(x):
    """Returns |x| as an integer with the same order; NaN is above inf."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def limit_of(hint, first, n, v, BLOCK: tl.constexpr):
    """Returns the bits of the magnitude from which on a scaled gradient has its block kept. hint:
    bits of the threshold; if it is 0 (none is known) or subnormal (zeros were selected), the
    largest number of the block's residual, v, is used instead."""
    if hint < NORMAL:
        for part in range(0, BLOCK, PART):
            i = part + tl.arange(0, PART)
            waits = tl.load(v + first + i, mask=i < n - first, other=0.0)
            hint = tl.maximum(hint, tl.max(magnitude(waits), 0))
    limit = tl.minimum(hint.to(tl.float32, bitcast=True) * FAR, HUGE)
    return tl.maximum(limit.to(tl.int32, bitcast=True), 1)


@triton.jit
def put_aside(at, first, n, u, v, mode: tl.constexpr, BLOCK: tl.constexpr):
    """Saves old u and v of a block, before they are overwritten, if there is room. at: KEPT of its
    row."""
    slot = tl.atomic_add(at + 3, tl.full([], 1, tl.int64))
    if slot < tl.load(at + 2):
        tl.store(address(tl.load(at + 1), tl.int32, False) + slot, first)
        size: tl.constexpr = BLOCK if mode == FEEDBACK else 2 * BLOCK
        here = address(tl.load(at), tl.float32, True) + slot * size
        for part in range(0, BLOCK, PART):  # part by part, to use few registers: it is rare
            i = part + tl.arange(0, PART)
            on = i < n - first
            tl.store(here + i, tl.load(v + first + i, mask=on, other=0.0))
            if mode != FEEDBACK:
                tl.store(here + BLOCK + i, tl.load(u + first + i, mask=on, other=0.0))
    tl.debug_barrier()  # a thread may next overwrite elements that another one saves


@triton.jit
def keep_far(row, first, sg, u, v, n, mode: tl.constexpr, BLOCK: tl.constexpr):
    """Saves the old values that u and v point to, if a scaled gradient is far larger than the
    threshold, so that inverting would lose them to rounding."""
    at = row + KEPT
    if tl.load(at) != 0:  # noqa: SIM102 - so that the other is evaluated only if needed
        if tl.max(ordered(sg), 0) >= limit_of(hint_of(row, 0), first, n, v, BLOCK):
            put_aside(at, first, n, u, v, mode, BLOCK)
