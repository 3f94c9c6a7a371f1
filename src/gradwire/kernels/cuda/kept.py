"""What an update would lose to rounding, kept on the device: old blocks of its state."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.columns import BLOCK, KEEPS, KEPT, WHICH, hint_of
from gradwire.kernels.cuda.device import FEEDBACK, address
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.tables import on_its_device
from gradwire.kernels.journal import FACTOR as JOURNAL_FACTOR

FACTOR = tl.constexpr(JOURNAL_FACTOR)


class Blocks:
    """Old u and v of blocks of a segment of n elements, as one update puts them aside: what
    `journal.Kept` asks for. Of at most one block in eight, whose order nobody knows."""

    def __init__(self, n: int, with_velocity: bool, device: torch.device) -> None:
        self._n, self._with_velocity = n, with_velocity
        self._slots = -(-n // (8 * BLOCK)) if n else 0
        self._kept = torch.empty((max(self._slots, 1), 2, BLOCK), device=device)
        self._which = torch.zeros(self._slots + 1, dtype=torch.int32, device=device)

    def row(self) -> tuple[int, int, int]:
        """The columns KEPT, WHICH and KEEPS."""
        return self._kept.data_ptr(), self._which.data_ptr(), self._slots

    def elements(self) -> int:
        """How many are kept: the host waits for the device."""
        count, *firsts = self._which.tolist()
        return sum(min(BLOCK, self._n - first) for first in firsts[: min(count, self._slots)])

    def fits(self, n: int, with_velocity: bool) -> bool:
        return (n, with_velocity) == (self._n, self._with_velocity)

    @on_its_device
    def put_back(self, velocity: Tensor | None, residual: Tensor) -> None:
        if self._slots:
            launch(put_back, (self._slots,),
                self._kept, self._which, residual if velocity is None else velocity, residual,
                self._n, with_velocity=velocity is not None, BLOCK=BLOCK, num_warps=8,
            )  # fmt: skip


@triton.jit
def put_back(kept, which, u, v, n, with_velocity: tl.constexpr, BLOCK: tl.constexpr):
    """What a slot keeps, to where it was."""
    slot = tl.program_id(0)
    if slot < tl.load(which):
        i = tl.load(which + 1 + slot) + tl.arange(0, BLOCK)
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
            which = address(tl.load(row + WHICH), tl.int32, False)
            slot = tl.atomic_add(which, 1)
            if slot < tl.load(row + KEEPS).to(tl.int32):
                tl.store(which + 1 + slot, first)
                kept = address(word, tl.float32, True) + slot.to(tl.int64) * (2 * BLOCK)
                tl.store(kept + tl.arange(0, BLOCK), v)
                if mode != FEEDBACK:
                    tl.store(kept + BLOCK + tl.arange(0, BLOCK), u)
