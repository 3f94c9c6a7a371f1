"""Sums of sparse payloads: each program owns a tile of the result, and adds list after list what
of each ascending list falls into it.

    find_begins ──► add_lists      where each tile's entries begin; zeros, and sums of the entries

Bytes: for each element those of the result; for each entry 8, and 16 of its total; 12 for each
tile and list. Where a list has many entries in a tile: for each element 8 more of the total.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import (
    address,
    block_of,
    is_finite,
    number,
    read,
    rounded,
    widened,
    write,
)
from gradwire.kernels.cuda.held import hold_back, tell
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.lists import Listed, reading_of, whole_words
from gradwire.kernels.cuda.lists import read as read_lists
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import aligned, bits_of, blocks_on, on_its_device, tables_on
from gradwire.kernels.segments import SumCoded

TILES = ((8192, 64), (8192, 128), (4096, 128))
"""Elements of a tile, and how many entries of a list in it are few: these are loaded at once. Of
smaller tiles there would be so many that it takes as long to add list after list."""
MANY = (4096, 64)
"""Where more are to be expected."""
TOGETHER = 16
"""Lists whose entries are loaded at once."""
PART, CHUNK, BLOCK = 1024, 512, 256
OUT, TOTAL, N, FIRST, COUNT, BY, BEGINS_OF, BAD = (tl.constexpr(i) for i in range(8))
WIDTH = tl.constexpr(8)
"""Of a segment; its lists are COUNT rows of theirs, from FIRST on."""
PLACES, VALUES, K, STEPS, BEGINS, APART, EDGES = (tl.constexpr(i) for i in range(7))
LIST_WIDTH = tl.constexpr(7)
"""Of a list: STEPS of a search through it, where the begins of its tiles go, how far apart, and
how many there are: one more than tiles, for the last one's end."""
_FAR = tl.constexpr(2147483647)


@triton.jit
def violation(indices, k, n, found, BLOCK: tl.constexpr):
    """The first entry that is out of range or not above the one before."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(indices + j, mask=j < k, other=0)
    before = tl.load(indices + j - 1, mask=(j < k) & (j > 0), other=-1)
    wrong = (j < k) & ((here <= before) | (here >= n))
    first = tl.min(tl.where(wrong, j, _FAR), 0)
    if first != _FAR:
        tl.atomic_min(found, first)


@triton.jit
def find_begins(lists, blocks, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """Where the entries of each tile begin, of each list: how many are below the tile's first
    element. By the quarters of what is left, for many tiles at once: their loads do not wait for
    one another. Whatever a list holds, nothing beyond its k entries is read, and no more than k
    is written."""
    segment, first = block_of(blocks)
    row = lists + segment * LIST_WIDTH
    places = address(tl.load(row + PLACES), tl.int32, False)
    begins = address(tl.load(row + BEGINS), tl.int32, False)
    edge = first + tl.arange(0, BLOCK)
    wanted = edge * TILE
    low = tl.zeros([BLOCK], tl.int32)
    high = low + tl.load(row + K).to(tl.int32)
    for _ in range(tl.load(row + STEPS).to(tl.int32)):
        left = high - low
        m1, m2, m3 = low + left // 4, low + left // 2, high - 1 - left // 4
        open_ = left > 0
        less1 = tl.load(places + m1, mask=open_, other=0) < wanted
        less2 = tl.load(places + m2, mask=open_, other=0) < wanted
        less3 = tl.load(places + m3, mask=open_, other=0) < wanted
        lower = tl.where(less3, m3, tl.where(less2, m2, tl.where(less1, m1, low - 1))) + 1
        upper = tl.where(less3, high, tl.where(less2, m3, tl.where(less1, m2, m1)))
        low, high = tl.where(open_, lower, low), tl.where(open_, upper, high)
    to = begins + edge.to(tl.int64) * tl.load(row + APART)
    tl.store(to, low, mask=edge < tl.load(row + EDGES).to(tl.int32))


@triton.jit
def clear(p, first, n, dtype: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr):
    """Zeros for a tile; part after part takes fewer registers than all at once."""
    for part in range(0, TILE, PART):
        i = first + tl.multiple_of(part, 16) + tl.arange(0, PART)
        write(p, i, tl.zeros([PART], dtype), n, first <= n - TILE)


@triton.jit
def divide(total, out, first, n, by, dtype: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr):
    """A tile's total over a number."""
    for part in range(0, TILE, PART):
        i = first + tl.multiple_of(part, 16) + tl.arange(0, PART)
        s = read(total, i, n, first <= n - TILE)
        s = tl.div_rn(s, tl.zeros_like(s) + by)
        write(out, i, rounded(s, dtype), n, first <= n - TILE)


@triton.jit
def add_few(total, out, i, x, on, by, dtype: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Of each of R lists the at most C entries of a tile, of which `out` is zero everywhere. Lists
    take turns. Where two have the same place, both store the same."""
    if dtype != tl.float32:  # the total is another tensor, of which nothing is written yet
        tl.store(total + i, tl.zeros([R, C], tl.float32), mask=on)
    tl.debug_barrier()
    list_of = tl.arange(0, R)[:, None]
    for turn in tl.static_range(R):
        mine = on & (list_of == turn)
        sum_ = tl.zeros_like(x) + x  # of the first, for which there are zeros
        if turn > 0:
            sum_ = tl.load(total + i, mask=mine, other=0.0) + x
        tl.store(total + i, sum_, mask=mine)
        tl.debug_barrier()
    s = tl.load(total + i, mask=on, other=0.0)
    tl.debug_barrier()  # before the same place is divided
    tl.store(out + i, rounded(tl.div_rn(s, tl.zeros_like(s) + by), dtype), mask=on)


@triton.jit
def add_many(total, lists, begins, count, of_values: tl.constexpr, CHUNK: tl.constexpr):
    """The entries of a tile, list after list, to its total."""
    tl.debug_barrier()
    for number_of in range(count):
        row = lists + number_of * LIST_WIDTH
        places = address(tl.load(row + PLACES), tl.int32, False)
        values = address(tl.load(row + VALUES), of_values, False)
        begin, end = tl.load(begins + number_of), tl.load(begins + count + number_of)
        for chunk in range(begin, end, CHUNK):
            j = chunk + tl.arange(0, CHUNK)
            i = tl.load(places + j, mask=j < end, other=0)
            x = widened(tl.load(values + j, mask=j < end, other=0.0))
            sum_ = tl.load(total + i, mask=j < end, other=0.0) + x
            tl.store(total + i, sum_, mask=j < end)
        tl.debug_barrier()


@triton.jit
def add_lists(
    rows, blocks, lists, bad, dtype: tl.constexpr, of_values: tl.constexpr, aligned: tl.constexpr,
    TILE: tl.constexpr, PART: tl.constexpr, CHUNK: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """A tile of one segment's sum, in fp32: in the result itself, if that is. Where each list has
    few entries in it, all of them are loaded at once, and zeros are written that nobody reads
    again: 0 over a positive number is 0. Nothing is written where the segment's word is raised."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    n, by = tl.load(row + N).to(tl.int32), number(tl.load(row + BY))
    count = tl.load(row + COUNT).to(tl.int32)
    total = address(tl.load(row + TOTAL), tl.float32, aligned)
    out = address(tl.load(row + OUT), dtype, aligned)
    own = lists + tl.load(row + FIRST) * LIST_WIDTH
    begins = address(tl.load(row + BEGINS_OF), tl.int32, False)
    begins += (first // TILE).to(tl.int64) * count
    r = tl.arange(0, R)
    begin = tl.load(begins + r, mask=r < count, other=0)
    end = tl.load(begins + count + r, mask=r < count, other=0)
    at = own + r * LIST_WIDTH
    places = address(tl.load(at + PLACES, mask=r < count, other=0), tl.int32, False)
    values = address(tl.load(at + VALUES, mask=r < count, other=0), of_values, False)
    if tl.load(bad + tl.load(row + BAD)) == 0:
        few = (tl.max(end - begin, 0) <= C) & (count <= R) & (by > 0.0)
        if few & is_finite(by):
            j = begin[:, None] + tl.arange(0, C)[None, :]
            on = j < end[:, None]
            i = tl.load(places[:, None] + j, mask=on, other=0)
            x = widened(tl.load(values[:, None] + j, mask=on, other=0.0))
            clear(out, first, n, dtype, TILE, PART)
            add_few(total, out, i, x, on, by, dtype, R, C)
        else:
            clear(total, first, n, tl.float32, TILE, PART)
            add_many(total, own, begins, count, of_values, CHUNK)
            divide(total, out, first, n, by, dtype, TILE, PART)


@triton.jit
def add_list(v, places, values, k, factor, BLOCK: tl.constexpr):
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.load(places + j, mask=j < k, other=0)
    x = tl.load(values + j, mask=j < k, other=0.0)
    tl.store(v + i, tl.load(v + i, mask=j < k, other=0.0) + x * factor, mask=j < k)


@on_its_device
def first_violation(indices: Tensor, n: int) -> int:
    """The host waits for the device."""
    indices, k = indices.contiguous(), indices.numel()
    found = torch.full((1,), k, dtype=torch.int32, device=indices.device)
    if k:
        launch(violation, (-(-k // CHUNK),), indices, k, n, found, BLOCK=CHUNK)
    return int(found)


class Sum(NamedTuple):
    """One segment: addresses of places, int32, and contiguous values of each payload, in order."""

    out: Tensor
    places: Sequence[int]
    values: Sequence[Tensor]
    divisor: float


class Sums(NamedTuple):
    """Segments of the same dtypes, which are added up by one launch of each kernel.

    constants: those of add_lists. rows, lists: tables that have to be on the device. sizes: of
    each segment. edges: of each list, how many begins it has. held: what the kernels read and
    write besides, until they are launched.
    """

    constants: dict[str, Any]
    rows: list[list[int]]
    lists: list[list[int]]
    sizes: tuple[int, ...]
    edges: tuple[int, ...]
    held: list[Tensor]


def groups_of(sums: Sequence[Sum]) -> list[Sums]:
    """One for each pair of dtypes."""
    groups: dict[Any, list[tuple[int, Sum]]] = {}
    for i, one in enumerate(sums):
        kinds = sorted({value.dtype for value in one.values} or {torch.float32}, key=str)
        held = one
        if len(kinds) > 1:  # which no strategy sends
            held, kinds = one._replace(values=[x.float() for x in one.values]), [torch.float32]
        groups.setdefault((one.out.dtype, *kinds), []).append((i, held))
    return [_sums(members, *dtypes) for dtypes, members in groups.items()]


def _sums(members: list[tuple[int, Sum]], dtype: torch.dtype, of_values: torch.dtype) -> Sums:
    """members: each with its word of `bad`."""
    device = members[0][1].out.device
    sizes = tuple(one.out.numel() for _, one in members)
    tile, few = _tile(
        [max((x.numel() for x in one.values), default=0) for _, one in members], sizes
    )
    edges = [max(1, -(-n // tile)) + 1 for n in sizes]
    counts = [len(one.values) for _, one in members]
    begins = torch.empty(
        sum(e * count for e, count in zip(edges, counts)), dtype=torch.int32, device=device
    )
    held = [begins, *(x for _, one in members for x in one.values)]
    wholes = dtype == torch.float32
    if not wholes:
        room = sum(-(-n // 4) * 4 for n in sizes)
        held.append(torch.empty(room, dtype=torch.float32, device=device))
    to, total = begins.data_ptr(), held[-1].data_ptr()
    rows, lists = list[list[int]](), list[list[int]]()
    for (word, one), n, e, count in zip(members, sizes, edges, counts):
        out = one.out.data_ptr()
        rows.append([
            out, out if wholes else total, n, len(lists), count, bits_of(one.divisor), to, word
        ])  # fmt: skip
        for r, (places, values) in enumerate(zip(one.places, one.values)):
            k = values.numel()
            steps = (k.bit_length() + 1) // 2  # each leaves a quarter
            lists.append([places, values.data_ptr(), k, steps, to + 4 * r, count, e])
        to, total = to + 4 * e * count, total + -(-n // 4) * 16
    most = min(max(counts), TOGETHER)
    R = next(R for R in (4, 8, TOGETHER) if most <= R)
    constants = {
        "dtype": TYPES[dtype], "of_values": TYPES[of_values], "TILE": tile, "PART": PART,
        "CHUNK": CHUNK, "aligned": aligned(*(one.out for _, one in members)), "C": few, "R": R,
        "num_warps": warps_of(R, few),
    }  # fmt: skip
    of_lists = tuple(e for e, count in zip(edges, counts) for _ in range(count))
    return Sums(constants, rows, lists, sizes, of_lists, held)


def warps_of(R: int, C: int) -> int:
    """So that no thread holds more than 8 entries, and few registers."""
    return 8 if R * C > 1024 else 4


def _tile(entries: Sequence[int], sizes: Sequence[int]) -> tuple[int, int]:
    """The tile, and how many entries are few, of which two thirds are to be expected at most."""
    k, n = sum(entries), sum(sizes)
    return next(((tile, few) for tile, few in TILES if 3 * k * tile <= 2 * few * n), MANY)


def add_up(group: Sums, rows: Tensor, lists: Tensor, bad: Tensor) -> None:
    """Launches both, with a group's tables on the device. bad: int32; segments whose word is not 0
    are left out."""
    constants = group.constants
    if group.edges:
        blocks = blocks_on(rows.device, group.edges, BLOCK)
        launch(find_begins, (blocks.shape[0],), lists, blocks, TILE=constants["TILE"], BLOCK=BLOCK)
    blocks = blocks_on(rows.device, group.sizes, constants["TILE"])
    launch(
        add_lists, (blocks.shape[0],), rows, blocks, lists, bad, **constants,
        enable_fp_fusion=False,
    )  # fmt: skip


@on_its_device
def accumulate(out: Tensor, indices: list[Tensor], values: list[Tensor], divisor: float) -> None:
    places = [i.contiguous() for i in indices]
    held = [x.contiguous() for x in values]
    (group,) = groups_of([Sum(out, [i.data_ptr() for i in places], held, divisor)])
    bad, rows, lists = tables_on(out.device, [[0]], group.rows, group.lists)
    add_up(group, rows, lists, bad.view(torch.int32))


@on_its_device
def accumulate_coded(segments: Sequence[SumCoded], status: Tensor | None = None) -> int:
    """All lists of all segments are read and checked first, then added. Without a status the host
    waits for the device once, to tell which segment is bad."""
    if not segments:
        return 0
    device = segments[0].out.device
    lists, sums, room = _listed(segments, device)
    reading, groups = reading_of(lists), groups_of(sums)
    words = [[0]] * -(-len(segments) // 2)  # two of 32 bits in one of 64
    bad, rows, found, *tables = tables_on(
        device, words, reading.rows, reading.found,
        *(table for group in groups for table in (group.rows, group.lists)),
    )  # fmt: skip
    bad = bad.view(torch.int32)
    hold_back(bad, len(segments), status)
    if lists:
        read_lists(reading, rows, found.view(torch.int32), bad)
    tell(bad, len(segments), status)
    for i, group in enumerate(groups):
        add_up(group, tables[2 * i], tables[2 * i + 1], bad)
    del room  # places, which the kernels above read and write
    told = bad.flatten().tolist() if status is None else []
    return next((i for i, word in enumerate(told) if word), len(segments))


def _listed(
    segments: Sequence[SumCoded], device: torch.device
) -> tuple[list[Listed], list[Sum], Tensor]:
    """All lists, whose places go into one room, each at a multiple of 16 bytes; and the sums."""
    coded = [
        value.numel() for one in segments for code, value in zip(one.codes, one.values)
        if code != "int32"
    ]  # fmt: skip
    room = torch.empty(sum(-(-k // 4) * 4 for k in coded), dtype=torch.int32, device=device)
    to, lists, sums = room.data_ptr(), list[Listed](), list[Sum]()
    for owner, (out, codes, sections, values, divisor) in enumerate(segments):
        first, n = len(lists), out.numel()
        for code, section, value in zip(codes, sections, values):
            k, section = value.numel(), whole_words(section)
            if code == "int32":
                lists.append(Listed(section, code, n, k, section.data_ptr(), owner))
            else:
                lists.append(Listed(section, code, n, k, to, owner))
                to += -(-k // 4) * 16
        held = [x.contiguous() for x in values]
        sums.append(Sum(out, [one.out for one in lists[first:]], held, divisor))
    return lists, sums, room


@on_its_device
def add(v: Tensor, indices: Tensor, values: Tensor, factor: float) -> None:
    """Bytes: 16 for each entry."""
    k = indices.numel()
    if k:
        launch(
            add_list, (-(-k // CHUNK),), v, indices.contiguous(), values, k, float(factor),
            BLOCK=CHUNK, enable_fp_fusion=False,
        )  # fmt: skip
