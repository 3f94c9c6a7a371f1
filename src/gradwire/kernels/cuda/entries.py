"""Places and values of sparse payloads, written as messages hold them: few launches for a bucket.

    spread ──► set_ones        bytes that are whole, and zeros; then the bits of bitmap and of
                               elias_fano's upper part
    set_gaps                   what is left out (gap8, gap16), a list by one program each

Bytes: of an entry 8 read, its code and its value written, and 16 where what rounding takes is
kept; a bitmap's bytes twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import address, block_of, rounded, widened
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import address_of, bits_of, blocks_on, on_its_device, rows_on
from gradwire.kernels.index_codes import GAP_BYTES, low_width, whole_bytes
from gradwire.kernels.segments import WriteEntries

BLOCK, CHUNK = 1024, 1024
PLACES, K, SECTION, SIZE, LOW_BYTES, WIDTH_OF, VALUES, OUT, LIMIT, SENT, RESIDUAL, N = (
    tl.constexpr(i) for i in range(12)
)
WIDTH = tl.constexpr(12)
"""SIZE: bytes; of elias_fano's the first LOW_BYTES have the lower WIDTH_OF bits of every place.
WIDTH_OF is -1 of a bitmap, -2 of places as they are, -3 of others."""


@triton.jit
def low_byte(places, k, i, width, on):
    """Byte i of the lower bits of all places, one after the other."""
    value = tl.zeros_like(i)
    for bit in range(8):
        at = i.to(tl.int64) * 8 + bit
        here = on & (at < k.to(tl.int64) * width)
        place = tl.load(places + at // width, mask=here, other=0)
        value |= ((place >> (at % width).to(tl.int32)) & 1) << bit
    return value


@triton.jit
def keep_rest(row, i, x, y, on):
    """What is sent, y, to where it is kept; and what rounding took from x to the residual. Each
    place is one entry's, and what is none is left alone."""
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
    """Values, places that are not coded, lower bits; and zeros where ones will be set."""
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
    """Where entry j has its one."""
    place = tl.load(places + j, mask=(j >= 0) & (j < k), other=0).to(tl.int64)
    return tl.where(width >= 0, (place >> tl.maximum(width, 0)) + j, place)


@triton.jit
def set_ones(rows, blocks, BLOCK: tl.constexpr):
    """Ones at the places of a list, or where elias_fano's upper part has them. Of entries in one
    byte the first writes it, so that no two write the same."""
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
    """Words that leave out places, and zeros after them. One program for each list."""
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
    """The host does not wait to know whether places ascend; where they do not, a payload is none,
    and nothing is written beyond it."""
    groups: dict[torch.dtype, list[WriteEntries]] = {}
    for one in segments:
        one = one._replace(places=one.places.contiguous())
        if one.section.data_ptr() % 4 == 0:
            groups.setdefault(one.out.dtype, []).append(one)
        else:  # words of several bytes cannot be written there
            section = torch.empty_like(one.section)
            write_entries([one._replace(section=section)])
            one.section.copy_(section)
    for dtype, own in groups.items():
        device = own[0].places.device
        own.sort(key=lambda one: one.code)
        rows = rows_on(device, [_row(one) for one in own])
        blocks = blocks_on(device, tuple(map(_size, own)), BLOCK)
        launch(spread, (blocks.shape[0],), rows, blocks, dtype=TYPES[dtype], BLOCK=BLOCK)
        blocks = blocks_on(device, tuple(one.places.numel() for one in own), BLOCK)
        launch(set_ones, (blocks.shape[0],), rows, blocks, BLOCK=BLOCK)
        codes = [one.code for one in own]
        for code, of in _GAPS.items():
            if count := codes.count(code):
                launch(set_gaps, (count,), rows[codes.index(code) :], of=of, CHUNK=CHUNK)
    return len(segments)


_GAPS = {"gap8": tl.uint8, "gap16": tl.uint16}


def _size(one: WriteEntries) -> int:
    """How many programs' work it is: entries, or bytes."""
    coded = 0 if one.code == "int32" else one.section.nbytes
    return max(one.places.numel(), coded)


def _row(one: WriteEntries) -> list[int]:
    places, values, n, code, section, out, sent, residual = one
    k, low, width = places.numel(), 0, -3 if code in GAP_BYTES and places.numel() else -1
    if code == "int32":
        width = -2
    elif code == "elias_fano" and k:
        width = low_width(n, k)
        low = whole_bytes(k * width)
    limit = bits_of(torch.finfo(out.dtype).max)
    return [
        places.data_ptr(), k, section.data_ptr(), section.nbytes, low, width, values.data_ptr(),
        out.data_ptr(), limit, address_of(sent), address_of(residual), n,
    ]  # fmt: skip


@on_its_device
def encode_indices(indices: Tensor, n: int, code: str, section: Tensor) -> None:
    none = torch.empty(indices.numel(), device=indices.device)
    write_entries([WriteEntries(indices, none, n, code, section, none)])
