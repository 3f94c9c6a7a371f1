"""What an update would lose to rounding, kept on the device: old blocks of its state."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

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
from gradwire.kernels.cuda.device import FEEDBACK, address, block_of
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.tables import (
    Column,
    Columns,
    addresses,
    all_aligned,
    blocks_on,
    on_its_device,
    rows_on,
)
from gradwire.kernels.journal import FACTOR as JOURNAL_FACTOR

FACTOR = tl.constexpr(JOURNAL_FACTOR)


class Shelf:
    """Room for old u and v of blocks of many segments, as one update puts them aside: of at most
    one block in eight of each, whose order nobody knows. One allocation.

    sizes: of the segments; 0: of one that keeps nothing. table: the rows of the update, once they
    are on the device.
    """

    def __init__(self, sizes: tuple[int, ...], with_velocity: bool, device: torch.device) -> None:
        self.sizes, self.with_velocity = sizes, with_velocity
        self.slots, self.begins = slots_of(sizes)
        room = torch.empty(self.begins[-1] * (2 * BLOCK + 1), device=device)
        self.kept, which = room.split([2 * BLOCK * self.begins[-1], self.begins[-1]])
        self.which = which.view(torch.int32)
        self.table: Tensor | None = None

    def columns(self) -> tuple[Column, ...]:
        """KEPT, WHICH, KEEPS and MET."""
        kept, which = self.kept.data_ptr(), self.which.data_ptr()
        begins = self.begins[:-1]
        return (
            [kept + 8 * BLOCK * at if n else 0 for at, n in zip(begins, self.slots)],
            [which + 4 * at for at in begins], self.slots, 0,
        )  # fmt: skip


@lru_cache(maxsize=256)
def slots_of(sizes: tuple[int, ...]) -> tuple[Sequence[int], Sequence[int]]:
    """How many blocks of segments of these sizes are kept, at most; and where theirs begin, and
    end."""
    slots = array("q", (-(-n // (8 * BLOCK)) for n in sizes))
    return slots, array("q", accumulate(slots, initial=0))


class Blocks:
    """What one segment has on a shelf: what `journal.Kept` asks for."""

    __slots__ = "number", "shelf"

    def __init__(self, shelf: Shelf, number: int) -> None:
        self.shelf, self.number = shelf, number

    def elements(self) -> int:
        """How many are kept: the host waits for the device."""
        if self.shelf.table is None:
            return 0
        met, n = int(self.shelf.table[self.number, MET.value]), self.shelf.sizes[self.number]
        begin, slots = self.shelf.begins[self.number], self.shelf.slots[self.number]
        firsts = self.shelf.which[begin : begin + min(met, slots)].tolist()
        return sum(min(BLOCK, n - first) for first in firsts)

    def fits(self, n: int, with_velocity: bool) -> bool:
        own = self.shelf.sizes[self.number], self.shelf.with_velocity
        return (n, with_velocity) == own

    @staticmethod
    @on_its_device
    def put_all_back(given: Sequence[tuple[Blocks, Tensor | None, Tensor]]) -> None:
        """Those of one launch at least, which are on one device."""
        us, vs = addresses([u for _, u, _ in given]), addresses([v for *_, v in given])
        own = [one for one, _, _ in given]
        slots = tuple(one.shelf.slots[one.number] for one in own)
        if any(slots):
            device = given[0][2].device
            sizes = array("q", (one.shelf.sizes[one.number] for one in own))
            places = zip(*(one._places() for one in own))
            rows = rows_on(device, Columns(
                len(own), 0, us, vs, sizes, *[0] * (KEPT.value - N.value - 1), *places,
            ))  # fmt: skip
            blocks = blocks_on(device, tuple(BLOCK * slot for slot in slots), BLOCK)
            launch(put_back, (blocks.shape[0],),
                rows, blocks, aligned=all_aligned(us, vs), BLOCK=BLOCK, num_warps=8,
            )  # fmt: skip

    def _places(self) -> tuple[int, int, int, int]:
        """KEPT, WHICH, KEEPS; and where MET is counted, if the update got so far."""
        shelf, begin = self.shelf, self.shelf.begins[self.number]
        kept, which = shelf.kept.data_ptr(), shelf.which.data_ptr()
        table = shelf.table
        met = (
            0 if table is None else table.data_ptr() + 8 * (self.number * WIDTH.value + MET.value)
        )
        slots = shelf.slots[self.number]
        return kept + 8 * BLOCK * begin, which + 4 * begin, slots, met


@triton.jit
def put_back(rows, blocks, aligned: tl.constexpr, BLOCK: tl.constexpr):
    """What a slot keeps, to where it was."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    slot, counted = first // BLOCK, tl.load(row + MET)
    met = tl.load(address(counted, tl.int64, False), mask=counted != 0, other=0)
    if slot < tl.minimum(met, tl.load(row + KEEPS)):
        n = tl.load(row + N).to(tl.int32)
        i = tl.load(address(tl.load(row + WHICH), tl.int32, False) + slot)
        i = tl.multiple_of(i, 16) + tl.arange(0, BLOCK)
        here = address(tl.load(row + KEPT), tl.float32, True) + slot.to(tl.int64) * (2 * BLOCK)
        here += tl.arange(0, BLOCK)
        tl.store(address(tl.load(row + V), tl.float32, aligned) + i, tl.load(here), mask=i < n)
        u = tl.load(row + U)
        if u != 0:
            kept = tl.load(here + BLOCK)
            tl.store(address(u, tl.float32, aligned) + i, kept, mask=i < n)


@triton.jit
def keep_large(row, first, sg, u, v, n, mode: tl.constexpr, BLOCK: tl.constexpr):
    """Put old u and v aside where a scaled gradient is far larger than the threshold, so that
    inverting would lose them to rounding: while there is room."""
    word = tl.load(row + KEPT)
    if word != 0:
        hint = hint_of(row, 0).to(tl.float32, bitcast=True)
        i = first + tl.arange(0, BLOCK)
        large = (i < n) & ~(tl.abs(sg) < hint * FACTOR)  # NaN is not below it
        if tl.max(large.to(tl.int32), 0) != 0:
            slot = tl.atomic_add(row + MET, tl.full([], 1, tl.int64))
            if slot < tl.load(row + KEEPS):
                tl.store(address(tl.load(row + WHICH), tl.int32, False) + slot, first)
                kept = address(word, tl.float32, True) + slot * (2 * BLOCK)
                tl.store(kept + tl.arange(0, BLOCK), v)
                if mode != FEEDBACK:
                    tl.store(kept + BLOCK + tl.arange(0, BLOCK), u)
