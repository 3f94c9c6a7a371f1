"""All elements whose magnitude reaches a threshold, by ascending index: of many segments at once.

    count ──► offsets ──► (the host reads the counts, once) ──► write

Bytes for each element: its own, twice; for each that is found 8.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.device import (
    address,
    block_of,
    is_finite,
    magnitude,
    number,
    raise_if,
    read,
)
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.selection import TYPES
from gradwire.kernels.cuda.tables import (
    Columns,
    addresses,
    all_aligned,
    bits_of_many,
    blocks_on,
    columns_of,
    grouped,
    on_its_device,
    plain,
    rows_on,
)
from gradwire.kernels.segments import Reach
from gradwire.kernels.values import Reaching

BLOCK, CHUNK = 4096, 4096
X, N, LEAST, PROGRAM = (tl.constexpr(i) for i in range(4))
WIDTH = tl.constexpr(4)
"""The columns of a segment's row. PROGRAM: the number of its first program."""


@triton.jit
def reached(rows, blocks, dtype: tl.constexpr, aligned: tl.constexpr, BLOCK: tl.constexpr):
    """Returns a block's places, its elements, which of them are finite, and which reach the
    threshold."""
    segment, first = block_of(blocks)
    row = rows + segment * WIDTH
    n = tl.load(row + N).to(tl.int32)
    i = first + tl.arange(0, BLOCK)
    x = read(address(tl.load(row + X), dtype, aligned), i, n, first <= n - BLOCK)
    least = number(tl.load(row + LEAST)).to(tl.int32, bitcast=True)
    return i, x, is_finite(x), (magnitude(x) >= least) & (i < n)


@triton.jit
def count(
    rows, blocks, counts, status, dtype: tl.constexpr, aligned: tl.constexpr, BLOCK: tl.constexpr
):
    """Counts the elements of a block that reach the threshold; inf and NaN count as zero."""
    _, _, good, on = reached(rows, blocks, dtype, aligned, BLOCK)
    raise_if(status, ~good)
    tl.store(counts + tl.program_id(0), tl.sum(on.to(tl.int32), 0))


@triton.jit
def offsets(rows, counts, begins, number_of, n, CHUNK: tl.constexpr):
    """Replaces each program's count by the offset of its entries; and writes where those of each
    of n segments begin, and the end of the last. One program."""
    total = 0
    for begin in range(0, number_of, CHUNK):
        at = begin + tl.arange(0, CHUNK)
        c = tl.load(counts + at, mask=at < number_of, other=0)
        tl.store(counts + at, total + tl.cumsum(c, 0) - c, mask=at < number_of)
        total += tl.sum(c, 0)
    tl.debug_barrier()
    for begin in range(0, n, CHUNK):
        segment = begin + tl.arange(0, CHUNK)
        first = tl.load(rows + segment * WIDTH + PROGRAM, mask=segment < n, other=0)
        at = tl.load(counts + first, mask=segment < n, other=0)
        tl.store(begins + segment, at, mask=segment < n)
    tl.store(begins + n, total)


@triton.jit
def write(
    rows, blocks, counts, places, values, dtype: tl.constexpr, aligned: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the entries of a block."""
    i, x, _, on = reached(rows, blocks, dtype, aligned, BLOCK)
    to = tl.load(counts + tl.program_id(0)) + tl.cumsum(on.to(tl.int32), 0) - 1
    tl.store(places + to, i, mask=on)
    tl.store(values + to, x, mask=on)


@on_its_device
def reach(segments: Sequence[Reach], status: Tensor) -> list[Reaching]:
    """Finds the elements; the host waits for the device, once for each dtype."""
    found: dict[int, Reaching] = {}
    every = list(enumerate(segments))
    for _, own in grouped(every, lambda one: one[1].x.dtype):
        found |= zip([at for at, _ in own], _reach([one for _, one in own], status))
    return [found[at] for at, _ in every]


def _reach(segments: Sequence[Reach], status: Tensor) -> list[Reaching]:
    every, device, number_of = columns_of(segments), status.device, len(segments)
    xs = plain(every.x)
    sizes, given = tuple(map(Tensor.numel, xs)), addresses(xs)
    firsts = tuple(accumulate((max(1, -(-n // BLOCK)) for n in sizes), initial=0))
    rows = rows_on(device, Columns(
        number_of, given, sizes, bits_of_many(every.least), array("q", firsts[:-1])
    ))  # fmt: skip
    blocks, programs = blocks_on(device, sizes, BLOCK), firsts[-1]
    counts = torch.empty(programs, dtype=torch.int32, device=device)
    begins = torch.empty(number_of + 1, dtype=torch.int32, device=device)
    of = {"dtype": TYPES[xs[0].dtype], "aligned": all_aligned(given), "BLOCK": BLOCK}
    launch(count, (programs,), rows, blocks, counts, status, **of, num_warps=8)
    launch(offsets, (1,), rows, counts, begins, programs, number_of, CHUNK=CHUNK, num_warps=8)
    ends = begins.tolist()
    places = torch.empty(ends[-1], dtype=torch.int32, device=device)
    values = torch.empty(ends[-1], dtype=torch.float32, device=device)
    if ends[-1]:
        launch(write, (programs,), rows, blocks, counts, places, values, **of, num_warps=8)
    return [Reaching(places[begin:end], values[begin:end]) for begin, end in pairwise(ends)]
