"""The numbers of a recorded run that its pages and tables show: means over steps and ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from statistics import fmean, median_low, quantiles
from typing import NamedTuple

from gradwire.report import noise
from gradwire.report.noise import Interval, of_all, parts
from gradwire.report.run import Rank, Run
from gradwire.run_folder import StepRow
from gradwire.trace import TRAINING_THREAD, Span, Trace

LANE_KINDS = "encode", "wire", "decode"
SETTLED = 0.1
"""The part of the steps that is left out at the start, where memory is allocated and links warm
up."""
_MOST = 1e290
SLOW = 1.25
"""A rank is slow if it computes more than so many times as long as the median rank."""


class Spread(NamedTuple):
    """A mean over all steps, and the quartiles and the median of means over parts of the run."""

    mean: float
    low: float
    high: float
    median: float

    @staticmethod
    def of(rows: Sequence[Sequence[StepRow]], value: Callable[[StepRow], float]) -> Spread:
        """Returns the spread of a value over all ranks. rows: one sequence for each rank."""
        mean = mean_of([row for own in rows for row in own], value)
        means = [x for own in rows for x in parts((r.steps, value(r)) for r in own).values()]
        if len(means) < 2:
            return Spread(mean, mean, mean, mean)
        low, middle, high = quantiles(means, n=4, method="inclusive")
        return Spread(mean, low, high, middle)


def mean_of(rows: Sequence[StepRow], value: Callable[[StepRow], float]) -> float:
    """Returns the mean over steps; a row may stand for many. 0 without rows."""
    steps = sum(row.steps for row in rows)
    return sum(row.steps * value(row) for row in rows) / steps if steps else 0.0


@dataclass(frozen=True)
class Summary:
    """A run in numbers: means over the steps of the plan in force, without the first tenth of
    them. Seconds are of one step, bytes of one step and rank.

    rows: these rows, by rank; since: the first step of the plan. computes: data, forward, backward
    and optimizer; waits: for the exchange, after backward; waits_for: what the lanes did
    meanwhile, on the rank that waited longest, in steps that were recorded span by span: encode,
    wire, decode, "ranks" (another rank came later to a move), and "other". lanes: seconds of each
    kind of work, during backward or not. overlap: the part of this work that nobody waited for.
    skipped: how many of all steps were not finite.
    """

    run: Run
    rows: dict[int, Sequence[StepRow]]
    steps: int
    since: int
    seconds: Spread
    computes: Spread
    waits: Spread
    lanes: dict[str, float]
    waits_for: dict[str, float]
    bytes_sent: float
    bytes_given: float
    computes_by_rank: dict[int, float]
    skipped: int
    losses: Sequence[tuple[int, float, float]]

    @property
    def alone(self) -> float:
        """The seconds of a step if ranks waited for nothing but the rank that computes longest."""
        return max(self.computes_by_rank.values())

    @property
    def overlap(self) -> float:
        """The part of the lanes' work that nobody waited for, from 0 to 1."""
        busy = sum(self.lanes.values())
        return max(0.0, 1.0 - self.waits.mean / busy) if busy else 0.0

    @property
    def fewer(self) -> float:
        """How many times fewer bytes are sent than the gradient has."""
        return self.bytes_given / self.bytes_sent if self.bytes_sent else float("inf")

    @property
    def slow_ranks(self) -> dict[int, float]:
        """The ranks that compute longer than the others, by more than a twentieth of a step, and
        how many times as long."""
        usual = median_low(self.computes_by_rank.values())
        matters = usual + 0.05 * self.seconds.mean
        found = {r: x for r, x in self.computes_by_rank.items() if x > max(SLOW * usual, matters)}
        return {rank: x / usual for rank, x in found.items()} if usual else {}


def summarize(run: Run, most: int | None = None) -> Summary | None:
    """Returns the run's summary; None if no rank has finished a step. most: how many of each
    rank's last rows count; None: all."""
    since, _ = run.in_force
    rows = {
        rank.rank: own
        for rank in run.ranks.values()
        if (own := settled(rank.steps, since)[-(most or 0) :])
    }
    if not rows:
        return None
    every = [row for own in rows.values() for row in own]
    by_rank = list(rows.values())
    return Summary(
        run, rows, max(rank.count for rank in run.ranks.values()), since,
        Spread.of(by_rank, lambda row: row.seconds), Spread.of(by_rank, _computes),
        Spread.of(by_rank, lambda row: row.wait),
        {kind: mean_of(every, attrgetter(kind)) for kind in LANE_KINDS},
        waits_for(run, since),
        mean_of(every, lambda row: row.bytes_sent), mean_of(every, lambda row: row.bytes_given),
        {rank: mean_of(own, _computes) for rank, own in rows.items()},
        max(sum(row.skipped for row in rank.steps) for rank in run.ranks.values()),
        losses(run.first),
    )  # fmt: skip


def _computes(row: StepRow) -> float:
    return row.compute + row.backward


def settled(rows: Sequence[StepRow], since: int) -> Sequence[StepRow]:
    """The rows of the plan in force (all rows, if it has none), without those of its first steps.
    A recording writes most rows at its start, so they are counted by their steps."""
    own = [row for row in rows if row.step >= since] or rows
    ends = accumulate(row.steps for row in own)
    early = SETTLED * sum(row.steps for row in own)
    return [row for row, end in zip(own, ends) if end > early]


def settled_steps(run: Run, since: int = 0) -> list[int]:
    """Returns the steps recorded span by span that are of the plan in force since a step, without
    the first ones, as `Summary` leaves them out; all of that plan, if there are no others."""
    seen = [step for step in run.steps_with_spans() if step >= since]
    rows = settled(run.first.steps, since)
    begin = rows[0].step - rows[0].steps + 1 if rows else 0
    return [step for step in seen if step >= begin] or seen


def some(steps: Sequence[int], most: int) -> Sequence[int]:
    """Returns the steps, or as many evenly among them as `most` allows, with the last."""
    return steps[:: -max(1, -(-len(steps) // most))][::-1]


def losses(rank: Rank, name: str = "loss") -> list[tuple[int, float, float]]:
    """Returns (step, seconds since the run began, number) of all logs of that name. A number so
    large that sums of it are none is as good as infinite."""
    return [
        (log.step, seconds, x if abs(x := log.numbers[name]) < _MOST else x * math.inf)
        for seconds, log in rank.logs if name in log.numbers
    ]  # fmt: skip


def waits_for(run: Run, since: int = 0, most: int = 8) -> dict[str, float]:
    """Returns the seconds of what lanes did while the longest-waiting rank waited: means over some
    of the steps recorded span by span; with local steps, a step's part of an exchange."""
    chosen = some(settled_steps(run, since), most)
    found = [waited(run.trace([step])) for step in chosen]
    names = next((each for each in found if each), ())
    return {name: fmean(each[name] if each else 0.0 for each in found) / run.every
            for name in names}  # fmt: skip


def waited(trace: Trace) -> dict[str, float] | None:
    """Returns the same for one step; None if nobody waited. Where lanes do several things at once,
    the wire counts first, then encoding, decoding, and waiting for ranks."""
    waits = [span for span in trace.spans if span.kind == "wait"]
    if not waits:
        return None
    longest = max(waits, key=lambda span: span.seconds)
    own = [s for s in trace.spans if s.rank == longest.rank and s.lane != TRAINING_THREAD]
    moves = [span for span in own if span.kind == "wire"]
    late, travels = [], []
    for moved, all_there in zip(moves, _all_there(trace, longest.rank)):
        begins = min(max(moved.start_seconds, all_there), moved.end_seconds)
        late.append(moved._replace(end_seconds=begins))
        travels.append(moved._replace(start_seconds=begins))
    kinds = {
        "wire": travels, "encode": [s for s in own if s.kind == "encode"],
        "decode": [s for s in own if s.kind == "decode"], "ranks": late,
    }  # fmt: skip
    found, before = {}, 0.0
    covered: list[Span] = []
    for kind, spans in kinds.items():
        covered += spans
        now = _covered(longest, covered)
        found[kind], before = now - before, now
    return found | {"other": max(0.0, longest.seconds - before)}


def _all_there(trace: Trace, rank: int) -> Iterator[float]:
    """Yields, for each move of a rank in order, when the last of all ranks came to it. For a move
    inside a group, whose members are not known, that is its own start."""
    came: dict[tuple[str, int], float] = {}
    seen: dict[tuple[int, str], int] = {}
    own: list[tuple[Span, tuple[str, int]]] = []
    for span in trace.of("wire"):
        turn = seen.get((span.rank, span.label), 0)
        seen[span.rank, span.label] = turn + 1
        move = span.label, turn
        came[move] = max(came.get(move, -math.inf), span.start_seconds)
        if span.rank == rank:
            own.append((span, move))
    for span, move in own:
        yield came[move] if span.group == "world" else span.start_seconds


def _covered(window: Span, spans: Iterable[Span]) -> float:
    """The seconds of the window in which any of the spans is under way."""
    total, until = 0.0, window.start_seconds
    for span in sorted(spans, key=lambda s: s.start_seconds):
        start, end = max(span.start_seconds, until), min(span.end_seconds, window.end_seconds)
        if end > start:
            total, until = total + end - start, end
    return total


def ratio_of(longer: Summary, shorter: Summary) -> Interval | None:
    """Returns how many times as long one run's steps take as another's, by the means over all
    steps, and how far noise may move that, by parts of the runs, which may have unequally many
    steps; None if a run has too few."""
    found = noise.ratio(of_all(longer.rows.values()), of_all(shorter.rows.values()))
    if found is None:
        return None
    off = longer.seconds.mean / shorter.seconds.mean / found.value
    return Interval(*(off * bound for bound in found))
