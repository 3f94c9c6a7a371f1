"""Sums of sparse payloads: each program owns a tile of the result, and adds the entries in it,
list after list, in ascending order.

    find_begins ──► add_lists      where each tile's entries begin; zeros, and sums of the entries

Bytes: for each element those of the result; for each entry 8, and 16 for its total; 12 for each
tile and list. If a list has many entries in a tile: for each element 8 more for the total.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate as running
from itertools import chain, pairwise
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
from gradwire.kernels.cuda.lists import Listed, decode, reading_of, whole_words
from gradwire.kernels.cuda.lists import read as read_lists
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import (
    Column,
    Columns,
    addresses,
    all_aligned,
    bits_of_many,
    blocks_on,
    columns_of,
    on_its_device,
    plain,
    tables_on,
)
from gradwire.kernels.segments import SumCoded

TILES = ((8192, 64), (8192, 128), (4096, 128))
"""Elements of a tile, and the most entries of a list in it that are "few": loaded at once. Smaller
tiles would be so many that adding list after list is as fast."""
MANY = (4096, 64)
"""The same, if more entries are to be expected."""
TOGETHER = 16
"""The most lists whose entries are loaded at once."""
PART, CHUNK, BLOCK = 1024, 512, 256
OUT, TOTAL, N, FIRST, COUNT, BY, BEGINS_OF, BAD = (tl.constexpr(i) for i in range(8))
WIDTH = tl.constexpr(8)
"""The columns of a segment; its lists are COUNT rows of the lists' table, from FIRST on."""
PLACES, VALUES, K, STEPS, BEGINS, APART, EDGES = (tl.constexpr(i) for i in range(7))
LIST_WIDTH = tl.constexpr(7)
"""The columns of a list. STEPS: of a search through it. BEGINS, APART: where the begins of its
tiles go, and how far apart. EDGES: how many there are: one more than tiles, for the last end."""
_FAR = tl.constexpr(2147483647)


@triton.jit
def violation(indices, k, n, found, BLOCK: tl.constexpr):
    """Writes the first entry that is out of range or not above the one before to `found`."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(indices + j, mask=j < k, other=0)
    before = tl.load(indices + j - 1, mask=(j < k) & (j > 0), other=-1)
    wrong = (j < k) & ((here <= before) | (here >= n))
    first = tl.min(tl.where(wrong, j, _FAR), 0)
    if first != _FAR:
        tl.atomic_min(found, first)


@triton.jit
def find_begins(lists, blocks, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """Finds where the entries of each tile begin in each list: how many are below the tile's first
    element. It searches by quarters, for many tiles at once, so that their loads overlap.
    Whatever a list holds, nothing beyond its k entries is read, and no begin is above k."""
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
    """Writes zeros to a tile; part after part takes fewer registers than all at once."""
    for part in range(0, TILE, PART):
        i = first + tl.multiple_of(part, 16) + tl.arange(0, PART)
        write(p, i, tl.zeros([PART], dtype), n, first <= n - TILE)


@triton.jit
def divide(total, out, first, n, by, dtype: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr):
    """Writes a tile's total over the divisor."""
    for part in range(0, TILE, PART):
        i = first + tl.multiple_of(part, 16) + tl.arange(0, PART)
        s = read(total, i, n, first <= n - TILE)
        s = tl.div_rn(s, tl.zeros_like(s) + by)
        write(out, i, rounded(s, dtype), n, first <= n - TILE)


@triton.jit
def add_few(total, out, i, x, on, by, dtype: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Adds the entries of a tile, at most C of each of R lists, where `out` is zero everywhere.
    Lists take turns. If two have the same place, both store the same."""
    if dtype != tl.float32:  # the total is another tensor, which is not initialized yet
        tl.store(total + i, tl.zeros([R, C], tl.float32), mask=on)
    tl.debug_barrier()
    list_of = tl.arange(0, R)[:, None]
    for turn in tl.static_range(R):
        mine = on & (list_of == turn)
        sum_ = tl.zeros_like(x) + x  # the first list adds to zeros
        if turn > 0:
            sum_ = tl.load(total + i, mask=mine, other=0.0) + x
        tl.store(total + i, sum_, mask=mine)
        tl.debug_barrier()
    s = tl.load(total + i, mask=on, other=0.0)
    tl.debug_barrier()  # before the same place is divided
    tl.store(out + i, rounded(tl.div_rn(s, tl.zeros_like(s) + by), dtype), mask=on)


@triton.jit
def add_many(total, lists, begins, count, of_values: tl.constexpr, CHUNK: tl.constexpr):
    """Adds the entries of a tile, list after list, to its total."""
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
    """Writes a tile of one segment's sum, taken in fp32: in the result itself, if that is fp32. If
    each list has few entries in it, all are loaded at once, and the zeros elsewhere are not
    divided: 0 over a positive number is 0. Nothing is written if the segment's word is raised."""
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
def add_list(v, n, places, values, k, factor, BLOCK: tl.constexpr):
    """Adds one list times a factor. Invalid places are skipped, as places that this rank wrote are
    not checked."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.load(places + j, mask=j < k, other=-1)
    on = (i >= 0) & (i < n)
    x = widened(tl.load(values + j, mask=j < k, other=0.0))
    tl.store(v + i, tl.load(v + i, mask=on, other=0.0) + x * factor, mask=on)


@on_its_device
def first_violation(indices: Tensor, n: int) -> int:
    """Returns the first invalid entry, or k; the host waits for the device."""
    indices, k = indices.contiguous(), indices.numel()
    found = torch.full((1,), k, dtype=torch.int32, device=indices.device)
    if k:
        launch(violation, (-(-k // CHUNK),), indices, k, n, found, BLOCK=CHUNK)
    return int(found)


class Sum(NamedTuple):
    """One segment: addresses of places, int32, and contiguous values of each payload, in order.
    word: the number of the word in `bad` that excludes it."""

    out: Tensor
    places: Sequence[int]
    values: Sequence[Tensor]
    divisor: float
    word: int


class Sums(NamedTuple):
    """Segments of the same dtypes, which are added up by one launch of each kernel.

    constants: those of add_lists. rows, lists: tables to put on the device. sizes: of each
    segment. edges: how many begins each list has. held: other tensors of the kernels, kept alive
    until they are launched.
    """

    constants: dict[str, Any]
    rows: Columns
    lists: Columns
    sizes: tuple[int, ...]
    edges: tuple[int, ...]
    held: list[Tensor]


class _Plan(NamedTuple):
    """The parts of a sum that are the same in every step; begins and totals are byte offsets.

    of_segments: N, FIRST, COUNT. of_lists: K, STEPS, APART, EDGES.
    """

    tile: int
    few: int
    most: int
    edges: tuple[int, ...]
    begins: tuple[int, ...]
    totals: tuple[int, ...]
    begins_of_lists: tuple[int, ...]
    of_segments: tuple[Column, ...]
    of_lists: tuple[Column, ...]


@lru_cache(maxsize=256)
def _plan_of(sizes: tuple[int, ...], counts: tuple[int, ...], ks: tuple[int, ...]) -> _Plan:
    """Returns the plan. sizes, counts: elements and lists of each segment; ks: entries of each
    list, in order."""
    firsts = tuple(running(counts, initial=0))
    most = [max(ks[at : at + count], default=0) for at, count in zip(firsts, counts)]
    tile, few = _tile(most, sizes)
    edges = [max(1, -(-n // tile)) + 1 for n in sizes]
    begins = tuple(running((4 * e * count for e, count in zip(edges, counts)), initial=0))
    totals = tuple(running((-(-n // 4) * 16 for n in sizes), initial=0))
    steps = [(k.bit_length() + 1) // 2 for k in ks]  # each leaves a quarter
    lists = [
        (at + 4 * r, count, e)
        for at, count, e in zip(begins, counts, edges) for r in range(count)
    ]  # fmt: skip
    begin, apart, edge = zip(*lists) if lists else ((), (), ())
    n, first, count, k, step, far, of = (
        array("q", one) for one in (sizes, firsts[:-1], counts, ks, steps, apart, edge)
    )
    return _Plan(
        tile, few, max(counts), edge, begins, totals, begin, (n, first, count), (k, step, far, of)
    )


def groups_of(sums: Sequence[Sum]) -> list[Sums]:
    """Groups sums by their pairs of dtypes."""
    groups: dict[Any, list[Sum]] = {}
    for one in sums:
        kinds = sorted({value.dtype for value in one.values} or {torch.float32}, key=str)
        if len(kinds) > 1:  # no strategy sends mixed dtypes
            one, kinds = one._replace(values=[x.float() for x in one.values]), [torch.float32]
        groups.setdefault((one.out.dtype, *kinds), []).append(one)
    return [_sums(columns_of(members), *dtypes) for dtypes, members in groups.items()]


def _sums(every: Any, dtype: torch.dtype, of_values: torch.dtype) -> Sums:
    """Prepares the sums of one group. every: a `Sum` with the columns of many."""
    device, values = every.out[0].device, list(chain.from_iterable(every.values))
    sizes, counts = tuple(map(Tensor.numel, every.out)), tuple(map(len, every.values))
    plan = _plan_of(sizes, counts, tuple(map(Tensor.numel, values)))
    begins = torch.empty(plan.begins[-1] // 4, dtype=torch.int32, device=device)
    outs, begin, held = addresses(every.out), begins.data_ptr(), [begins, *values]
    totals: Column = outs
    if dtype != torch.float32:
        held.append(torch.empty(plan.totals[-1] // 4, dtype=torch.float32, device=device))
        totals = [held[-1].data_ptr() + at for at in plan.totals[:-1]]
    n, first, count = plan.of_segments
    rows = Columns(
        len(outs), outs, totals, n, first, count, bits_of_many(every.divisor),
        [begin + at for at in plan.begins[:-1]], every.word,
    )  # fmt: skip
    k, steps, apart, edges = plan.of_lists
    lists = Columns(
        len(values), list(chain.from_iterable(every.places)), addresses(values), k, steps,
        [begin + at for at in plan.begins_of_lists], apart, edges,
    )  # fmt: skip
    R = next(R for R in (4, 8, TOGETHER) if min(plan.most, TOGETHER) <= R)
    constants = {
        "dtype": TYPES[dtype], "of_values": TYPES[of_values], "TILE": plan.tile, "PART": PART,
        "CHUNK": CHUNK, "aligned": all_aligned(outs), "C": plan.few, "R": R,
        "num_warps": warps_of(R, plan.few),
    }  # fmt: skip
    return Sums(constants, rows, lists, sizes, plan.edges, held)


def warps_of(R: int, C: int) -> int:
    """Returns a program's warps, so that a thread holds at most 8 entries, in few registers."""
    return 8 if R * C > 1024 else 4


def _tile(entries: Sequence[int], sizes: Sequence[int]) -> tuple[int, int]:
    """Returns a tile's size, and how many entries are few: the first of TILES where at most two
    thirds of these are expected."""
    k, n = sum(entries), sum(sizes)
    return next(((tile, few) for tile, few in TILES if 3 * k * tile <= 2 * few * n), MANY)


def add_up(group: Sums, rows: Tensor, lists: Tensor, bad: Tensor) -> None:
    """Launches both kernels, with a group's tables on the device. bad: int32; segments whose word
    is not 0 are skipped."""
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
    (group,) = groups_of([Sum(out, addresses(places), held, divisor, 0)])
    bad, rows, lists = tables_on(out.device, [[0]], group.rows, group.lists)
    add_up(group, rows, lists, bad.view(torch.int32))


@on_its_device
def accumulate_coded(segments: Sequence[SumCoded], status: Tensor | None = None) -> int:
    """Reads and checks all lists of all segments first, then adds them. Without a status the host
    waits for the device once, to learn which segment is bad."""
    if not segments:
        return 0
    device = segments[0].out.device
    lists, groups, room = _listed(columns_of(segments), device)
    reading = reading_of(lists)
    bad, rows, found, *tables = tables_on(
        device, Columns(-(-len(segments) // 2), 0),  # two words of 32 bits in one of 64
        reading.rows, reading.found,
        *(table for group in groups for table in (group.rows, group.lists)),
    )  # fmt: skip
    bad = bad.view(torch.int32)
    hold_back(bad, len(segments), status)
    if lists.ks:
        read_lists(reading, rows, found.view(torch.int32), bad)
    tell(bad, len(segments), status)
    for i, group in enumerate(groups):
        add_up(group, tables[2 * i], tables[2 * i + 1], bad)
    del room  # places, which the kernels above read and write
    told = bad.flatten().tolist() if status is None else []
    return next((i for i, word in enumerate(told) if word), len(segments))


def _listed(every: Any, device: torch.device) -> tuple[Listed, list[Sums], Tensor]:
    """Returns all lists; the sums; and the buffer for all places, each at a multiple of 16 bytes.

    every: a `SumCoded` with the columns of many.
    """
    counts = tuple(map(len, every.values))
    codes = tuple(chain.from_iterable(every.codes))
    sections = [
        x if x.data_ptr() % 4 == 0 and x.is_contiguous() else whole_words(x)
        for x in chain.from_iterable(every.sections)
    ]
    values = plain(list(chain.from_iterable(every.values)))
    plan = _rooms_of(tuple(map(Tensor.numel, every.out)), counts, codes,
                     tuple(map(Tensor.numel, values)))  # fmt: skip
    room = torch.empty(plan.slots, dtype=torch.int32, device=device)
    begin = room.data_ptr()
    outs = [begin + at if at >= 0 else x.data_ptr() for at, x in zip(plan.places, sections)]
    lists = Listed(sections, codes, plan.ns, plan.ks, outs, plan.owners)
    sums: tuple[Any, ...] = (
        every.out, [outs[part] for part in plan.parts], [values[part] for part in plan.parts],
        every.divisor, range(len(counts)),
    )  # fmt: skip
    dtypes = {x.dtype for x in every.out}, {x.dtype for x in values} or {torch.float32}
    if all(len(own) == 1 for own in dtypes):
        return lists, [_sums(Sum(*sums), *(own.pop() for own in dtypes))], room
    return lists, groups_of([Sum(*one) for one in zip(*sums)]), room


class _Rooms(NamedTuple):
    """The lists of all segments, in order. owners: the segment of each. places: the byte offset of
    its decoded places in a buffer of `slots` int32; -1 if they are not coded. parts: the lists of
    each segment."""

    ns: tuple[int, ...]
    ks: tuple[int, ...]
    owners: tuple[int, ...]
    places: tuple[int, ...]
    slots: int
    parts: tuple[slice, ...]


@lru_cache(maxsize=256)
def _rooms_of(
    sizes: tuple[int, ...], counts: tuple[int, ...], codes: tuple[str, ...], ks: tuple[int, ...]
) -> _Rooms:
    owners = tuple(owner for owner, count in enumerate(counts) for _ in range(count))
    places, at = list[int](), 0
    for code, k in zip(codes, ks):
        places.append(-1 if code == "int32" else 4 * at)
        at += 0 if code == "int32" else -(-k // 4) * 4
    firsts = tuple(running(counts, initial=0))
    parts = tuple(slice(*both) for both in pairwise(firsts))
    return _Rooms(tuple(sizes[i] for i in owners), ks, owners, tuple(places), at, parts)


@on_its_device
def add(v: Tensor, indices: Tensor, values: Tensor, factor: float) -> None:
    """Adds one list times the factor. Bytes: 16 for each entry."""
    k = indices.numel()
    if k:
        launch(
            add_list, (-(-k // CHUNK),), v, v.numel(), indices.contiguous(), values.contiguous(),
            k, float(factor), BLOCK=CHUNK, enable_fp_fusion=False,
        )  # fmt: skip


@on_its_device
def add_coded(v: Tensor, section: Tensor, code: str, values: Tensor, factor: float) -> bool:
    """Adds a coded list times the factor. The host does not wait, so an invalid code is not
    reported."""
    places = section
    if section.dtype != torch.int32:
        places = torch.empty(values.numel(), dtype=torch.int32, device=v.device)
        decode(section, v.numel(), code, places)
    add(v, places, values, factor)
    return True
