"""Traces as the data of a page's timeline: a row for each lane, spans as plain numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

from gradwire.trace import TRAINING_THREAD, Span, Trace

MOST_SPANS = 150_000
"""The most spans of a page, over all traces of its timeline: each takes twenty bytes."""


@dataclass(frozen=True)
class Step:
    """A step that a timeline shows. name: among its steps; predicted: a trace to show above it,
    moved so that rank 0's backward begins at the same place."""

    name: str
    trace: Trace
    predicted: Trace | None = None


@dataclass(frozen=True)
class Timeline:
    """A timeline's data. steps: their names; ranks: those that may be shown alone, and their
    names; data: JSON, for `assets/page.js`; is_cut: whether a step was too large, and shows its
    first ranks only."""

    steps: list[str]
    ranks: dict[int, str]
    data: str
    is_cut: bool = False


def by_rank(rank: int) -> str:
    """Returns the name of a rank's rows."""
    return f"rank {rank}"


def timeline(steps: Iterable[Step], name: Callable[[int], str] = by_rank) -> Timeline | None:
    """Returns a timeline of the steps; None if there is none. Beyond `MOST_SPANS` later steps are
    left out, and later ranks of a step that alone has more. name: a rank's name, which begins its
    rows' names; "" if there is only one rank."""
    kinds, labels = _Numbers(), _Numbers()
    shown: list[dict[str, Any]] = []
    ranks: set[int] = set()
    spans, is_cut = 0, False
    for given in steps:
        step = replace(given, trace=_first_ranks(given.trace))
        is_cut |= len(step.trace.spans) < len(given.trace.spans)
        spans += len(step.trace.spans)
        if shown and spans > MOST_SPANS:
            break
        ranks |= {span.rank for span in step.trace.spans}
        shown.append({"name": step.name, **_rows(step, name, kinds, labels)})
    if not shown:
        return None
    data = {"kinds": kinds.names, "labels": labels.names, "steps": shown}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    names = {rank: name(rank) for rank in sorted(ranks)}
    return Timeline([step["name"] for step in shown], names, text, is_cut)


def _first_ranks(trace: Trace) -> Trace:
    """The trace's first ranks, as many as a page has room for, and at least one."""
    if len(trace.spans) <= MOST_SPANS:
        return trace
    many = Counter(span.rank for span in trace.spans)
    ends = accumulate(many[rank] for rank in sorted(many))
    kept = {rank for rank, end in zip(sorted(many), ends) if end <= MOST_SPANS} or {min(many)}
    return Trace(trace.world, [span for span in trace.spans if span.rank in kept])


class _Numbers:
    """Numbers names in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def names(self) -> list[str]:
        return list(self._numbers)


def _rows(
    step: Step, name: Callable[[int], str], kinds: _Numbers, labels: _Numbers
) -> dict[str, Any]:
    trace, predicted = step.trace, step.predicted
    zero = min((s.start_seconds for s in trace.spans), default=0.0)
    rows: list[dict[str, Any]] = []
    if predicted is not None:
        begins = [s.start_seconds for s in trace.spans if s.kind == "backward" and s.rank == 0]
        late = (begins[0] if begins else zero) - zero
        rows += _lanes(predicted.spans, -1, "predicted", -late, kinds, labels)
    ordered = sorted(trace.spans, key=lambda s: (s.rank, s.lane, s.start_seconds))
    for rank, own in groupby(ordered, key=lambda s: s.rank):
        rows += _lanes(own, rank, name(rank), zero, kinds, labels)
    end = max((s.end_seconds - zero for s in trace.spans), default=0.0)
    return {"rows": rows, "end": max(1, round(1e6 * end))}


def _lanes(
    spans: Iterable[Span], rank: int, name: str, zero: float, kinds: _Numbers, labels: _Numbers
) -> Iterable[dict[str, Any]]:
    ordered = sorted(spans, key=lambda s: (s.lane, s.start_seconds))
    for lane, own in groupby(ordered, key=lambda s: s.lane):
        flat: list[int] = []
        for s in own:
            begin, end = round(1e6 * (s.start_seconds - zero)), round(1e6 * (s.end_seconds - zero))
            flat += [begin, end - begin, kinds.of(s.kind), labels.of(s.label), round(s.bytes)]
        what = "trains" if lane == TRAINING_THREAD else f"lane {lane}"
        yield {"name": f"{name}, {what}" if name else what, "rank": rank, "spans": flat}
