"""Tables of segments on the device: one launch works on all parameters of a bucket.

rows    int64, one for each segment: addresses, sizes, and numbers as the bits of fp32
blocks  int32, one for each program: its segment, and the element where its block begins

Rows go to the device by one asynchronous copy from pinned memory, those of several tables
together; blocks, which follow from sizes alone, are cached there. Addresses are read in every
step, as freed memory may belong to another tensor: that is cheap column by column, where one call
makes a whole list.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache, wraps
from itertools import chain
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor

from gradwire.errors import KernelError

Given = ParamSpec("Given")
Found = TypeVar("Found")
Segment = TypeVar("Segment")
Column: TypeAlias = "int | Sequence[int]"
"""A number for each segment, or one for all segments."""

MOST = 2**31 - 2**16
"""The most elements of a tensor: beyond it the last program's 32-bit places would overflow."""
_LARGEST = struct.unpack("<f", struct.pack("<I", 0x7F7FFFFF))[0]


def bits_of(x: float) -> int:
    """Returns the bits of x in fp32, as a signed int; x beyond fp32's range becomes infinite."""
    if abs(x) > _LARGEST:
        x = math.copysign(math.inf, x)
    (bits,) = struct.unpack("<i", struct.pack("<f", x))
    return int(bits)


def bits_of_many(numbers: Sequence[float]) -> Column:
    """Returns `bits_of` numbers in fp32's range, as a column."""
    own = array("f", numbers).tobytes()
    if own == own[:4] * len(numbers):
        return struct.unpack("<i", own[:4])[0] if own else 0
    return array("i", own)


def signed(word: int) -> int:
    """Returns a 32-bit word as a signed int, so that a kernel's argument always has one type."""
    return word - (1 << 32) if word >> 31 else word


def grouped(
    segments: Iterable[Segment], key: Callable[[Segment], Any]
) -> Iterable[tuple[Any, list[Segment]]]:
    """Groups segments by a key, for which a kernel is compiled that works on the whole group."""
    every = list(segments)
    keys, groups = list(map(key, every)), dict[Any, list[Segment]]()
    if keys and are_alike(keys):  # the usual case: a format is slower to hash than to compare
        return [(keys[0], every)]
    for of, one in zip(keys, every):
        groups.setdefault(of, []).append(one)
    return groups.items()


def columns_of(segments: Sequence[Any]) -> Any:
    """Returns one segment whose fields are the tuples of all segments' fields."""
    return type(segments[0])(*zip(*segments))


def are_alike(*columns: Sequence[Any]) -> bool:
    """Whether each column has one value only."""
    return all(column.count(column[0]) == len(column) for column in columns)


def programs(n: int, block: int) -> tuple[int]:
    """Returns the grid for n elements. Raises KernelError if these are too many."""
    if n > MOST:
        raise KernelError(
            f"a kernel on CUDA can work on at most {MOST:,} elements; got {n:,}. Split the tensor"
        )
    return (-(-n // block),)


class Columns:
    """A table of so many rows that is made column by column."""

    def __init__(self, rows: int, *columns: Column) -> None:
        self.rows, self.width = rows, len(columns)
        self.words = array("q", bytes(8 * rows * self.width))
        for at, column in enumerate(columns):
            if isinstance(column, int):
                if column:
                    self.words[at :: self.width] = array("q", (column,)) * rows
            else:
                long = column if type(column) is array and column.typecode == "q" else None
                self.words[at :: self.width] = long or array("q", column)


def rows_on(device: torch.device, rows: Sequence[Sequence[int]] | Columns) -> Tensor:
    """Returns the table, (segments, width) int64, on the device."""
    (table,) = tables_on(device, rows)
    return table


def tables_on(device: torch.device, *tables: Sequence[Sequence[int]] | Columns) -> list[Tensor]:
    """Returns the tables, (segments, width) int64 each, on the device, by one copy of all. Each
    begins at a multiple of 16 bytes, and is used by its caller only."""
    words, parts = array("q"), list[tuple[int, int, int]]()
    for table in tables:
        if isinstance(table, Columns):
            parts.append((table.rows, table.width, len(words)))
            words += table.words
        else:
            parts.append((len(table), len(table[0]) if table else 0, len(words)))
            words.extend(chain.from_iterable(table))
        words.extend([0] * (len(words) % 2))
    there = torch.frombuffer(words or array("q", [0]), dtype=torch.int64)
    if device.type == "cuda":
        pinned = torch.empty(there.shape, dtype=torch.int64, device="cpu", pin_memory=True)
        there = pinned.copy_(there).to(device, non_blocking=True)
    return [there.as_strided((n, width), (width, 1), first) for n, width, first in parts]


def blocks_on(device: torch.device, sizes: tuple[int, ...], block: int) -> Tensor:
    """Returns (programs, 2) int32 on the device: each block of each segment; one for an empty
    segment."""
    programs(max(sizes, default=0), block)
    found = _blocks(device, sizes, block)
    if found.is_cuda:  # another stream may still read it when the cache drops it
        found.record_stream(torch.cuda.current_stream(device))
    return found


@lru_cache(maxsize=1024)
def _blocks(device: torch.device, sizes: tuple[int, ...], block: int) -> Tensor:
    found = [(s, at) for s, n in enumerate(sizes) for at in range(0, max(n, 1), block)]
    return torch.tensor(found, dtype=torch.int32).to(device)


def all_aligned(*columns: array[int]) -> bool:
    """Whether all addresses of these columns are multiples of 16, by their lowest bytes."""
    return not any(low & 15 for column in columns for low in set(column.tobytes()[::8]))


def aligned(*tensors: Tensor | None) -> bool:
    """Whether all tensors begin at multiples of 16 bytes."""
    return all(x is None or x.data_ptr() % 16 == 0 for x in tensors)


def address_of(x: Tensor | None) -> int:
    """Returns the address of a tensor; 0 for None."""
    return 0 if x is None else x.data_ptr()


def addresses(tensors: Sequence[Tensor | None]) -> array[int]:
    """Returns `address_of` each tensor, as a column."""
    found = [0 if x is None else x.data_ptr() for x in tensors]
    return array("q", struct.pack(f"{len(found)}P", *found))  # half the time of a list's


def plain(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Returns the tensors, those that are not contiguous as contiguous copies."""
    if all(map(Tensor.is_contiguous, tensors)):
        return tensors
    return [x.detach().contiguous() for x in tensors]


def on_its_device(operation: Callable[Given, Found]) -> Callable[Given, Found]:
    """Decorates an operation so that it launches on its tensors' device, whichever is current."""

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
