"""The numbers of a recorded run that its pages and tables show: medians over steps and ranks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, median_low, quantiles
from typing import NamedTuple

from gradwire.report.run import Rank, Run
from gradwire.run_folder import StepRow
from gradwire.trace import TRAINING_THREAD, Span, Trace

LANE_KINDS = "encode", "wire", "decode"
SETTLED = 0.1
"""Of the rows: the first, in which memory is allocated and links warm up, are left out."""
SLOW = 1.25
"""A rank that computes so many times as long as the median rank is slow."""
_BLOCKS, _DRAWS = 12, 400


class Middle(NamedTuple):
    """A median, and the quartiles below and above it."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Middle:
        """Of one value or more."""
        low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else (
            3 * [values[0]]
        )  # fmt: skip
        return Middle(middle, low, high)


@dataclass(frozen=True)
class Summary:
    """A run in numbers. Seconds are of one step, bytes of one step and rank.

    computes: data, forward, backward and optimizer; waits: for the exchange, after backward;
    waits_for: what lanes did meanwhile, on the rank that waited longest, of steps that were
    recorded span by span: encode, wire, decode, and "other". lanes: seconds of each kind, beside
    backward or not. overlap: the part of these that nobody waited for. computes_by_rank: medians.
    """

    run: Run
    steps: int
    seconds: Middle
    computes: Middle
    waits: Middle
    lanes: dict[str, float]
    waits_for: dict[str, float]
    bytes_sent: float
    bytes_given: float
    computes_by_rank: dict[int, float]
    skipped: int
    losses: Sequence[tuple[int, float, float]]

    @property
    def overlap(self) -> float:
        """From 0 to 1."""
        busy = sum(self.lanes.values())
        return max(0.0, 1.0 - self.waits.median / busy) if busy else 0.0

    @property
    def fewer(self) -> float:
        """How many times fewer bytes are sent than the gradient has."""
        return self.bytes_given / self.bytes_sent if self.bytes_sent else float("inf")

    @property
    def slow_ranks(self) -> dict[int, float]:
        """Ranks that compute longer than the others, by what a step shows, and how many times as
        long."""
        usual = median_low(self.computes_by_rank.values())
        matters = usual + 0.05 * self.seconds.median
        found = {r: x for r, x in self.computes_by_rank.items() if x > max(SLOW * usual, matters)}
        return {rank: x / usual for rank, x in found.items()} if usual else {}


def summarize(run: Run) -> Summary | None:
    """None where no rank has finished a step."""
    rows = {rank.rank: settled(rank.steps) for rank in run.ranks.values() if rank.steps}
    if not rows:
        return None
    every = [row for own in rows.values() for row in own]
    last = max(rank.steps[-1].step for rank in run.ranks.values() if rank.steps)
    first = min(rank.lives[0].about.step for rank in run.ranks.values())
    return Summary(
        run, last + 1 - first,
        Middle.of([row.seconds for row in every]),
        Middle.of([row.compute + row.backward for row in every]),
        Middle.of([row.wait for row in every]),
        {kind: median(getattr(row, kind) for row in every) for kind in LANE_KINDS},
        waits_for(run),
        median(row.bytes_sent for row in every), median(row.bytes_given for row in every),
        {rank: median(row.compute + row.backward for row in own) for rank, own in rows.items()},
        max(sum(row.skipped for row in rank.steps) for rank in run.ranks.values()),
        losses(run.first),
    )  # fmt: skip


def settled(rows: Sequence[StepRow]) -> Sequence[StepRow]:
    """Without the first ones."""
    return rows[int(SETTLED * len(rows)) :] if len(rows) > 1 else rows


def losses(rank: Rank, name: str = "loss") -> list[tuple[int, float, float]]:
    """Step, seconds since the run began, and what was logged by that name; each life's seconds go
    on from where the one before left off."""
    found: list[tuple[int, float, float]] = []
    begun = 0.0
    for life in rank.lives:
        own = [log for log in life.logs if name in log.numbers]
        found = [entry for entry in found if own and entry[0] < own[0].step] or found
        found += [(log.step, begun + log.at, log.numbers[name]) for log in own]
        begun += life.steps[-1].at if life.steps else 0.0
    return found


def waits_for(run: Run, most: int = 8) -> dict[str, float]:
    """What lanes did while the rank that waited longest waited: medians over some of the steps
    that were recorded span by span."""
    steps = run.steps_with_spans()
    steps = steps[len(steps) // 10 :]
    chosen = steps[:: max(1, len(steps) // most)][:most]
    found = [found for step in chosen if (found := waited(run.trace([step])))]
    names = (*LANE_KINDS, "other")
    return {name: median(each[name] for each in found) for name in names} if found else {}


def waited(trace: Trace) -> dict[str, float] | None:
    """The same of one step; None if nobody waited. Where lanes do several things at once, the
    wire comes first, then encoding."""
    waits = [span for span in trace.spans if span.kind == "wait"]
    if not waits:
        return None
    longest = max(waits, key=lambda span: span.seconds)
    own = [s for s in trace.spans if s.rank == longest.rank and s.lane != TRAINING_THREAD]
    found, before = {}, 0.0
    covered: list[Span] = []
    for kind in ("wire", "encode", "decode"):
        covered += [span for span in own if span.kind == kind]
        now = _covered(longest, covered)
        found[kind], before = now - before, now
    return found | {"other": max(0.0, longest.seconds - before)}


def _covered(window: Span, spans: Iterable[Span]) -> float:
    """Seconds of the window in which any of the spans is under way."""
    total, until = 0.0, window.start_seconds
    for span in sorted(spans, key=lambda s: s.start_seconds):
        start, end = max(span.start_seconds, until), min(span.end_seconds, window.end_seconds)
        if end > start:
            total, until = total + end - start, end
    return total


class Ratio(NamedTuple):
    """How many times as long one run's steps take as another's: and what noise allows, 95 %."""

    value: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether the two may be equally fast."""
        return self.low <= 1.0 <= self.high


def ratio(longer: Run, shorter: Run) -> Ratio:
    """Of medians, and their spread if parts of each run are drawn anew (block bootstrap: steps
    that follow each other are alike)."""
    one, other = (_blocks(run) for run in (longer, shorter))
    draw = random.Random(0)
    drawn = sorted(
        median(draw.choices(one, k=len(one))) / median(draw.choices(other, k=len(other)))
        for _ in range(_DRAWS)
    )
    cut = _DRAWS // 40
    return Ratio(median(one) / median(other), drawn[cut], drawn[-1 - cut])


def _blocks(run: Run) -> list[float]:
    """Median seconds of a step, in consecutive parts of each rank's run."""
    found = []
    for rank in run.ranks.values():
        rows = settled(rank.steps)
        size = max(1, len(rows) // _BLOCKS)
        parts = (rows[i : i + size] for i in range(0, len(rows), size))
        found += [median(row.seconds for row in part) for part in parts]
    return found
