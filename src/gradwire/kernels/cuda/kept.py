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

from gradwire.kernels.cuda.columns import BLOCK, KEEPS, KEPT, MET, WHICH, hint_of
from gradwire.kernels.cuda.device import FEEDBACK, address
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.tables import Column, on_its_device
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
        firsts = self.shelf.which[self._room()][:met].tolist()
        return sum(min(BLOCK, n - first) for first in firsts)

    def fits(self, n: int, with_velocity: bool) -> bool:
        own = self.shelf.sizes[self.number], self.shelf.with_velocity
        return (n, with_velocity) == own

    def _room(self) -> slice:
        return slice(*self.shelf.begins[self.number : self.number + 2])

    @on_its_device
    def put_back(self, velocity: Tensor | None, residual: Tensor) -> None:
        shelf, room = self.shelf, self._room()
        if shelf.table is not None and room.stop > room.start:
            launch(put_back, (room.stop - room.start,),
                shelf.kept[2 * BLOCK * room.start :], shelf.which[room],
                shelf.table[self.number], residual if velocity is None else velocity, residual,
                shelf.sizes[self.number], with_velocity=velocity is not None, BLOCK=BLOCK,
                num_warps=8,
            )  # fmt: skip


@triton.jit
def put_back(kept, which, rows, u, v, n, with_velocity: tl.constexpr, BLOCK: tl.constexpr):
    """What a slot keeps, to where it was."""
    slot = tl.program_id(0)
    if slot < tl.load(rows + MET):
        i = tl.load(which + slot) + tl.arange(0, BLOCK)
        here = kept + slot.to(tl.int64) * (2 * BLOCK) + tl.arange(0, BLOCK)
        tl.store(v + i, tl.load(here), mask=i < n)
        if with_velocity:
            tl.store(u + i, tl.load(here + BLOCK), mask=i < n)


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
