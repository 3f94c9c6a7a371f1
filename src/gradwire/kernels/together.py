"""Work on many parameters side by side: what all ask for at one time is one call.

parameter 0 ── segments ──┐                          ┌── goes on
parameter 1 ── segments ──┼──► one call of each kind ┼── goes on
parameter 2 ── segments ──┘                          └── is done
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeAlias

from torch import Tensor

from gradwire.kernels.adam import adam_codes
from gradwire.kernels.casts import cast_many
from gradwire.kernels.codes import update_codes
from gradwire.kernels.entries import write_entries
from gradwire.kernels.segments import AdamCodes, CastInto, UpdateCodes, UpdateTopk, WriteEntries
from gradwire.kernels.update import update_many_topk
from gradwire.kernels.values import Hint

Segment: TypeAlias = "UpdateTopk | UpdateCodes | AdamCodes | WriteEntries | CastInto"
Work: TypeAlias = "Generator[Sequence[Segment], Sequence[Any], None]"
"""It yields segments that do not depend on each other, and receives what each of them gave: the
next hint of `UpdateTopk`, nothing of others."""

_MANY: dict[type[Segment], Callable[[Sequence[Any], Tensor], Sequence[Hint] | None]] = {
    UpdateTopk: update_many_topk,
    UpdateCodes: update_codes,
    AdamCodes: adam_codes,
    WriteEntries: write_entries,
    CastInto: cast_many,
}


def together(works: Iterable[Work], status: Tensor) -> None:
    """Run all to their end. status: raised where something is not finite. Raises KernelError, and
    what the works raise."""
    waiting = [(work, asked) for work in works if (asked := next(work, None)) is not None]
    while waiting:
        given = _call([segment for _, asked in waiting for segment in asked], status)
        going = []
        for work, asked in waiting:
            try:
                going.append((work, work.send([next(given) for _ in asked])))
            except StopIteration:
                continue
        waiting = going


def _call(segments: Sequence[Segment], status: Tensor) -> Iterator[Any]:
    """What each of them gave, in their order."""
    kinds = dict.fromkeys(map(type, segments))
    given = {
        kind: iter(_MANY[kind]([s for s in segments if type(s) is kind], status) or repeat(None))
        for kind in kinds
    }
    return (next(given[type(segment)]) for segment in segments)
