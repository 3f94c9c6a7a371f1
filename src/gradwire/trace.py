"""Spans and traces, the same for predicted, simulated and measured runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

TRAINING_THREAD = -1
"""The lane of spans of the thread that runs forward and backward."""


class Span(NamedTuple):
    """Something that took time on one lane of one rank; or, in lockstep, only sent bytes.

    On the training thread, `TRAINING_THREAD`, its kind is "compute" (data, forward, optimizer),
    "backward" or "wait" (for the exchange). Measured seconds are of the rank's
    `time.perf_counter`, predicted and simulated ones count from the begin.
    """

    rank: int
    lane: int
    kind: str  # "encode" | "wire" | "decode", or as above
    label: str  # the bucket, and for wire the move: "bucket 3 [topk(0.01)+ef | gtopk] all_gather"
    start_seconds: float = 0.0
    end_seconds: float = 0.0
    bytes: float = 0.0
    group: str = "world"  # the move's group: "node" stays inside a machine
    received: float = 0.0  # bytes that arrived by the move; only in lockstep

    @property
    def seconds(self) -> float:
        """Its duration, in seconds."""
        return self.end_seconds - self.start_seconds


def range_name(kind: str, label: str) -> str:
    """Returns the name of a lane's span for people, as in exports and in torch's profiler:
    "encode bucket 3", "wire bucket 3 all_gather". A bucket's strategy is left out."""
    name, bracket, rest = label.partition(" [")
    return f"{kind} {name}{rest.rpartition(']')[2]}" if bracket else f"{kind} {label}"


@dataclass
class Trace:
    """Spans of one or more steps, over one or more ranks. world: the number of ranks."""

    world: int
    spans: list[Span] = field(default_factory=list)

    def add(self, span: Span) -> None:
        """Append a span."""
        self.spans.append(span)

    def of(self, kind: str) -> Iterable[Span]:
        """Returns all spans of one kind, in the order in which they were recorded."""
        return (span for span in self.spans if span.kind == kind)

    @property
    def bytes_sent(self) -> list[float]:
        """The bytes that each rank put on the wire, over all moves, headers included."""
        return self._bytes(self.of("wire"))

    @property
    def bytes_across(self) -> list[float]:
        """The part of `bytes_sent` that is not known to stay inside a machine."""
        return self._bytes(span for span in self.of("wire") if span.group != "node")

    def _bytes(self, spans: Iterable[Span]) -> list[float]:
        sent = [0.0] * self.world
        for span in spans:
            sent[span.rank] += span.bytes
        return sent

    @property
    def busiest_bytes(self) -> float:
        """The sum, over all moves, of the most bytes that any rank sends or receives, which bounds
        the time on full-duplex links. Only for a trace from lockstep."""
        by_rank: list[list[float]] = [[] for _ in range(self.world)]
        for span in self.of("wire"):
            by_rank[span.rank].append(max(span.bytes, span.received))
        return sum(map(max, zip_longest(*by_rank, fillvalue=0.0)))

    def seconds(self, kind: str) -> float:
        """Returns the seconds of all spans of one kind; overlapping spans count twice."""
        return sum(span.seconds for span in self.of(kind))
