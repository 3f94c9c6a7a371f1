"""Sums that need not wait for the host: what a status word says holds them back, and they tell it
what they find damaged.

hold_back ──► payloads are checked ──► tell ──► sums are written, of segments whose word is 0
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.launch import launch

CHUNK = 1024
HELD, FOUND = tl.constexpr(2), tl.constexpr(1)
"""In the words of segments: held back, by the status; found bad, by whoever checks."""
DAMAGED = tl.constexpr(2)


@triton.jit
def hold_all(bad, count, status, CHUNK: tl.constexpr):
    """Every segment's word is raised where the status is."""
    if tl.load(status) != 0:
        i = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
        word = tl.load(bad + i, mask=i < count, other=0)
        tl.store(bad + i, word | HELD, mask=i < count)


@triton.jit
def tell_all(bad, count, status, CHUNK: tl.constexpr):
    """The status is raised by DAMAGED where a segment is bad that was not held back: of a step
    that is spoiled nobody knows what payloads are."""
    i = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    word = tl.load(bad + i, mask=i < count, other=0)
    if tl.max((word == FOUND).to(tl.int32), 0) != 0:
        tl.atomic_or(status, tl.full([], DAMAGED, tl.int64))


def hold_back(bad: Tensor, count: int, status: Tensor | None) -> None:
    """Before anything is checked. bad: int32, of count segments; status: None: nothing holds."""
    if status is not None:
        launch(hold_all, (-(-count // CHUNK),), bad, count, status, CHUNK=CHUNK)


def tell(bad: Tensor, count: int, status: Tensor | None) -> None:
    """Once all is checked."""
    if status is not None:
        launch(tell_all, (-(-count // CHUNK),), bad, count, status, CHUNK=CHUNK)
