"""The k largest of each segment, exactly, without a word to the host.

    mark ──► scan ──► compact ──► select        what reaches the last threshold, then the k of it
               │ too few, or too many: the segment's flag
               └──► hist ×3 ──► count ──► offset ──► emit   every element, else they end at once

All ten are launched, always: the flag decides on the device. Ties go to the lower index, and the
result ascends, as the twins' does. The next threshold is what twice as many would reach.
Source: radix selection, digit by digit of the magnitudes' bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.candidates import compact, mark, scan, select
from gradwire.kernels.cuda.columns import BINS, BLOCK, NONE, WORDS
from gradwire.kernels.cuda.exact import count, emit, hist, offset
from gradwire.kernels.cuda.kept import Blocks
from gradwire.kernels.cuda.tables import address_of, aligned, bits_of, blocks_on, rows_on

CHUNK = 4096
CAPACITY = 16
"""Candidates for each element that is selected; what exceeds it takes the exact path."""


class Selection(NamedTuple):
    """What is selected from one segment. v: (n,), fp32 where there is a recurrence.

    hint: a word on the device with the threshold, or a number. kept: where old blocks go.
    """

    g: Tensor
    u: Tensor | None
    v: Tensor
    k: int
    indices: Tensor
    values: Tensor
    velocities: Tensor | None
    hint: Tensor | float
    rule: tuple[float, float, float] = (0.0, 1.0, 1.0)
    kept: Blocks | None = None


# -- all of them, for a bucket ---------------------------------------------------------------


def run(segments: Sequence[Selection], mode: int, masks: bool, status: Tensor) -> list[Tensor]:
    """Launches all; gradients are of one dtype. Returns the next hints, words on the device."""
    device, dtype = status.device, TYPES[segments[0].g.dtype]
    sizes = tuple(one.g.numel() for one in segments)
    blocks = blocks_on(device, sizes, BLOCK)
    programs, number_of = blocks.shape[0], len(segments)
    hints = torch.empty(number_of, dtype=torch.int32, device=device)
    rows, slots = _rows(segments, sizes)
    table = rows_on(device, rows)
    whole = all(aligned(one.g, one.u, one.v) for one in segments)
    of = {"dtype": dtype, "mode": mode}
    options = {"num_warps": 8, "enable_fp_fusion": False}
    counts = torch.empty((3, -(-programs // 4) * 4), dtype=torch.int32, device=device)
    bits = torch.empty(programs * BLOCK // 8, dtype=torch.uint8, device=device)
    marks = any(one.k for one in segments)
    mark[(programs,)](
        table, blocks, bits, counts[0], status, **of, marks=marks, aligned=whole, BLOCK=BLOCK,
        **options,
    )  # fmt: skip
    if not marks:
        return list(hints.zero_().view(torch.float32).split(1))
    read_from = {"dtype": dtype if mode == NONE.value else tl.float32}
    state = torch.empty((number_of, WORDS.value), dtype=torch.int32, device=device)
    bins = torch.empty((number_of, 3, BINS.value), dtype=torch.int32, device=device)
    places = torch.empty((2, -(-slots // 4) * 4 + 4), dtype=torch.int32, device=device)
    taken = {**read_from, "mode": mode, "masks": masks}
    scan[(number_of,)](table, counts[0], state, bins, hints, CHUNK=CHUNK, **options)
    compact[(programs,)](
        table, blocks, bits, counts[0], state, places[0], places[1], **read_from, BLOCK=BLOCK,
        **options,
    )  # fmt: skip
    select[(number_of,)](
        table, state, places[0], places[1], hints, **taken, CHUNK=CHUNK, **options
    )
    for step in range(3):
        hist[(programs,)](
            table, blocks, state, bins, **read_from, step=step, BLOCK=BLOCK, **options
        )
    count[(programs,)](
        table, blocks, state, bins, counts[1], counts[2], **read_from, BLOCK=BLOCK, **options
    )
    offset[(number_of,)](table, state, counts[1], counts[2], CHUNK=CHUNK, **options)
    emit[(programs,)](
        table, blocks, state, bins, counts[1], counts[2], hints, **taken, BLOCK=BLOCK, **options
    )
    return list(hints.view(torch.float32).split(1))


TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
"""torch's, as Triton says them."""


def _rows(segments: Sequence[Selection], sizes: Sequence[int]) -> tuple[list[list[int]], int]:
    """What the kernels know of each, and how much room all their candidates take."""
    rows, first, slot = [], 0, 0
    for one, n in zip(segments, sizes):
        number_of = max(1, -(-n // BLOCK))
        room = min(n, CAPACITY * one.k)
        rows.append([
            *map(address_of, (one.g, one.u, one.v)), n, one.k,
            *map(address_of, (one.indices, one.values, one.velocities)),
            *_hint(one.hint, one.v.device), *map(bits_of, one.rule), first, number_of, slot, room,
            *((0, 0, 0) if one.kept is None else one.kept.row()),
        ])  # fmt: skip
        first, slot = first + number_of, slot + room
    return rows, slot


def _hint(hint: Tensor | float, device: torch.device) -> tuple[int, int]:
    if not isinstance(hint, Tensor):
        return 0, bits_of(hint)
    ours = hint.dtype == torch.float32 and hint.device == device
    return (hint.data_ptr() if ours else 0), 0
