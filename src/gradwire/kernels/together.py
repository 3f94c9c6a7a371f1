"""Work on many parameters side by side: the segments that all yield in one turn make one call.

parameter 0 ── segments ──┐                          ┌── goes on
parameter 1 ── segments ──┼──► one call of each kind ┼── goes on
parameter 2 ── segments ──┘                          └── is done
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any, TypeAlias

from torch import Tensor

from gradwire.kernels.adam import adam_codes
from gradwire.kernels.casts import cast_many
from gradwire.kernels.codes import encode_many_codes, update_codes
from gradwire.kernels.entries import write_entries
from gradwire.kernels.known import Known
from gradwire.kernels.segments import (
    AdamCodes,
    CastInto,
    EncodeCodes,
    Reach,
    UpdateCodes,
    UpdateTopk,
    WriteEntries,
)
from gradwire.kernels.selection import reach
from gradwire.kernels.update import update_many_topk
from gradwire.kernels.values import Reaching

Segment: TypeAlias = (
    "UpdateTopk | UpdateCodes | EncodeCodes | AdamCodes | WriteEntries | CastInto | Reach"
)
Work: TypeAlias = "Generator[Sequence[Segment], Sequence[Any], None]"
"""A generator that yields segments that do not depend on each other, and receives the result of
each: the next hint for `UpdateTopk`, the elements found for `Reach`, None for others."""

_MANY: dict[
    type[Segment], Callable[[Sequence[Any], Tensor, Known | None], Sequence[Any] | None]
] = {
    UpdateTopk: update_many_topk,
    UpdateCodes: update_codes,
    EncodeCodes: encode_many_codes,
    AdamCodes: adam_codes,
    WriteEntries: write_entries,
    CastInto: cast_many,
    Reach: reach,
}


def together(works: Iterable[Work], status: Tensor, known: Known | None = None) -> None:
    """Runs all works to their end. status: raised where something is not finite. known: earlier
    steps' checks, with the same works in the same order. Raises KernelError, and what the works
    raise."""
    work = beside(works)
    asked = next(work, None)
    while asked is not None:
        try:
            asked = work.send(list(islice(_call(asked, status, known), len(asked))))
        except StopIteration:
            return


def beside(works: Iterable[Work]) -> Work:
    """Combines works into one, which yields the segments that they yield in the same turn."""
    waiting = [(work, asked) for work in works if (asked := next(work, None)) is not None]
    while waiting:
        segments = waiting[0][1] if len(waiting) == 1 else [s for _, own in waiting for s in own]
        found = yield segments
        # Another work may search before this one has used what was found.
        is_kept = len(waiting) > 1 and list(map(type, segments)).count(Reach) == 1
        given = map(_kept, found) if is_kept else iter(found)
        going = []
        for work, asked in waiting:
            try:
                going.append((work, work.send(list(islice(given, len(asked))))))
            except StopIteration:
                continue
        waiting = going


def _kept(result: Any) -> Any:
    """Returns the elements found as copies, which a later search does not write to; other results
    unchanged."""
    return Reaching(*map(Tensor.clone, result)) if type(result) is Reaching else result


def _call(segments: Sequence[Segment], status: Tensor, known: Known | None) -> Iterator[Any]:
    """Runs the segments, in one call per kind; returns their results in order."""
    kinds = list(dict.fromkeys(map(type, segments)))
    if len(kinds) == 1:
        return iter(_MANY[kinds[0]](segments, status, known) or repeat(None))
    given = {
        kind: _call([s for s in segments if type(s) is kind], status, known) for kind in kinds
    }
    return (next(given[type(segment)]) for segment in segments)
