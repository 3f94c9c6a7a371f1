"""The k largest of each segment, exactly, without a word to the host.

    mark ──► scan ──► compact ──► digit x4 ──► count ──► emit
              │                     of what reaches one of the last step's two thresholds,
              └─ too few, too many: of all elements of the segment

All nine are launched, always: a flag decides on the device. Ties go to the lower index, and the
result ascends, as the twins' does. The next thresholds are what 1.75 k and 3.5 k would reach.
Source: radix selection, digit by digit of the magnitudes' bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.cuda.candidates import compact, mark, scan
from gradwire.kernels.cuda.columns import BINS, BLOCK, ITEMS, NONE, TABLES, WORDS
from gradwire.kernels.cuda.device import MOMENTUM, NESTEROV
from gradwire.kernels.cuda.kept import Blocks
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.radix import count, digit, emit
from gradwire.kernels.cuda.tables import MOST, address_of, aligned, bits_of, blocks_on, rows_on

CHUNK = 8192
CAPACITY = 16
"""Candidates for each element that is selected; where there are more, all are looked at."""
SPAN = 4 * BLOCK
"""Elements of a program that marks, or writes candidates."""
WORKERS = 264
"""Programs that look for the k-th largest, at most: two for each multiprocessor of an H100."""


class Selection(NamedTuple):
    """What is selected from one segment. v: (n,), fp32 where there is a recurrence.

    hint: two words on the device, the upper threshold and the lower, or a number, which is both.
    kept: where old blocks go.
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
    """Launches all; gradients are of one dtype. Returns the next hints, two words on the
    device each."""
    device, dtype = status.device, TYPES[segments[0].g.dtype]
    sizes = tuple(one.g.numel() for one in segments)
    rooms = tuple(min(n, CAPACITY * one.k) for one, n in zip(segments, sizes))
    if sum(rooms) > MOST:
        raise KernelError(
            f"candidates of a bucket on CUDA are at most {MOST:,}; there is room for {CAPACITY} "
            f"for each that is selected, {sum(rooms):,} in all. Lower the density, or make "
            "buckets smaller"
        )
    wholes, blocks = blocks_on(device, sizes, BLOCK), blocks_on(device, rooms, ITEMS)
    programs, items, number_of = wholes.shape[0], blocks.shape[0], len(segments)
    room = _Room(device, number_of, programs, items, sum(rooms))
    table = rows_on(device, _rows(segments, sizes, rooms))
    marks = any(one.k for one in segments)
    spans = blocks_on(device, sizes, SPAN)
    launch(mark, (spans.shape[0],),
        table, spans, room.bits, room.counts, status, room.exacts, programs, dtype=dtype,
        mode=mode, marks=marks, aligned=all(aligned(one.g, one.u, one.v) for one in segments),
        BLOCK=BLOCK, SPAN=SPAN, num_warps=warps_of(mode), maxnreg=registers_of(mode),
        enable_fp_fusion=False,
    )  # fmt: skip
    if not marks:
        return list(room.hints.zero_().view(torch.float32).split(2))
    options = {"num_warps": 16, "enable_fp_fusion": False}
    of_v = {"dtype": dtype if mode == NONE.value else tl.float32, "BLOCK": BLOCK}
    launch(scan, (number_of,),
        table, room.counts, room.state, room.bins, room.hints, room.exacts, programs,
        CHUNK=CHUNK, **options,
    )  # fmt: skip
    launch(compact, (spans.shape[0],),
        table, spans, room.bits, room.counts, room.state, room.places, room.magnitudes,
        programs, **of_v, SPAN=SPAN, num_warps=4,
    )  # fmt: skip
    grid = (min(max(items, programs), WORKERS),)
    given, known = (table, blocks, wholes, room.state), (room.exacts, items, programs)
    for step in range(4):
        launch(digit, grid,
            *given, room.bins, room.magnitudes, room.hints, *known, **of_v, step=step,
            ITEMS=ITEMS, **options,
        )  # fmt: skip
    launch(count, grid,
        *given, room.magnitudes, room.above, room.equal, *known, **of_v, ITEMS=ITEMS,
        CHUNK=ITEMS, **options,
    )  # fmt: skip
    launch(emit, grid,
        *given, room.places, room.magnitudes, room.above, room.equal, *known, **of_v, mode=mode,
        masks=masks, ITEMS=ITEMS, **options,
    )  # fmt: skip
    return list(room.hints.view(torch.float32).split(2))


def warps_of(mode: int) -> int:
    """Of a program that marks: so that two have their registers in one multiprocessor."""
    return 8 if mode in (MOMENTUM.value, NESTEROV.value) else 16


def registers_of(mode: int) -> int:
    """Of a thread of such a program, at most: of 65,536 in a multiprocessor."""
    return 65_536 // (2 * 32 * warps_of(mode))


class _Room:
    """What the launches tell each other; one allocation, whose parts begin at multiples of 64
    bytes. hints outlives it."""

    def __init__(
        self, device: torch.device, segments: int, programs: int, items: int, slots: int
    ) -> None:
        self.hints = torch.empty(2 * segments, dtype=torch.int32, device=device)
        sizes = (
            1, segments * WORDS.value, segments * TABLES.value * BINS.value, 2 * programs,
            items + programs, items + programs, slots, slots, 2 * programs * BLOCK // 32,
        )  # fmt: skip
        wide = [-(-size // 16) * 16 for size in sizes]
        parts = torch.empty(sum(wide), dtype=torch.int32, device=device).split(wide)
        self.exacts, self.state, self.bins, self.counts = parts[:4]
        self.above, self.equal, self.places, self.magnitudes, bits = parts[4:]
        self.bits = bits.view(torch.uint8)


TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
"""torch's, as Triton says them."""


def _rows(
    segments: Sequence[Selection], sizes: Sequence[int], rooms: Sequence[int]
) -> list[list[int]]:
    """What the kernels know of each."""
    rows, first, slot, item = [], 0, 0, 0
    for one, n, room in zip(segments, sizes, rooms):
        number_of = max(1, -(-n // BLOCK))
        rows.append([
            *map(address_of, (one.g, one.u, one.v)), n, one.k,
            *map(address_of, (one.indices, one.values, one.velocities)),
            *_hint(one.hint, one.v.device), *map(bits_of, one.rule), first, number_of, slot, room,
            *((0, 0, 0) if one.kept is None else one.kept.row()), item,
        ])  # fmt: skip
        first, slot = first + number_of, slot + room
        item += max(1, -(-room // ITEMS))
    return rows


def _hint(hint: Tensor | float, device: torch.device) -> tuple[int, int]:
    if not isinstance(hint, Tensor):
        return 0, bits_of(hint)
    ours = hint.dtype == torch.float32 and hint.device == device and hint.numel() == 2
    return (hint.data_ptr() if ours else 0), 0
