"""Finds lanes of a trace for spans that have none: spans at the same time get different lanes."""

from __future__ import annotations

from collections.abc import Iterable

from gradwire.trace import TRAINING_THREAD, Span, Trace

TRAINS = ("compute", "backward", "wait")


def in_lanes(world: int, spans: Iterable[Span]) -> Trace:
    """Returns a trace of the spans, by their begin, each in the first lane of its rank that is
    free then. Spans of the thread that trains are on its lane."""
    trace, free = Trace(world), dict[int, list[float]]()
    for span in sorted(spans, key=lambda span: span.start_seconds):
        lane = TRAINING_THREAD
        if span.kind not in TRAINS:
            lanes = free.setdefault(span.rank, [])
            begin = span.start_seconds
            lane = next((n for n, until in enumerate(lanes) if until <= begin), len(lanes))
            lanes[lane : lane + 1] = [span.end_seconds]
        trace.add(span._replace(lane=lane))
    return trace
