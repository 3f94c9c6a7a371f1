"""The page of `gradwire report -o`: did it help, and why?

verdict, in a sentence          `run_text`'s words
where a step's time goes        bars
one step, span by span          what was predicted stands above
steps and losses                lines
buckets, ranks, the plan, how to repeat it
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from statistics import fmean, median
from typing import Any

from gradwire.buckets import Parameter
from gradwire.report import charts, run_text
from gradwire.report.alarms import alarms
from gradwire.report.charts import Line
from gradwire.report.labels import shortened
from gradwire.report.page import Charts, Figure, Fold, Grid, Key, Page, Section, Steps
from gradwire.report.run import Run
from gradwire.report.run_text import as_bytes, as_milliseconds
from gradwire.report.summary import LANE_KINDS, Summary, mean_of, settled, settled_steps, some
from gradwire.report.timeline import Step, timeline
from gradwire.run_folder import StepRow
from gradwire.trace import TRAINING_THREAD, Span, Trace

_KINDS = {
    "compute": "data, forward, optimizer", "backward": "backward", "wire": "waits for the wire",
    "ranks": "waits for other ranks", "encode": "waits for encoding",
    "decode": "waits for decoding", "other": "waits for lanes",
}  # fmt: skip
_MEANT = (
    "Numbers are means over ranks and steps; median and quartiles are of parts of the run. "
    "Encode, wire and decode, in ms, are what lanes do; the overlap is the part of it that nobody "
    "waits for."
)
_UNSEEN = {"wait": "waits; for what is not known"}
_LOOKED = 64  # steps whose spans are read to find a usual one
_BUCKET = re.compile(r"bucket (\d+) ")


@dataclass(frozen=True)
class Shown:
    """A run on the page. story: why its plan is as it is; predicted: a step of rank 0, as it was
    planned."""

    summary: Summary
    story: str = ""
    predicted: Trace | None = None


def run_page(runs: Sequence[Shown], more: Iterable[Section] = ()) -> Page:
    """Returns the page of one run, or of several compared with the first. more: sections at its
    end. Takes seconds for 64 ranks."""
    summaries = [shown.summary for shown in runs]
    verdict, told = run_text.verdict(summaries)
    sections = [_times(summaries), *_one_step(runs[-1]), _over_time(summaries)]
    sections += [*map(_run, runs), *more]
    return Page(
        "gradwire report: " + " and ".join(s.run.name for s in summaries), verdict, sections,
        told, [note for s in summaries for note in _notes(s, len(runs) > 1)],
    )  # fmt: skip


def _notes(s: Summary, several: bool) -> Iterable[str]:
    yield from (f"{s.run.name}: {note}" if several else note for note in alarms(s))


# -- where time goes -----------------------------------------------------------------------


def _times(summaries: Sequence[Summary]) -> Section:
    bars = charts.bars([(s.run.name, _parts(s)) for s in summaries], _ms)
    unseen = {} if all(s.waits_for for s in summaries) else _UNSEEN
    legend = [Key("box", f"k-{kind}", words) for kind, words in (_KINDS | unseen).items()]
    several = len(summaries) > 1
    heads = ("run", *["speed"][:several], "a step, ms", "median", "quartiles", "computes",
             "waits", *LANE_KINDS, "overlap", "sent", "gradient / sent")  # fmt: skip
    rows = [
        (
            shortened(s.run.name), *[run_text.speed(summaries[0], s)][:several],
            as_milliseconds(s.seconds.mean), as_milliseconds(s.seconds.median),
            run_text.spread(s.seconds),
            as_milliseconds(s.computes.mean), as_milliseconds(s.waits.mean),
            *(as_milliseconds(s.lanes[kind]) for kind in LANE_KINDS), f"{100 * s.overlap:.0f} %",
            as_bytes(s.bytes_sent), f"{s.fewer:.1f}" if s.bytes_sent else "",
        )
        for s in summaries
    ]  # fmt: skip
    drawn = Figure(bars, legend=legend)
    return Section("Where a step's time goes", [drawn, Grid(heads, rows)], [_MEANT])


def _ms(seconds: float) -> str:
    return f"{as_milliseconds(seconds)} ms"


def _parts(s: Summary) -> list[charts.Part]:
    """The parts of a step; its wait is divided as in the steps recorded span by span."""
    rows = [row for own in s.rows.values() for row in own]
    own = {kind: mean_of(rows, attrgetter(kind)) for kind in ("compute", "backward")}
    seen = sum(s.waits_for.values())
    waits = {kind: x * s.waits.mean / seen for kind, x in s.waits_for.items()} if seen else {
        "wait": s.waits.mean
    }  # fmt: skip
    parts = own | {kind: waits[kind] for kind in (*_KINDS, *_UNSEEN) if kind in waits}
    return [charts.Part(kind, value) for kind, value in parts.items()]


# -- one step ------------------------------------------------------------------------------


def _one_step(last: Shown) -> Iterator[Section]:
    run, since = last.summary.run, last.summary.since
    chosen = (
        Step(name, run.trace([step]), last.predicted if step >= since else None)
        for name, step in _chosen(last.summary)
    )
    if (found := timeline(chosen)) is not None:
        yield Section("One step, span by span", [Steps(found)], [_words(last)])


def _chosen(s: Summary) -> list[tuple[str, int]]:
    """A usual step and the longest of those that count, and the first of all, of those that all
    ranks recorded span by span."""
    seen = s.run.steps_with_spans()
    steps = settled_steps(s.run, s.since)
    rows = {row.step: row.seconds for row in s.run.first.steps if row.steps <= s.run.every}
    looked = some([step for step in steps if step not in rows], _LOOKED)
    took = {step: rows[step] for step in steps if step in rows}
    took |= {step: found for step in looked if (found := _lasted(s.run, step)) is not None}
    if not took:
        return [(f"{step:,}", step) for step in seen[-1:]]
    known = sorted((seconds, step) for step, seconds in took.items())
    usual, longest = known[len(known) // 2][1], known[-1][1]
    named = {usual: "a usual one", longest: "the longest", seen[0]: "the first"}
    return [(f"{step:,}: {words}", step) for step, words in named.items()]


def _lasted(run: Run, step: int) -> float | None:
    """A step's seconds by its spans: for most steps there is no row of that step alone. None if
    the thread that trains has no spans."""
    trained = [s for s in run.trace([step], [run.first.rank]).spans if s.lane == TRAINING_THREAD]
    if not trained:
        return None
    whole = max(s.end_seconds for s in trained) - min(s.start_seconds for s in trained)
    return whole / run.every


def _words(shown: Shown) -> str:
    run = shown.summary.run
    error = 1e3 * run.clock_error_seconds
    predicted = (
        "Predicted rows show the step as it was planned, from its first gradient on. "
        if shown.predicted is not None else ""
    )  # fmt: skip
    return (
        f"{run.name}. Each rank has a row for the thread that trains, and one for each lane. "
        f"{predicted}Ranks' clocks agree within {error:.2f} ms, measured when recording began."
    )


# -- steps and losses ----------------------------------------------------------------------


def _over_time(summaries: Sequence[Summary]) -> Section:
    losses = {s.run.name: s.losses for s in summaries}
    by_step = [Line(n, [(float(step), x) for step, _, x in own]) for n, own in losses.items()]
    by_time = [Line(n, [(seconds, x) for _, seconds, x in own]) for n, own in losses.items()]
    steps = [Line(s.run.name, _steps(s.run)) for s in summaries]
    all_steps = [Line(s.run.name, _all_steps(s.run)) for s in summaries]
    less = ", without first steps that are far longer" if steps != all_steps else ""
    norms = [Line(s.run.name, _norms(s.run)) for s in summaries]
    found = {
        f"A step's milliseconds: the median over ranks{less}": (steps, "step", "ms per step"),
        "Loss against steps": (by_step, "step", "loss"),
        "Loss against seconds": (by_time, "seconds", "loss"),
        "Norm of the residuals, which are not sent yet: the median over ranks": (
            norms,
            "step",
            "norm",
        ),
    }
    drawn = [Figure(charts.lines(*what), caption) for caption, what in found.items()]
    legend = [Key("line", f"s{i % 8}", name) for i, name in enumerate(losses)]
    return Section("Steps and losses", [Charts([own for own in drawn if own.svg], legend)])


def _steps(run: Run) -> list[tuple[float, float]]:
    """Each step's milliseconds. One of the first, which may compile for minutes, is left out where
    all others would be a flat line beside it."""
    found, rows = _all_steps(run), settled(run.first.steps, 0)
    begin = rows[0].step if rows else 0
    most = 3 * max((took for step, took in found if step >= begin), default=0.0)
    return [(step, took) for step, took in found if step >= begin or took <= most]


def _all_steps(run: Run) -> list[tuple[float, float]]:
    return _over_ranks(run, lambda row: 1e3 * row.seconds)


def _norms(run: Run) -> list[tuple[float, float]]:
    found = _over_ranks(run, lambda row: row.residual_norm)
    return found if any(norm for _, norm in found) else []


def _over_ranks(run: Run, value: Callable[[StepRow], float | None]) -> list[tuple[float, float]]:
    """Returns each step with the value's median over ranks."""
    pairs = sorted(
        (row.step, found)
        for rank in run.ranks.values()
        for row in rank.steps
        if (found := value(row)) is not None
    )
    by_step = groupby(pairs, key=lambda pair: pair[0])
    return [(float(step), median(x for _, x in own)) for step, own in by_step]


# -- each run ------------------------------------------------------------------------------


def _run(shown: Shown) -> Section:
    s = shown.summary
    parts: list[Grid | Fold] = []
    if rows := _buckets(s.run):
        heads = ("bucket", "strategy", "tensors", "elements", "sent", "fewer", "sent every",
                 "encode, ms", "wire, ms", "decode, ms")  # fmt: skip
        parts.append(Grid(heads, rows, text=(0, 1)))
    if shown.story:
        parts.append(Fold("Why this plan", shown.story))
    of_ranks = ("rank", "host", "computes, ms", "waits, ms", "steps", "clock, ahead of rank 0's")
    ranks = Grid(of_ranks, [_rank(s, rank) for rank in sorted(s.run.ranks)], text=(1,))
    parts.append(Fold(f"Its {len(ranks.rows)} ranks", ranks, is_open=bool(s.slow_ranks)))
    parts.append(Fold("How to repeat it", _repeat(s.run)))
    words = [run_text.sent(s)]
    if rows:
        words.append(
            f"A bucket's milliseconds are those of rank {s.run.first.rank}, in some of the steps "
            "recorded span by span."
        )
    if s.run.every > 1:
        words.append(
            f"There is an exchange every {s.run.every:g} steps; the table shows its buckets."
        )
    return Section(f"{s.run.name}: what is sent", parts, words)


def _rank(s: Summary, rank: int) -> tuple[str, ...]:
    found = s.run.ranks[rank]
    about, rows = found.about, s.rows.get(rank, ())
    ahead, error = 1e3 * about.ahead_seconds, 1e3 * about.ahead_error_seconds
    return (
        str(rank), about.host,
        as_milliseconds(s.computes_by_rank[rank]) if rows else "",
        as_milliseconds(mean_of(rows, lambda row: row.wait)) if rows else "",
        f"{sum(row.steps for row in found.steps):,}",
        f"{round(ahead, 2) + 0.0:.2f} ms, give or take {error:.2f}",
    )  # fmt: skip


def _buckets(run: Run) -> list[tuple[str, ...]]:
    """What each bucket of the last plan sends and takes, by the steps recorded span by span; with
    local steps, by those in which its fragment had its turn."""
    since, plan = run.in_force
    if plan is None:
        return []
    buckets = plan.buckets
    spans = _by_bucket(run, since, len(buckets))
    seen = {i: [own for own in steps if own or run.every == 1] for i, steps in spans.items()}
    ages = plan.ages if len(plan.ages) == len(buckets) else [None] * len(buckets)
    return [
        _bucket(i, bucket, age, seen.get(i, []))
        for i, (bucket, age) in enumerate(zip(buckets, ages))
    ]


def _by_bucket(run: Run, since: int, count: int) -> dict[int, list[list[Span]]]:
    """Each bucket's spans on the first rank, step by step."""
    steps = settled_steps(run, since)
    found: dict[int, list[list[Span]]] = {}
    for step in some(steps, 16) if run.every == 1 else steps:  # fragments take turns
        for i in range(count):
            found.setdefault(i, []).append([])
        for span in run.trace([step], [run.first.rank]).spans:
            if (bucket := _BUCKET.match(span.label)) and int(bucket[1]) < count:
                found[int(bucket[1])][-1].append(span)
    return found


def _bucket(
    i: int, bucket: Mapping[str, Any], age: float | None, steps: list[list[Span]]
) -> tuple[str, ...]:
    """Returns a row of the table. age: as in `Planned`."""
    parameters = [
        Parameter(p["name"], tuple(p["shape"]), p["dtype"]) for p in bucket["parameters"]
    ]
    elements, given = sum(p.elements for p in parameters), sum(p.bytes for p in parameters)
    sent = fmean(sum(s.bytes for s in own) for own in steps) if steps else 0.0
    if any(p.get("sparse") for p in bucket["parameters"]):
        given = 0  # of a table only some rows were given, and how many is not known
    names = [p.name for p in parameters]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return (
        f"{i}: {', '.join(names[:2])}{more}", bucket["strategy"], str(len(names)),
        f"{elements:,}", as_bytes(sent) if steps else "",
        f"{given / sent:.1f}" if sent and given else "",
        "" if age is None else "step" if age < 1.05 else f"{age:,.3g} steps",
        *(_seconds_of(kind, steps) for kind in LANE_KINDS),
    )  # fmt: skip


def _seconds_of(kind: str, steps: list[list[Span]]) -> str:
    each = [sum(s.seconds for s in own if s.kind == kind) for own in steps]
    return as_milliseconds(fmean(each)) if each else ""


def _repeat(run: Run) -> str:
    about = run.first.about.facts
    names = ("gradwire", "torch", "python", "backend", "device", "kernels", "cores", "threads",
             "optimizer", "seed")  # fmt: skip
    facts = [f"{name} {about[name]}" for name in names if about.get(name) not in (None, "")]
    words = about.get("command")
    command = shlex.join(map(str, words if isinstance(words, list) else [words]))
    hosts = {rank.about.host for rank in run.ranks.values()}
    where = f"{run_text.count(run.world, 'rank')} on {run_text.count(len(hosts), 'host')}"
    folder = shlex.quote(str(about.get("folder") or "."))
    by = (
        "\n\nThis is what each rank ran. Start it by the job's launcher, such as torchrun."
        if run.world > 1 else ""
    )  # fmt: skip
    return f"cd {folder}\n{command}{by}\n\n{where}: {', '.join(facts)}"
