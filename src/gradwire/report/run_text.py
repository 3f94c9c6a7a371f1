"""A recorded run, or several side by side, as text: what `gradwire report` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradwire.report.summary import LANE_KINDS, Middle, Summary, ratio
from gradwire.report.table import Table


def one(summary: Summary) -> str:
    """The run in some lines: what a step takes, what it waits for, and what is wrong."""
    return "\n".join(_lines(summary))


def several(summaries: Sequence[Summary]) -> str:
    """A table, and whether each run is faster than the first or noise hides it."""
    first = summaries[0]
    rows = [
        (
            str(s.run.folder), _milliseconds(s.seconds.median), _spread(s.seconds),
            _milliseconds(s.computes.median), _milliseconds(s.waits.median),
            _bytes(s.bytes_sent), _loss(s),
        )
        for s in summaries
    ]  # fmt: skip
    headers = ("run", "ms/step", "quartiles", "computes", "waits", "sent", "last loss")
    return "\n".join([Table(headers, rows).as_text(), "", *_compared(first, summaries[1:])])


def _compared(first: Summary, others: Sequence[Summary]) -> Iterator[str]:
    for other in others:
        found = ratio(first.run, other.run)
        what = "is as fast as" if found.is_noise else (
            f"takes {1 / found.value:.2f} times as long as" if found.value < 1
            else f"is {found.value:.2f} times as fast as"
        )  # fmt: skip
        noise = "within noise" if found.is_noise else "beyond noise"
        yield (
            f"{other.run.folder} {what} {first.run.folder}, {noise}: a step of {first.run.folder} "
            f"is {found.low:.2f} to {found.high:.2f} times as long (95 %)"
        )


def _lines(s: Summary) -> Iterator[str]:
    about = s.run.first.lives[-1].about
    yield (
        f"{s.run.folder}: {s.steps:,} steps on {len(s.run.ranks)} of {s.run.world} ranks, "
        f"{about['backend']} on {about['device']}"
    )
    yield from (f"  from step {step}: {_plan(plan)}" for step, plan in s.run.plans[-3:])
    share = s.waits.median / s.seconds.median if s.seconds.median else 0.0
    yield ""
    yield f"a step    {_milliseconds(s.seconds.median)} ms, quartiles {_spread(s.seconds)}"
    yield f"computes  {_milliseconds(s.computes.median)} ms: data, forward, backward, optimizer"
    yield f"waits     {_milliseconds(s.waits.median)} ms, {100 * share:.0f} %{_waits(s)}"
    busy = ", ".join(f"{kind} {_milliseconds(s.lanes[kind])}" for kind in LANE_KINDS)
    yield f"lanes     {busy} ms; {100 * s.overlap:.0f} % of that while it computes"
    yield (
        f"sends     {_bytes(s.bytes_sent)} a step and rank, {s.fewer:.1f} times less than its "
        f"gradient of {_bytes(s.bytes_given)}"
    )
    if s.losses:
        step, seconds, loss = s.losses[-1]
        yield f"loss      {loss:.4g} after step {step:,}, {seconds:.1f} s"
    yield ""
    yield _verdict(s)
    yield from _alarms(s)


def _verdict(s: Summary) -> str:
    alone = s.computes.median
    if not alone:
        return "nothing is known of what it computes"
    most = s.seconds.median / alone
    return (
        f"were nothing to be exchanged, a step would take {_milliseconds(alone)} ms: no plan can "
        f"make this job more than {most:.2f} times as fast"
    )


def _alarms(s: Summary) -> Iterator[str]:
    for slow, times in s.slow_ranks.items():
        yield f"rank {slow} computes {times:.2f} times as long as the others, which wait for it"
    if s.skipped:
        yield f"{s.skipped} of {s.steps} steps were not finite, and skipped"
    for rank in s.run.ranks.values():
        for event in rank.events[-1:]:
            more = f" ({len(rank.events)} such events)" if len(rank.events) > 1 else ""
            yield f"rank {rank.rank}, step {event.step}: {event.what}{more}"
    yield from (f"note: {problem}" for problem in s.run.problems)


def _waits(s: Summary) -> str:
    if not s.waits_for:
        return ""
    parts = ", ".join(f"{name} {_milliseconds(x)}" for name, x in s.waits_for.items())
    return f"; on the rank that waits longest: {parts} ms"


def _plan(plan: object) -> str:
    buckets = plan.get("buckets", []) if isinstance(plan, dict) else []
    strategies = dict.fromkeys(str(bucket["strategy"]) for bucket in buckets)
    more = f" and {len(strategies) - 3} more" if len(strategies) > 3 else ""
    return f"{len(buckets)} buckets by {', '.join(list(strategies)[:3])}{more}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def _spread(middle: Middle) -> str:
    return f"{_milliseconds(middle.low)} to {_milliseconds(middle.high)}"


def _loss(s: Summary) -> str:
    return f"{s.losses[-1][2]:.4g}" if s.losses else ""


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
