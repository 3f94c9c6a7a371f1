"""Places and values of sparse payloads, written as messages hold them: few launches for a bucket.

    spread ──► set_ones        whole bytes, and zeros; then the bits of bitmap and of elias_fano's
                               upper part
    set_gaps                   gaps (gap8, gap16), one program for each list

Bytes: for an entry 8 read, its code and its value written, and 16 if rounding errors are kept; a
bitmap's bytes twice.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import address, block_of, rounded, widened
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import (
    Column,
    Columns,
    addresses,
    bits_of,
    blocks_on,
    columns_of,
    grouped,
    on_its_device,
    plain,
    rows_on,
)
from gradwire.kernels.index_codes import GAP_BYTES, low_width, whole_bytes
from gradwire.kernels.segments import WriteEntries

BLOCK, CHUNK = 1024, 1024
PLACES, K, SECTION, SIZE, LOW_BYTES, WIDTH_OF, VALUES, OUT, LIMIT, SENT, RESIDUAL, N = (
    tl.constexpr(i) for i in range(12)
)
WIDTH = tl.constexpr(12)
"""The columns of a row. SIZE: in bytes; in elias_fano the first LOW_BYTES hold the lower WIDTH_OF
bits of every place. WIDTH_OF is -1 for a bitmap, -2 for int32 places, -3 for others."""


@triton.jit
def low_byte(places, k, i, width, on):
    """Returns byte i of the lower bits of all places, one after the other."""
    value = tl.zeros_like(i)
    for bit in range(8):
        at = i.to(tl.int64) * 8 + bit
        here = on & (at < k.to(tl.int64) * width)
        place = tl.load(places + at // width, mask=here, other=0)
        value |= ((place >> (at % width).to(tl.int32)) & 1) << bit
    return value


@triton.jit
def keep_rest(row, i, x, y, on):
    """Writes what is sent, y, to `sent`, and adds the rounding error x - y to the residual. No two
    entries have the same place, and invalid places are skipped."""
    sent, residual = tl.load(row + SENT), tl.load(row + RESIDUAL)
    if sent != 0:
        tl.store(address(sent, tl.float32, False) + i, y, mask=on)
    if residual != 0:
        rest = x - y
        tl.store(address(tl.load(row + VALUES), tl.float32, False) + i, rest, mask=on)
        place = tl.load(address(tl.load(row + PLACES), tl.int32, False) + i, mask=on, other=0)
        on = on & (place >= 0) & (place < tl.load(row + N).to(tl.int32))
        v = address(residual, tl.float32, False) + place
        tl.store(v, tl.load(v, mask=on, other=0.0) + rest, mask=on)


@triton.jit
def spread(rows, blocks, dtype: tl.constexpr, BLOCK: tl.constexpr):
    """Writes values, int32 places, and lower bits; and zeros where ones will be set."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    i = first + tl.arange(0, BLOCK)
    k, size = tl.load(row + K).to(tl.int32), tl.load(row + SIZE).to(tl.int32)
    places = address(tl.load(row + PLACES), tl.int32, False)
    values = address(tl.load(row + VALUES), tl.float32, False)
    x = tl.load(values + i, mask=i < k, other=0.0)
    y = rounded(x, dtype)
    if dtype != tl.float32:
        limit = tl.load(row + LIMIT).to(tl.int32).to(tl.float32, bitcast=True)
        wide = widened(y)
        y = rounded(tl.minimum(tl.maximum(wide, -limit), limit), dtype)
    tl.store(address(tl.load(row + OUT), dtype, False) + i, y, mask=i < k)
    keep_rest(row, i, x, widened(y), i < k)
    width = tl.load(row + WIDTH_OF).to(tl.int32)
    if width == -2:
        section = address(tl.load(row + SECTION), tl.int32, False)
        tl.store(section + i, tl.load(places + i, mask=i < k, other=0), mask=i < k)
    elif width > -2:
        section = address(tl.load(row + SECTION), tl.uint8, False)
        low = tl.load(row + LOW_BYTES).to(tl.int32)
        value = tl.zeros([BLOCK], tl.int32)
        if first < low:
            value = low_byte(places, k, i, width, i < low)
        tl.store(section + i, value.to(tl.uint8), mask=i < size)


@triton.jit
def bit_of(places, j, k, width):
    """Returns the bit that entry j sets."""
    place = tl.load(places + j, mask=(j >= 0) & (j < k), other=0).to(tl.int64)
    return tl.where(width >= 0, (place >> tl.maximum(width, 0)) + j, place)


@triton.jit
def set_ones(rows, blocks, BLOCK: tl.constexpr):
    """Sets ones at the places of a list, or where elias_fano's upper part has them. The first
    entry of a byte writes all of it, so that no byte is written twice."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    width, k = tl.load(row + WIDTH_OF).to(tl.int32), tl.load(row + K).to(tl.int32)
    if width > -2:
        places = address(tl.load(row + PLACES), tl.int32, False)
        low = tl.load(row + LOW_BYTES)
        section = address(tl.load(row + SECTION), tl.uint8, False) + low
        size = tl.load(row + SIZE) - low
        j = first + tl.arange(0, BLOCK)
        byte = bit_of(places, j, k, width) // 8
        is_first = (j == 0) | (bit_of(places, j - 1, k, width) // 8 != byte)
        value = tl.zeros([BLOCK], tl.int32)
        for other in range(8):
            at = bit_of(places, j + other, k, width)
            value |= tl.where((j + other < k) & (at // 8 == byte), 1 << (at % 8).to(tl.int32), 0)
        # Places that do not ascend make another payload, but write nothing beyond it.
        on = (j < k) & is_first & (byte >= 0) & (byte < size)
        tl.store(section + byte, value.to(tl.uint8), mask=on)


@triton.jit
def set_gaps(rows, of: tl.constexpr, CHUNK: tl.constexpr):
    """Writes the words of gaps, and zeros after them. One program for each list."""
    escape: tl.constexpr = 255 if of == tl.uint8 else 65535
    bytes: tl.constexpr = 1 if of == tl.uint8 else 2
    row = rows + tl.program_id(0) * WIDTH
    k, size = tl.load(row + K).to(tl.int32), (tl.load(row + SIZE) // bytes).to(tl.int32)
    places = address(tl.load(row + PLACES), tl.int32, False)
    words = address(tl.load(row + SECTION), of, False)
    last = tl.load(places + k - 1, mask=k > 0, other=0)
    used = tl.full([], 0, tl.int32)  # words, once all gaps are counted
    for at in range(0, k, CHUNK):
        j = at + tl.arange(0, CHUNK)
        here = tl.load(places + j, mask=j < k, other=0)
        before = tl.load(places + j - 1, mask=(j > 0) & (j < k), other=-1)
        used += tl.sum(tl.where(j < k, (here - before - 1) // escape + 1, 0), 0)
    for at in range(0, size, CHUNK):
        i = at + tl.arange(0, CHUNK)
        tl.store(words + i, tl.where(i < used - 1, escape, 0).to(of), mask=i < size)
    tl.debug_barrier()
    done = tl.full([], 0, tl.int32)
    for at in range(0, k, CHUNK):
        j = at + tl.arange(0, CHUNK)
        here = tl.load(places + j, mask=j < k, other=last)
        before = tl.load(places + j - 1, mask=(j > 0) & (j < k), other=-1)
        out = tl.where(j < k, here - before - 1, 0)
        many = tl.where(j < k, out // escape + 1, 0)
        to = done + tl.cumsum(many, 0) - 1
        on = (j < k) & (to >= 0) & (to < size)
        tl.store(words + to, (out % escape).to(of), mask=on)
        done += tl.sum(many, 0)


@on_its_device
def write_entries(segments: Sequence[WriteEntries]) -> int:
    """Writes the entries. The host does not wait to know whether places ascend; if they do not,
    the payload is invalid, and nothing is written beyond it."""
    inside = list[WriteEntries]()
    for one in segments:
        if one.section.data_ptr() % 4 == 0:
            inside.append(one)
        else:  # words of several bytes cannot be written there
            section = torch.empty_like(one.section)
            write_entries([one._replace(section=section)])
            one.section.copy_(section)
    for _, own in grouped(inside, lambda one: one.out.dtype):
        _write(sorted(own, key=attrgetter("code")))
    return len(segments)


def _write(segments: Sequence[WriteEntries]) -> None:
    """Writes segments of one dtype, which are sorted by their codes."""
    every, number_of = columns_of(segments), len(segments)
    places, dtype, device = plain(every.places), every.out[0].dtype, every.places[0].device
    ks, sizes = tuple(map(Tensor.numel, places)), tuple(map(attrgetter("nbytes"), every.section))
    lists = lists_of(ks, every.n, every.code, sizes)
    rows = rows_on(device, Columns(
        number_of, addresses(places), lists.ks, addresses(every.section), lists.sizes, lists.lows,
        lists.widths, addresses(every.values), addresses(every.out),
        bits_of(torch.finfo(dtype).max), addresses(every.sent), addresses(every.residual),
        lists.ns,
    ))  # fmt: skip
    blocks = blocks_on(device, lists.spans, BLOCK)
    launch(spread, (blocks.shape[0],), rows, blocks, dtype=TYPES[dtype], BLOCK=BLOCK)
    if any(width > -2 for width in lists.widths):
        blocks = blocks_on(device, ks, BLOCK)
        launch(set_ones, (blocks.shape[0],), rows, blocks, BLOCK=BLOCK)
    for code, of in _GAPS.items():
        if count := every.code.count(code):
            launch(set_gaps, (count,), rows[every.code.index(code) :], of=of, CHUNK=CHUNK)


_GAPS = {"gap8": tl.uint8, "gap16": tl.uint16}


class Lists(NamedTuple):
    """The columns that follow from the codes and the numbers of entries of lists. spans: how many
    entries or bytes, whichever is more, are written for each."""

    ks: Column
    sizes: Column
    lows: Column
    widths: Sequence[int]
    ns: Column
    spans: tuple[int, ...]


@lru_cache(maxsize=256)
def lists_of(
    ks: tuple[int, ...], ns: tuple[int, ...], codes: tuple[str, ...], sizes: tuple[int, ...]
) -> Lists:
    """Returns columns, which are the same in every step."""
    pairs = [_low(k, n, code) for k, n, code in zip(ks, ns, codes)]
    lows, widths = zip(*pairs)
    k, size, low, width, n = (array("q", one) for one in (ks, sizes, lows, widths, ns))
    coded = (0 if code == "int32" else size for code, size in zip(codes, sizes))
    return Lists(k, size, low, width, n, tuple(map(max, ks, coded)))


def _low(k: int, n: int, code: str) -> tuple[int, int]:
    """Returns LOW_BYTES and WIDTH_OF."""
    if code == "elias_fano" and k:
        width = low_width(n, k)
        return whole_bytes(k * width), width
    return 0, -2 if code == "int32" else -3 if code in GAP_BYTES and k else -1


@on_its_device
def encode_indices(indices: Tensor, n: int, code: str, section: Tensor) -> None:
    none = torch.empty(indices.numel(), device=indices.device, dtype=torch.float32)
    write_entries([WriteEntries(indices, none, n, code, section, none)])
