"""Sums without waiting on the host: a raised status word stops them on the device, and damaged
payloads raise it.

hold_back ──► payloads are checked ──► tell ──► sums are written for segments whose word is 0
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.launch import launch

CHUNK = 1024
HELD, FOUND = tl.constexpr(2), tl.constexpr(1)
"""Bits of a segment's word: held back by the status; found bad by a check."""
DAMAGED = tl.constexpr(2)


@triton.jit
def hold_all(bad, count, status, CHUNK: tl.constexpr):
    """Raises every segment's word if the status is raised."""
    if tl.load(status) != 0:
        i = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
        word = tl.load(bad + i, mask=i < count, other=0)
        tl.store(bad + i, word | HELD, mask=i < count)


@triton.jit
def tell_all(bad, count, status, CHUNK: tl.constexpr):
    """Raises the status by DAMAGED if a segment is bad that was not held back: in a spoiled step
    payloads may hold anything."""
    i = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    word = tl.load(bad + i, mask=i < count, other=0)
    if tl.max((word == FOUND).to(tl.int32), 0) != 0:
        tl.atomic_or(status, tl.full([], DAMAGED, tl.int64))


def hold_back(bad: Tensor, count: int, status: Tensor | None) -> None:
    """Raises all words if the status is raised, before any check. bad: int32, of count segments.
    status: None holds nothing back."""
    if status is not None:
        launch(hold_all, (-(-count // CHUNK),), bad, count, status, CHUNK=CHUNK)


def tell(bad: Tensor, count: int, status: Tensor | None) -> None:
    """Raises the status if a segment is bad, after all checks."""
    if status is not None:
        launch(tell_all, (-(-count // CHUNK),), bad, count, status, CHUNK=CHUNK)
