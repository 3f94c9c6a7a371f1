"""The k largest of each segment, exactly, without waiting on the host.

    choose                          segments that are one block each: `small`
    mark ──► scan ──► compact ──► digit x4 ──► count ──► emit
              │                     from elements that reach one of the last step's two thresholds,
              └─ too few, too many: from all elements of the segment

For larger segments all nine kernels are always launched: a flag decides on the device. Ties go to
the lower index, and the result ascends, as in the twins. The next thresholds are the magnitudes
that 1.75 k and 3.5 k elements would reach.
Source: radix selection, digit by digit of the magnitudes' bits.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.cuda.candidates import compact, mark, scan
from gradwire.kernels.cuda.columns import BINS, BLOCK, ITEMS, NONE, TABLES, WORDS
from gradwire.kernels.cuda.device import FEEDBACK, MOMENTUM, NESTEROV
from gradwire.kernels.cuda.kept import shelf_of
from gradwire.kernels.cuda.launch import launch
from gradwire.kernels.cuda.radix import count, digit, emit
from gradwire.kernels.cuda.small import choose
from gradwire.kernels.cuda.tables import (
    MOST,
    Column,
    Columns,
    addresses,
    all_aligned,
    are_alike,
    bits_of,
    bits_of_many,
    blocks_on,
    plain,
    rows_on,
)
from gradwire.kernels.values import Hint, Words

CHUNK = 8192
SMALL = BLOCK
"""The most elements of a segment for which one launch does everything: one program holds them in
its registers; with twice as many it would have to spill some."""
CAPACITY = 16
"""Candidates per selected element for which there is room; if there are more, all elements are
read."""
SPAN = 4 * BLOCK
"""Elements of a program that marks, or writes candidates."""
WORKERS = 264
"""The most programs that search the k-th largest: two for each multiprocessor of an H100."""


class Places(NamedTuple):
    """The offsets of segments of these sizes in the shared buffers; the same in every step.

    sizes, ks: columns, as are those from FIRST to ITEM. programs, items: the number of blocks of
    all elements, and of all candidates.
    """

    rooms: tuple[int, ...]
    sizes: Column
    ks: Column
    columns: tuple[Column, ...]
    programs: int
    items: int
    slots: int


@lru_cache(maxsize=256)
def places_of(sizes: tuple[int, ...], ks: tuple[int, ...]) -> Places:
    """Returns the offsets. Raises KernelError if there would be too many candidates."""
    rooms = tuple(min(n, CAPACITY * k) for n, k in zip(sizes, ks))
    if sum(rooms) > MOST:
        raise KernelError(
            f"a bucket on CUDA can have at most {MOST:,} candidates; {CAPACITY} for each selected "
            f"element make {sum(rooms):,}. Lower the density, or make buckets smaller"
        )
    blocks, items = ([max(1, -(-n // of)) for n in many]
                     for many, of in ((sizes, BLOCK), (rooms, ITEMS)))  # fmt: skip
    (*firsts, programs), (*slots, slot), (*begins, item) = (
        accumulate(many, initial=0) for many in (blocks, rooms, items)
    )
    n, k, *columns = (array("q", one) for one in (sizes, ks, firsts, blocks, slots, rooms, begins))
    return Places(rooms, n, k, tuple(columns), programs, item, slot)


# -- all of them, for a bucket ---------------------------------------------------------------


def run(every: Any, mode: int, masks: bool, status: Tensor) -> list[Words]:
    """Launches all kernels. Returns the next hints, two words each.

    every: an `UpdateTopk` with the columns of many, whose gradients are of one dtype. Without a
    recurrence, the tensor to select from is passed as both gradient and residual.
    """
    number_of, device = len(every.k), status.device
    sizes = tuple(map(Tensor.numel, every.residual))
    places, shelf = places_of(sizes, every.k), shelf_of(every, sizes, device, BLOCK)
    gradients = plain(every.gradient)
    g, u, v, *taken = map(addresses, (gradients, *every[1:3], *every[4:7]))
    kept = (0, 0, 0, 0) if shelf is None else shelf.columns()
    table = rows_on(device, Columns(
        number_of, g, u, v, places.sizes, places.ks, *taken, *hints_of(every.hint, device),
        *rules_of(every), *places.columns, *kept,
    ))  # fmt: skip
    if shelf is not None:
        shelf.table = table
    hints = torch.empty(2 * number_of, dtype=torch.int32, device=device)
    marks = any(every.k)
    of = {"dtype": TYPES[gradients[0].dtype], "mode": mode, "aligned": all_aligned(g, u, v)}
    if marks and max(sizes) <= SMALL:
        launch(choose, (number_of,),
            table, hints, status, **of, masks=masks, BLOCK=BLOCK, num_warps=16,
            enable_fp_fusion=False,
        )  # fmt: skip
    else:
        _by_thresholds(table, hints, status, sizes, places, of, marks, masks)
    words = hints.view(torch.float32)
    return [Words(words, at, 2) for at in range(0, 2 * number_of, 2)]


def are_small(every: Any) -> list[bool]:
    """Returns which segments one launch can select from; none of them if all k are 0."""
    chosen = any(every.k)
    return [chosen and x.numel() <= SMALL for x in every.residual]


def _by_thresholds(
    table: Tensor, hints: Tensor, status: Tensor, sizes: tuple[int, ...], places: Places,
    of: dict[str, Any], marks: bool, masks: bool,
) -> None:  # fmt: skip
    device, mode = status.device, of["mode"]
    wholes, blocks = blocks_on(device, sizes, BLOCK), blocks_on(device, places.rooms, ITEMS)
    room, spans = _Room(device, len(sizes), places), blocks_on(device, sizes, SPAN)
    launch(mark, (spans.shape[0],),
        table, spans, room.bits, room.counts, status, room.exacts, places.programs, **of,
        marks=marks, BLOCK=BLOCK, SPAN=SPAN, num_warps=warps_of(mode),
        maxnreg=registers_of(mode), enable_fp_fusion=False,
    )  # fmt: skip
    if marks:
        _select(room, hints, table, spans, blocks, wholes, of["dtype"], mode, masks)
    else:
        hints.zero_()


def _select(
    room: _Room, hints: Tensor, table: Tensor, spans: Tensor, blocks: Tensor, wholes: Tensor,
    dtype: Any, mode: int, masks: bool,
) -> None:  # fmt: skip
    """Launches the kernels after `mark`."""
    programs, items = wholes.shape[0], blocks.shape[0]
    options = {"num_warps": 16, "enable_fp_fusion": False}
    of_v = {"dtype": dtype if mode == NONE.value else tl.float32, "BLOCK": BLOCK}
    launch(scan, (table.shape[0],),
        table, room.counts, room.state, room.bins, hints, room.exacts, programs,
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
            *given, room.bins, room.magnitudes, hints, *known, **of_v, step=step,
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


def warps_of(mode: int) -> int:
    """Returns the warps of a program that marks: two fit the registers of a multiprocessor."""
    return 8 if mode in (MOMENTUM.value, NESTEROV.value) else 16


def registers_of(mode: int) -> int:
    """Returns the most registers of a thread of such a program; a multiprocessor has 65,536."""
    return 65_536 // (2 * 32 * warps_of(mode))


class _Room:
    """The buffers that the launches share: one allocation, whose parts begin at multiples of 64
    bytes."""

    def __init__(self, device: torch.device, segments: int, of: Places) -> None:
        counts = of.items + of.programs
        sizes = (
            1, segments * WORDS.value, segments * TABLES.value * BINS.value, 2 * of.programs,
            counts, counts, of.slots, of.slots, 2 * of.programs * BLOCK // 32,
        )  # fmt: skip
        wide = [-(-size // 16) * 16 for size in sizes]
        parts = torch.empty(sum(wide), dtype=torch.int32, device=device).split(wide)
        self.exacts, self.state, self.bins, self.counts = parts[:4]
        self.above, self.equal, self.places, self.magnitudes, bits = parts[4:]
        self.bits = bits.view(torch.uint8)


TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
"""Triton's dtype for each of torch's."""


def mode_of(momentum: float | None, nesterov: bool, decay: float) -> tuple[int, float, float]:
    """Returns the number of the recurrence, and the factors of its velocity and its residual."""
    if momentum is None:
        return FEEDBACK.value, 0.0, decay
    return (NESTEROV if nesterov else MOMENTUM).value, momentum, 1.0


def rules_of(every: Any) -> Iterator[Column]:
    """Yields the columns M, S and D. every: `UpdateTopk` or `UpdateCodes` with columns of many."""
    rules = every.momentum, every.scale, every.decay
    if are_alike(*rules):
        rules = tuple(column[:1] for column in rules)
    ms, scales, decays = rules
    yield bits_of_many([m or 0.0 for m in ms])
    yield bits_of_many(scales)
    yield bits_of_many([d if m is None else 1.0 for m, d in zip(ms, decays)])


def hints_of(hints: Sequence[Hint], device: torch.device) -> tuple[Column, Column]:
    """Returns the columns HINT and HINT_BITS: the address of two words, else a number's bits."""
    if type(hints[0]) is Words and _are_ours(hints[0].every, hints[0].length, device):
        x, begin = hints[0].every, hints[0].every.data_ptr()
        if all(type(one) is Words and one.every is x and one.length == 2 for one in hints):
            return [begin + 4 * one.first for one in hints], 0  # type: ignore[union-attr]
    if set(map(type, hints)) == {float}:
        return 0, bits_of_many(hints)  # type: ignore[arg-type]
    pairs = [_hint(one, device) for one in hints]
    return [address for address, _ in pairs], [bits for _, bits in pairs]


def _hint(hint: Hint, device: torch.device) -> tuple[int, int]:
    if isinstance(hint, Words):
        hint = hint.view()
    if not isinstance(hint, Tensor):
        return 0, bits_of(hint)
    return (hint.data_ptr() if _are_ours(hint, hint.numel(), device) else 0), 0


def _are_ours(words: Tensor, count: int, device: torch.device) -> bool:
    return words.dtype == torch.float32 and words.device == device and count == 2
