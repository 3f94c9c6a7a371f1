"""Tables of segments on the device: one launch works on all parameters of a bucket.

rows    int64, one for each segment: addresses, sizes, and numbers as the bits of fp32
blocks  int32, one for each program: its segment, and the element where its block begins

Rows go to the device by one copy from pinned memory, which nobody waits for, those of several
tables together; blocks, which follow from sizes alone, are kept there.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from gradwire.errors import KernelError

Given = ParamSpec("Given")
Found = TypeVar("Found")
Segment = TypeVar("Segment")

MOST = 2**31 - 2**16
"""Elements of a tensor: beyond them 32-bit places of a last program would wrap around."""
_LARGEST = struct.unpack("<f", struct.pack("<I", 0x7F7FFFFF))[0]


def bits_of(x: float) -> int:
    """fp32 as a whole number of 32 bits; what is beyond its range is infinite."""
    if abs(x) > _LARGEST:
        x = math.copysign(math.inf, x)
    (bits,) = struct.unpack("<i", struct.pack("<f", x))
    return int(bits)


def signed(word: int) -> int:
    """32 bits as a number with a sign, so that a kernel's argument is of one type always."""
    return word - (1 << 32) if word >> 31 else word


def grouped(
    segments: Iterable[Segment], key: Callable[[Segment], Any]
) -> Iterable[tuple[Any, list[Segment]]]:
    """Those of each key: a kernel that is compiled for it works on all of them."""
    groups: dict[Any, list[Segment]] = {}
    for one in segments:
        groups.setdefault(key(one), []).append(one)
    return groups.items()


def programs(n: int, block: int) -> tuple[int]:
    """The grid for n elements. KernelError, where these are too many."""
    if n > MOST:
        raise KernelError(
            f"a kernel on CUDA works on at most {MOST:,} elements; got {n:,}. Split the tensor"
        )
    return (-(-n // block),)


def rows_on(device: torch.device, rows: Sequence[Sequence[int]]) -> Tensor:
    """(segments, width) int64 there."""
    (table,) = tables_on(device, rows)
    return table


def tables_on(device: torch.device, *tables: Sequence[Sequence[int]]) -> list[Tensor]:
    """Each (segments, width) int64 there, by one copy of all. Each begins at a multiple of 16
    bytes, and is of its caller alone."""
    words, parts = list[int](), list[tuple[int, int, int]]()
    for rows in tables:
        parts.append((len(rows), len(rows[0]) if rows else 0, len(words)))
        for row in rows:
            words += row
        words += [0] * (len(words) % 2)
    there = torch.frombuffer(array("q", words or [0]), dtype=torch.int64)
    if device.type == "cuda":
        pinned = torch.empty(there.shape, dtype=torch.int64, device="cpu", pin_memory=True)
        there = pinned.copy_(there).to(device, non_blocking=True)
    return [there.as_strided((n, width), (width, 1), first) for n, width, first in parts]


def blocks_on(device: torch.device, sizes: tuple[int, ...], block: int) -> Tensor:
    """(programs, 2) int32 there: each block of each segment; one for a segment of no elements."""
    programs(max(sizes, default=0), block)
    found = _blocks(device, sizes, block)
    if found.is_cuda:  # others' streams may read it when it is forgotten
        found.record_stream(torch.cuda.current_stream(device))
    return found


@lru_cache(maxsize=1024)
def _blocks(device: torch.device, sizes: tuple[int, ...], block: int) -> Tensor:
    found = [(s, at) for s, n in enumerate(sizes) for at in range(0, max(n, 1), block)]
    return torch.tensor(found, dtype=torch.int32).to(device)


def aligned(*tensors: Tensor | None) -> bool:
    """Whether all begin at multiples of 16 bytes."""
    return all(x is None or x.data_ptr() % 16 == 0 for x in tensors)


def address_of(x: Tensor | None) -> int:
    """0 of none."""
    return 0 if x is None else x.data_ptr()


def on_its_device(operation: Callable[Given, Found]) -> Callable[Given, Found]:
    """An operation that launches where its tensors are, whatever device is current."""

    @wraps(operation)
    def launched(*given: Given.args, **named: Given.kwargs) -> Found:
        x = next(_tensors(given), None)
        there = x is not None and x.is_cuda
        with torch.cuda.device(x.device) if x is not None and there else nullcontext():
            return operation(*given, **named)

    return launched


def _tensors(given: Iterable[Any]) -> Iterator[Tensor]:
    for x in given:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from _tensors(x)
