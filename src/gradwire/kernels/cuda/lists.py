"""Codes of lists of places, read and written on the device: the codes of kernels/index_codes.py.

    count ──► before ──► emit ──► check      ones or words of each block; sums over those before it

All lists of a bucket that have one kind of code are read by one launch of each, and all lists are
checked by one. A list's word tells where it is damaged, as `decode_indices` would, and a word of
its owner is raised; the host does not wait for them here.
Bytes: each section twice, 4 for each place, and 4 more to check it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import address, block_of
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.tables import (
    Column,
    Columns,
    addresses,
    blocks_on,
    on_its_device,
    tables_on,
)
from gradwire.kernels.index_codes import GAP_BYTES, low_width, whole_bytes

BITS, GAPS = tl.constexpr(0), tl.constexpr(1)
"""Kinds of codes: ones of a bitmap or of elias_fano's high part; and words of gaps."""
BLOCK, CHUNK = 1024, 1024
"""Words of a program: bytes of bits, or gaps."""

WORDS, COUNT, N, K, OUT, LOW, WIDTH_OF, FIRST, BLOCKS, FOUND, OWNER = (
    tl.constexpr(i) for i in range(11)
)
WIDTH = tl.constexpr(12)
"""The number of columns; even, so that the rows of each kind begin at a multiple of 16 bytes."""
_FAR = tl.constexpr(2147483647)
_OF = {"gap8": tl.uint8, "gap16": tl.uint16}


class Listed(NamedTuple):
    """Lists, field by field. sections: the bytes of their codes, aligned for words. outs: the
    addresses for the k places of n elements of each, int32; places of code "int32" are there
    already. owners: the number of the word that is raised if a list is damaged."""

    sections: Sequence[Tensor]
    codes: tuple[str, ...]
    ns: tuple[int, ...]
    ks: tuple[int, ...]
    outs: Sequence[int]
    owners: tuple[int, ...]


class _Kind(NamedTuple):
    """Lists that are read together. sizes: the bytes or words of each."""

    kind: int
    of: Any
    sizes: tuple[int, ...]


class Reading(NamedTuple):
    """The lists to read, kind after kind.

    rows, found: tables to put on the device; found has a word of 64 bits for each list: in the
    lower half k, or the first entry that is wrong or missing; in the upper half whether anything
    follows the k-th. sizes: entries, in the order of the rows.
    """

    rows: Columns
    found: Columns
    kinds: Sequence[_Kind]
    sizes: tuple[int, ...]


class _Plan(NamedTuple):
    """The parts of a reading that are the same in every step. order: the list of each row. starts:
    where the words begin in a section. columns: COUNT, N, K, WIDTH_OF to OWNER, and that of
    `found`."""

    order: Sequence[int]
    starts: Sequence[int]
    widths: Sequence[int]
    columns: tuple[Column, ...]
    kinds: Sequence[_Kind]
    sizes: tuple[int, ...]


@triton.jit
def ones_of(words, i, on):
    """Returns the bits of bytes, (words, 8)."""
    byte = tl.load(words + i, mask=on, other=0).to(tl.int32)
    return (byte[:, None] >> tl.arange(0, 8)[None, :]) & 1


@triton.jit
def count(rows, blocks, counts, sums, kind: tl.constexpr, of: tl.constexpr, BLOCK: tl.constexpr):
    """Counts the entries of a block; and for gaps, how many places it passes over."""
    pid = tl.program_id(0)
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    words, size = address(tl.load(row + WORDS), of, False), tl.load(row + COUNT).to(tl.int32)
    i = first + tl.arange(0, BLOCK)
    if kind == BITS:
        tl.store(counts + pid, tl.sum(ones_of(words, i, i < size)))
    else:
        escape: tl.constexpr = 255 if of == tl.uint8 else 65535
        w = tl.load(words + i, mask=i < size, other=0).to(tl.int32)
        names = ((w != escape) & (i < size)).to(tl.int32)
        tl.store(counts + pid, tl.sum(names, 0))
        tl.store(sums + pid, tl.sum((w + names).to(tl.int64), 0))


@triton.jit
def before(rows, counts, sums, found, bad, kind: tl.constexpr, CHUNK: tl.constexpr):
    """Replaces both by their sums over the blocks before. One program for each list; its word is
    set to the number of entries, or k if that is less."""
    row = rows + tl.program_id(0) * WIDTH
    first, number_of = tl.load(row + FIRST).to(tl.int32), tl.load(row + BLOCKS).to(tl.int32)
    total = 0
    far = tl.full([], 0, tl.int64)
    for at in range(0, number_of, CHUNK):
        j = at + tl.arange(0, CHUNK)
        on = j < number_of
        c = tl.load(counts + first + j, mask=on, other=0)
        tl.store(counts + first + j, total + tl.cumsum(c, 0) - c, mask=on)
        total += tl.sum(c, 0)
        if kind == GAPS:
            s = tl.load(sums + first + j, mask=on, other=0)
            tl.store(sums + first + j, far + tl.cumsum(s, 0) - s, mask=on)
            far += tl.sum(s, 0)
    k = tl.load(row + K).to(tl.int32)
    word = found + 2 * tl.load(row + FOUND)
    tl.store(word, tl.minimum(total, k))
    many = (total > k) & (kind == BITS)
    tl.store(word + 1, many.to(tl.int32))
    if many | (total < k):
        tl.atomic_or(bad + tl.load(row + OWNER), 1)


@triton.jit
def emit(
    rows, blocks, counts, sums, found, bad, kind: tl.constexpr, of: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the entries of a block, unchecked; and of gaps, whether anything follows the k-th."""
    pid = tl.program_id(0)
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    words, size = address(tl.load(row + WORDS), of, False), tl.load(row + COUNT).to(tl.int32)
    k, out = tl.load(row + K).to(tl.int32), address(tl.load(row + OUT), tl.int32, False)
    i = first + tl.arange(0, BLOCK)
    if kind == BITS:
        ones = tl.reshape(ones_of(words, i, i < size), [BLOCK * 8])
        to = tl.load(counts + pid) + tl.cumsum(ones, 0) - ones
        on = (ones == 1) & (to < k)
        place = first * 8 + tl.arange(0, BLOCK * 8)
        width = tl.load(row + WIDTH_OF).to(tl.int32)
        if width >= 0:  # elias_fano: the upper bits are the place less the entries before it
            low = address(tl.load(row + LOW), tl.uint8, False)
            far = (place - to).to(tl.int64) << width
            place = tl.minimum(far, 2147483647).to(tl.int32)
            for bit in range(width):
                at = to.to(tl.int64) * width + bit
                byte = tl.load(low + at // 8, mask=on, other=0).to(tl.int32)
                place |= ((byte >> (at % 8).to(tl.int32)) & 1) << bit
        tl.store(out + to, place, mask=on)
    else:
        escape: tl.constexpr = 255 if of == tl.uint8 else 65535
        w = tl.load(words + i, mask=i < size, other=0).to(tl.int32)
        names = ((w != escape) & (i < size)).to(tl.int32)
        to = tl.load(counts + pid) + tl.cumsum(names, 0) - names
        far = tl.load(sums + pid) + tl.cumsum((w + names).to(tl.int64), 0) - 1
        place = tl.minimum(far, 2147483647).to(tl.int32)
        tl.store(out + to, place, mask=(names == 1) & (to < k))
        if tl.max(((to >= k) & (w != 0) & (i < size)).to(tl.int32), 0) != 0:
            tl.store(found + 2 * tl.load(row + FOUND) + 1, 1)
            tl.atomic_or(bad + tl.load(row + OWNER), 1)


@triton.jit
def check(rows, blocks, found, bad, BLOCK: tl.constexpr):
    """Finds the first entry that is out of range or not above the one before; into the word."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    word, owner = found + 2 * tl.load(row + FOUND), bad + tl.load(row + OWNER)
    out, n = address(tl.load(row + OUT), tl.int32, False), tl.load(row + N).to(tl.int32)
    k = tl.load(row + K).to(tl.int32)
    j = first + tl.arange(0, BLOCK)
    here = tl.load(out + j, mask=j < k, other=0)
    last = tl.load(out + j - 1, mask=(j < k) & (j > 0), other=-1)
    wrong = (j < k) & ((here <= last) | (here >= n))
    worst = tl.min(tl.where(wrong, j, _FAR), 0)
    if worst != _FAR:
        tl.atomic_min(word, worst)
        tl.atomic_or(owner, 1)
    if first == 0:  # the unused bits of elias_fano's low part must be 0
        width = tl.load(row + WIDTH_OF).to(tl.int32)
        if width > 0:
            low, size = address(tl.load(row + LOW), tl.uint8, False), k.to(tl.int64) * width
            byte = tl.load(low + size // 8, mask=size % 8 != 0, other=0).to(tl.int32)
            if (byte >> (size % 8).to(tl.int32)) != 0:
                tl.store(word + 1, 1)
                tl.atomic_or(owner, 1)


def reading_of(lists: Listed) -> Reading:
    """Prepares the tables for reading lists, on the host."""
    sizes = tuple(map(attrgetter("nbytes"), lists.sections))
    plan = _plan_of(lists.codes, lists.ns, lists.ks, sizes, lists.owners)
    given, number_of = addresses(lists.sections), len(lists.ks)
    sections, outs = [given[i] for i in plan.order], [lists.outs[i] for i in plan.order]
    words = [address + start for address, start in zip(sections, plan.starts)]
    lows = [address if width >= 0 else 0 for address, width in zip(sections, plan.widths)]
    count, n, k, width, first, blocks, found, owner, every = plan.columns
    rows = Columns(
        number_of, words, count, n, k, outs, lows, width, first, blocks, found, owner, 0
    )  # fmt: skip
    return Reading(rows, Columns(number_of, every), plan.kinds, plan.sizes)


@lru_cache(maxsize=256)
def _plan_of(
    codes: tuple[str, ...], ns: tuple[int, ...], ks: tuple[int, ...], sizes: tuple[int, ...],
    owners: tuple[int, ...],
) -> _Plan:  # fmt: skip
    kinds, rows, found = dict[Any, list[int]](), list[tuple[int, ...]](), list[_Kind]()
    for i, code in enumerate(codes):
        kinds.setdefault(_kind_of(code), []).append(i)
    for (kind, of), members in kinds.items():
        words, first = list[int](), 0
        for i in members:
            start, width, size = _parts(codes[i], ns[i], ks[i], sizes[i])
            blocks = max(1, -(-size // BLOCK))
            rows.append((i, start, size, ns[i], ks[i], width, first, blocks, i, owners[i]))
            words.append(size)
            first += blocks
        found.append(_Kind(kind, of, tuple(words)))
    order, starts, *columns = (
        (array("q", one) for one in zip(*rows)) if rows else [array("q")] * 10
    )
    every = (*columns, array("q", ks))
    return _Plan(order, starts, columns[3], every, found, tuple(columns[2]))


def _kind_of(code: str) -> tuple[int, Any]:
    """Returns a code's kind and the type of its words; None for "int32", which is not coded."""
    if code == "int32":
        return BITS.value, None
    return (GAPS.value, _OF[code]) if code in GAP_BYTES else (BITS.value, tl.uint8)


def _parts(code: str, n: int, k: int, size: int) -> tuple[int, int, int]:
    """Returns where a section's words begin, the width of the low parts before them (-1: none),
    and the number of words."""
    if code == "elias_fano" and k:
        width = low_width(n, k)
        start = whole_bytes(k * width)
        return start, width, size - start
    return 0, -1, size // GAP_BYTES.get(code, 1)


def read(reading: Reading, rows: Tensor, found: Tensor, bad: Tensor) -> None:
    """Launches the reading of all lists, kind by kind, with its tables on the device. bad: int32,
    zeros; a damaged list raises its owner's word."""
    device, first = rows.device, 0
    for kind, of, sizes in reading.kinds:
        own = rows if len(sizes) == len(rows) else rows[first : first + len(sizes)]
        first += len(sizes)
        if of is None:
            continue
        blocks = blocks_on(device, sizes, BLOCK)
        number_of = blocks.shape[0]
        counts = torch.empty(number_of, dtype=torch.int32, device=device)
        sums = rows  # a dummy: bits have no sums
        if kind == GAPS.value:
            sums = torch.empty(number_of, dtype=torch.int64, device=device)
        what = {"kind": kind, "of": of, "BLOCK": BLOCK}
        launch(count, (number_of,), own, blocks, counts, sums, **what)
        launch(before, (len(sizes),), own, counts, sums, found, bad, kind=kind, CHUNK=CHUNK)
        launch(emit, (number_of,), own, blocks, counts, sums, found, bad, **what)
    blocks = blocks_on(device, reading.sizes, BLOCK)
    launch(check, (blocks.shape[0],), rows, blocks, found, bad, BLOCK=BLOCK)


@on_its_device
def decode_indices(section: Tensor, n: int, code: str, indices_out: Tensor) -> int:
    """Decodes a list; the host waits for the device."""
    k = indices_out.numel()
    first, more = decode(section, n, code, indices_out)[0].tolist()
    return k + 1 if first == k and more else int(first)


def decode(section: Tensor, n: int, code: str, indices_out: Tensor) -> Tensor:
    """Decodes a list. Returns (1, 2) int32 on the device: the first wrong entry, or k; and whether
    more than zeros follow."""
    section, k = whole_words(section), indices_out.numel()
    if code == "int32":
        indices_out.copy_(section.view(torch.int32))
    lists = Listed([section], (code,), (n,), (k,), [indices_out.data_ptr()], (0,))
    reading = reading_of(lists)
    rows, found, bad = tables_on(section.device, reading.rows, reading.found, [[0]])
    found = found.view(torch.int32)
    read(reading, rows, found, bad.view(torch.int32))
    return found


def whole_words(section: Tensor) -> Tensor:
    """Returns the bytes of a section, so aligned that words of two bytes can be read."""
    held = section.contiguous()
    if held.dtype != torch.uint8:
        held = held.view(torch.uint8)
    return held.clone() if held.data_ptr() % 4 else held
