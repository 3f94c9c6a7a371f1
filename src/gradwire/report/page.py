"""The page that tells whether it helped, and why: one HTML file, nothing to be fetched.

    verdict, in a sentence          `run_text`'s words
    where a step's time goes        bars
    one step, span by span          a canvas (`assets/page.js`); what was predicted stands above
    steps and losses                lines
    buckets, ranks, the plan, how to repeat it

Whatever comes from files, as names of parameters and hosts, is escaped.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from statistics import median
from typing import Any

from gradwire.buckets import Parameter
from gradwire.report import charts, run_text
from gradwire.report.alarms import alarms
from gradwire.report.charts import Line, Part
from gradwire.report.run import Run
from gradwire.report.run_text import as_bytes, as_milliseconds
from gradwire.report.summary import LANE_KINDS, Summary, settled
from gradwire.trace import TRAINING_THREAD, Span, Trace

MOST_SPANS = 150_000
"""In the page, over all steps of its timeline: twenty bytes each."""
_KINDS = {
    "compute": "data, forward, optimizer", "backward": "backward", "wire": "waits for the wire",
    "encode": "waits for encoding", "decode": "waits for decoding", "other": "waits for lanes",
}  # fmt: skip


_BUCKET = re.compile(r"bucket (\d+) ")


@dataclass(frozen=True)
class Shown:
    """A run of a page. story: why its plan is as it is; predicted: a step of rank 0, as it was
    planned."""

    summary: Summary
    story: str = ""
    predicted: Trace | None = None


def page(runs: Sequence[Shown]) -> str:
    """The page of one run, or of several beside the first. It takes seconds for 64 ranks."""
    from jinja2 import Environment

    assets = files("gradwire.report") / "assets"
    text = {
        name: (assets / name).read_text("utf-8") for name in ("page.html", "page.css", "page.js")
    }
    environment = Environment(autoescape=True, trim_blocks=True)
    template = environment.from_string(text["page.html"])
    return template.render(css=text["page.css"], js=text["page.js"], **_values(runs))


def _values(runs: Sequence[Shown]) -> dict[str, Any]:
    summaries = [shown.summary for shown in runs]
    last = runs[-1]
    timeline = _timeline(last)
    verdict, told = run_text.verdict(summaries)
    return {
        "title": "gradwire report: " + " and ".join(s.run.name for s in summaries),
        "verdict": verdict, "told": told,
        "notes": [note for s in summaries for note in _notes(s, len(runs) > 1)],
        "time_chart": charts.bars([(s.run.name, _parts(s)) for s in summaries], _ms),
        "time_kinds": list(_KINDS.items()), **_times(summaries),
        "charts": _charts(summaries), "names": [s.run.name for s in summaries],
        "runs": [_run(shown) for shown in runs],
        "timeline": timeline, "timeline_words": _timeline_words(last),
        "timeline_ranks": sorted(last.summary.run.ranks),
        "timeline_json": json.dumps(timeline, separators=(",", ":")).replace("<", "\\u003c"),
    }  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{as_milliseconds(seconds)} ms"


def _notes(s: Summary, several: bool) -> Iterable[str]:
    yield from (f"{s.run.name}: {note}" if several else note for note in alarms(s))


def _parts(s: Summary) -> list[Part]:
    """A step, in the proportions of medians; waiting, in those of steps seen span by span."""
    rows = [row for rank in s.run.ranks.values() for row in settled(rank.steps)]
    own = [Part(k, median(getattr(row, k) for row in rows)) for k in ("compute", "backward")]
    seen = sum(s.waits_for.values())
    waits = {k: x * s.waits.median / seen for k, x in s.waits_for.items()} if seen else {
        "other": s.waits.median
    }  # fmt: skip
    parts = [*own, *(Part(kind, waits[kind]) for kind in _KINDS if kind in waits)]
    scale = s.seconds.median / (sum(part.value for part in parts) or 1.0)
    return [Part(part.name, scale * part.value) for part in parts]


def _times(summaries: Sequence[Summary]) -> dict[str, Any]:
    heads = ("run", "a step, ms", "quartiles", "computes", "waits", *LANE_KINDS, "overlap",
             "sent", "gradient / sent")  # fmt: skip
    rows = [
        (
            s.run.name, as_milliseconds(s.seconds.median), run_text.spread(s.seconds),
            as_milliseconds(s.computes.median), as_milliseconds(s.waits.median),
            *(as_milliseconds(s.lanes[kind]) for kind in LANE_KINDS), f"{100 * s.overlap:.0f} %",
            as_bytes(s.bytes_sent), f"{s.fewer:.1f}",
        )
        for s in summaries
    ]  # fmt: skip
    return {"time_heads": heads, "time_rows": rows}


# -- charts --------------------------------------------------------------------------------


def _charts(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    losses = {s.run.name: s.losses for s in summaries}
    by_step = [Line(n, [(float(step), x) for step, _, x in own]) for n, own in losses.items()]
    by_time = [Line(n, [(seconds, x) for _, seconds, x in own]) for n, own in losses.items()]
    steps = [Line(s.run.name, _steps(s.run)) for s in summaries]
    norms = [Line(s.run.name, _norms(s.run)) for s in summaries]
    found = {
        "A step's milliseconds: the median over ranks": (steps, "step", "ms per step"),
        "Loss against steps": (by_step, "step", "loss"),
        "Loss against seconds": (by_time, "seconds", "loss"),
        "What waits in residuals: the median of ranks' norms": (norms, "step", "norm"),
    }
    drawn = [(name, charts.lines(*what)) for name, what in found.items()]
    return [(name, chart) for name, chart in drawn if chart]


def _steps(run: Run) -> list[tuple[float, float]]:
    return _over_ranks(run, lambda row: 1e3 * row.seconds)


def _norms(run: Run) -> list[tuple[float, float]]:
    found = _over_ranks(run, lambda row: row.residual_norm)
    return found if any(norm for _, norm in found) else []


def _over_ranks(run: Run, value: Any) -> list[tuple[float, float]]:
    """Step and median over ranks."""
    pairs = sorted(
        (row.step, found)
        for rank in run.ranks.values()
        for row in rank.steps
        if (found := value(row)) is not None
    )
    by_step = groupby(pairs, key=lambda pair: pair[0])
    return [(float(step), median(x for _, x in own)) for step, own in by_step]


# -- tables --------------------------------------------------------------------------------


def _run(shown: Shown) -> dict[str, Any]:
    s = shown.summary
    return {
        "name": s.run.name, "story": shown.story,
        "sent": run_text.sent(s), "buckets": _buckets(s.run), "slow": bool(s.slow_ranks),
        "ranks": [_rank(s, rank) for rank in sorted(s.run.ranks)], "repeat": _repeat(s.run),
    }  # fmt: skip


def _rank(s: Summary, rank: int) -> dict[str, Any]:
    found = s.run.ranks[rank]
    about, rows = found.about, settled(found.steps)
    ahead, error = 1e3 * about.ahead_seconds, 1e3 * about.ahead_error_seconds
    return {
        "rank": rank, "host": about.host, "steps": found.steps[-1].step + 1 if rows else 0,
        "computes": as_milliseconds(s.computes_by_rank[rank]) if rows else "",
        "waits": as_milliseconds(median(row.wait for row in rows)) if rows else "",
        "clock": f"{ahead:.2f} ms, give or take {error:.2f}",
    }  # fmt: skip


def _buckets(run: Run) -> list[dict[str, Any]]:
    """What each bucket of the last plan sends and takes, by the steps seen span by span."""
    if not run.plans:
        return []
    buckets = run.plans[-1].buckets
    spans = _by_bucket(run, len(buckets))
    return [_bucket(i, bucket, spans.get(i, [])) for i, bucket in enumerate(buckets)]


def _by_bucket(run: Run, count: int) -> dict[int, list[list[Span]]]:
    """Of the first rank: each bucket's spans, step by step."""
    begin = run.plans[-1].step
    steps = [step for step in run.steps_with_spans() if step >= begin]
    found: dict[int, list[list[Span]]] = {}
    for step in steps[len(steps) // 10 :][:: max(1, len(steps) // 16)]:
        for i in range(count):
            found.setdefault(i, []).append([])
        for span in run.trace([step], [run.first.rank]).spans:
            if (bucket := _BUCKET.match(span.label)) and int(bucket[1]) < count:
                found[int(bucket[1])][-1].append(span)
    return found


def _bucket(i: int, bucket: Mapping[str, Any], steps: list[list[Span]]) -> dict[str, Any]:
    parameters = [
        Parameter(p["name"], tuple(p["shape"]), p["dtype"]) for p in bucket["parameters"]
    ]
    elements, given = sum(p.elements for p in parameters), sum(p.bytes for p in parameters)
    sent = median(sum(s.bytes for s in own) for own in steps) if steps else 0.0
    names = [p.name for p in parameters]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    seconds = {kind: _seconds_of(kind, steps) for kind in LANE_KINDS}
    return {
        "name": f"{i}: {', '.join(names[:2])}{more}", "strategy": bucket["strategy"],
        "tensors": len(names), "elements": f"{elements:,}",
        "sent": as_bytes(sent) if steps else "", "fewer": f"{given / sent:.1f}" if sent else "",
        **seconds,
    }  # fmt: skip


def _seconds_of(kind: str, steps: list[list[Span]]) -> str:
    each = [sum(s.seconds for s in own if s.kind == kind) for own in steps]
    return as_milliseconds(median(each)) if each else ""


def _repeat(run: Run) -> str:
    about = run.first.about.facts
    names = ("gradwire", "torch", "python", "backend", "device", "kernels", "cores", "threads",
             "optimizer", "seed")  # fmt: skip
    facts = [f"{name} {about[name]}" for name in names if about.get(name) not in (None, "")]
    words = about.get("command")
    command = shlex.join(map(str, words if isinstance(words, list) else [words]))
    hosts = {rank.about.host for rank in run.ranks.values()}
    where = f"{run.world} ranks on {len(hosts)} host{'s' if len(hosts) > 1 else ''}"
    return f"cd {about.get('folder', '')}\n{command}\n\n{where}: {', '.join(facts)}"


# -- the timeline --------------------------------------------------------------------------


def _timeline(shown: Shown) -> dict[str, Any] | None:
    """Rows of spans, as `page.js` takes them: begin, length, kind, label, bytes; microseconds."""
    run = shown.summary.run
    kinds, labels = _Numbers(), _Numbers()
    steps: list[dict[str, Any]] = []
    spans = 0
    for name, step in _chosen(run):
        trace = run.trace([step])
        spans += len(trace.spans)
        if steps and spans > MOST_SPANS:
            break
        steps.append({"name": name, **_rows(trace, shown.predicted, kinds, labels)})
    return {"kinds": kinds.names, "labels": labels.names, "steps": steps} if steps else None


def _chosen(run: Run) -> list[tuple[str, int]]:
    """A usual step, the longest, and the first, of those that all ranks have seen."""
    seen = run.steps_with_spans()
    rows = {row.step: row.seconds for row in run.first.steps if row.steps == 1}
    known = sorted((rows[step], step) for step in seen if step in rows)
    if not known:
        return [(f"{step:,}", step) for step in seen[-1:]]
    usual = known[len(known) // 2][1]
    settled_ones = [pair for pair in known if pair[1] >= seen[len(seen) // 10]] or known
    longest, first = settled_ones[-1][1], seen[0]
    named = {usual: "a usual one", longest: "the longest", first: "the first"}
    return [(f"{step:,}: {words}", step) for step, words in named.items()]


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
    trace: Trace, predicted: Trace | None, kinds: _Numbers, labels: _Numbers
) -> dict[str, Any]:
    zero = min((s.start_seconds for s in trace.spans), default=0.0)
    rows: list[dict[str, Any]] = []
    if predicted is not None:
        begins = [s.start_seconds for s in trace.spans if s.kind == "backward" and s.rank == 0]
        late = (begins[0] if begins else zero) - zero
        rows += _lanes(predicted.spans, -1, "predicted", -late, kinds, labels)
    by_rank = sorted(trace.spans, key=lambda s: (s.rank, s.lane, s.start_seconds))
    for rank, own in groupby(by_rank, key=lambda s: s.rank):
        rows += _lanes(own, rank, f"rank {rank}", zero, kinds, labels)
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
        yield {"name": f"{name}, {what}", "rank": rank, "spans": flat}


def _timeline_words(shown: Shown) -> str:
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
