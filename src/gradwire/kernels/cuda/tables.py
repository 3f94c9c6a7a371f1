"""Tables of segments on the device: one launch works on all parameters of a bucket.

rows    int64, one for each segment: addresses, sizes, and numbers as the bits of fp32
blocks  int32, one for each program: its segment, and the element where its block begins

Rows go to the device by one copy from pinned memory, which nobody waits for, those of several
tables together; blocks, which follow from sizes alone, are kept there. Addresses are asked for in
every step, as memory that was freed may be another tensor's: that is cheap column by column, each
of which is a list that is made at once.
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
"""A number for each segment, or one for all."""

MOST = 2**31 - 2**16
"""Elements of a tensor: beyond them 32-bit places of a last program would wrap around."""
_LARGEST = struct.unpack("<f", struct.pack("<I", 0x7F7FFFFF))[0]


def bits_of(x: float) -> int:
    """fp32 as a whole number of 32 bits; what is beyond its range is infinite."""
    if abs(x) > _LARGEST:
        x = math.copysign(math.inf, x)
    (bits,) = struct.unpack("<i", struct.pack("<f", x))
    return int(bits)


def bits_of_many(numbers: Sequence[float]) -> Column:
    """`bits_of` of each; numbers are of fp32."""
    own = array("f", numbers).tobytes()
    if own == own[:4] * len(numbers):
        return struct.unpack("<i", own[:4])[0] if own else 0
    return array("i", own)


def signed(word: int) -> int:
    """32 bits as a number with a sign, so that a kernel's argument is of one type always."""
    return word - (1 << 32) if word >> 31 else word


def grouped(
    segments: Iterable[Segment], key: Callable[[Segment], Any]
) -> Iterable[tuple[Any, list[Segment]]]:
    """Those of each key: a kernel that is compiled for it works on all of them."""
    every = list(segments)
    keys, groups = list(map(key, every)), dict[Any, list[Segment]]()
    if keys and are_alike(keys):  # as most are: a format takes longer to hash than to compare
        return [(keys[0], every)]
    for of, one in zip(keys, every):
        groups.setdefault(of, []).append(one)
    return groups.items()


def columns_of(segments: Sequence[Any]) -> Any:
    """One whose every field is the tuple of all segments' in it."""
    return type(segments[0])(*zip(*segments))


def are_alike(*columns: Sequence[Any]) -> bool:
    """Whether each column has one value."""
    return all(column.count(column[0]) == len(column) for column in columns)


def programs(n: int, block: int) -> tuple[int]:
    """The grid for n elements. KernelError, where these are too many."""
    if n > MOST:
        raise KernelError(
            f"a kernel on CUDA works on at most {MOST:,} elements; got {n:,}. Split the tensor"
        )
    return (-(-n // block),)


class Columns:
    """A table that is made column by column, of so many rows."""

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
    """(segments, width) int64 there."""
    (table,) = tables_on(device, rows)
    return table


def tables_on(device: torch.device, *tables: Sequence[Sequence[int]] | Columns) -> list[Tensor]:
    """Each (segments, width) int64 there, by one copy of all. Each begins at a multiple of 16
    bytes, and is of its caller alone."""
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


def all_aligned(*columns: array[int]) -> bool:
    """Whether all addresses of these columns are multiples of 16: by their lowest bytes."""
    return not any(low & 15 for column in columns for low in set(column.tobytes()[::8]))


def aligned(*tensors: Tensor | None) -> bool:
    """Whether all begin at multiples of 16 bytes."""
    return all(x is None or x.data_ptr() % 16 == 0 for x in tensors)


def address_of(x: Tensor | None) -> int:
    """0 of none."""
    return 0 if x is None else x.data_ptr()


def addresses(tensors: Sequence[Tensor | None]) -> array[int]:
    """`address_of` each."""
    found = [0 if x is None else x.data_ptr() for x in tensors]
    return array("q", struct.pack(f"{len(found)}P", *found))  # half the time of a list's


def plain(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Each as it is, or a copy that is contiguous."""
    if all(map(Tensor.is_contiguous, tensors)):
        return tensors
    return [x.detach().contiguous() for x in tensors]


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
