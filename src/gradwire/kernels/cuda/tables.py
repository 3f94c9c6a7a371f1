"""Tables of segments on the device: one launch works on all parameters of a bucket.

rows    int64, one for each segment: addresses, sizes, and numbers as the bits of fp32
blocks  int32, one for each program: its segment, and the element where its block begins

Rows go to the device by one copy from pinned memory, which nobody waits for; blocks, which follow
from sizes alone, are kept there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


def bits_of(x: float) -> int:
    """fp32 as a whole number of 32 bits."""
    (bits,) = struct.unpack("<i", struct.pack("<f", x))
    return int(bits)


def rows_on(device: torch.device, rows: Sequence[Sequence[int]]) -> Tensor:
    """(segments, width) int64 there."""
    table = torch.tensor(rows, dtype=torch.int64)
    if device.type != "cuda":
        return table
    return table.pin_memory().to(device, non_blocking=True)


@lru_cache(maxsize=256)
def blocks_on(device: torch.device, sizes: tuple[int, ...], block: int) -> Tensor:
    """(programs, 2) int32 there: each block of each segment; one for a segment of no elements."""
    found = [(s, at) for s, n in enumerate(sizes) for at in range(0, max(n, 1), block)]
    return torch.tensor(found, dtype=torch.int32).to(device)


def aligned(*tensors: Tensor | None) -> bool:
    """Whether all begin at multiples of 16 bytes."""
    return all(x is None or x.data_ptr() % 16 == 0 for x in tensors)


def address_of(x: Tensor | None) -> int:
    """0 of none."""
    return 0 if x is None else x.data_ptr()
