"""A recorded run, or several side by side, in words: what `gradwire report` prints and shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradwire.report.alarms import alarms
from gradwire.report.summary import LANE_KINDS, Middle, Summary, ratio
from gradwire.report.table import Table
from gradwire.run_folder import Planned


def one(s: Summary) -> str:
    """The run in some lines: what a step takes, what it waits for, what is wrong."""
    said, advice = verdict([s])
    return "\n".join([*_lines(s), "", said, *advice, *alarms(s)])


def several(summaries: Sequence[Summary]) -> str:
    """A table, and whether each run is faster than the first or noise hides it."""
    rows = [
        (
            s.run.name, as_milliseconds(s.seconds.median), spread(s.seconds),
            as_milliseconds(s.computes.median), as_milliseconds(s.waits.median),
            as_bytes(s.bytes_sent), _loss(s),
        )
        for s in summaries
    ]  # fmt: skip
    headers = ("run", "ms/step", "quartiles", "computes", "waits", "sent", "last loss")
    said, advice = verdict(summaries)
    warned = [f"{s.run.name}: {text}" for s in summaries for text in alarms(s)]
    return "\n".join([said, "", Table(headers, rows).as_text(), "", *advice, *warned])


def verdict(summaries: Sequence[Summary]) -> tuple[str, list[str]]:
    """A sentence on one run, or on the last beside the first; and more: what limits it now, what
    to try next, and how the others compare."""
    first, last = summaries[0], summaries[-1]
    if last is first:
        return _alone(first), _advice(first)
    said, *others = (_compared(first, other) for other in (last, *summaries[1:-1]))
    noise, more = said[1], [other[0] for other in others]
    return said[0], [noise, *more, *_losses(first, last), *_advice(last)]


def sent(s: Summary) -> str:
    """How much of its gradient a rank sends."""
    times = (
        f"{s.fewer:.1f} times less than" if s.fewer > 1
        else f"{s.bytes_sent / s.bytes_given:.1f} times" if s.bytes_given else "beside"
    )  # fmt: skip
    own = as_bytes(s.bytes_given)
    return f"{as_bytes(s.bytes_sent)} a step and rank, {times} its gradient of {own}"


def as_milliseconds(seconds: float) -> str:
    """A number of three figures or so."""
    return f"{1e3 * seconds:.1f}" if seconds >= 1e-3 else f"{1e3 * seconds:.2g}"


def as_bytes(count: float) -> str:
    """With the unit that makes it short."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def spread(middle: Middle) -> str:
    """Quartiles, in milliseconds."""
    return f"{as_milliseconds(middle.low)} to {as_milliseconds(middle.high)}"


def _lines(s: Summary) -> Iterator[str]:
    facts = s.run.first.about.facts
    yield (
        f"{s.run.name}: {s.steps:,} steps on {len(s.run.ranks)} of {s.run.world} ranks, "
        f"{facts.get('backend', '?')} on {facts.get('device', '?')}"
    )
    yield from (f"  from step {plan.step}: {_plan(plan)}" for plan in s.run.plans[-3:])
    yield ""
    yield f"a step    {as_milliseconds(s.seconds.median)} ms, quartiles {spread(s.seconds)}"
    yield f"computes  {as_milliseconds(s.computes.median)} ms: data, forward, backward, optimizer"
    yield f"waits     {as_milliseconds(s.waits.median)} ms, {_percent(s)}{_waits(s)}"
    busy = ", ".join(f"{kind} {as_milliseconds(s.lanes[kind])}" for kind in LANE_KINDS)
    yield f"lanes     {busy} ms; {100 * s.overlap:.0f} % of that while it computes"
    yield f"sends     {sent(s)}"
    if s.losses:
        step, seconds, loss = s.losses[-1]
        yield f"loss      {loss:.4g} after step {step:,}, {seconds:.1f} s"


def _alone(s: Summary) -> str:
    return (
        f"A step takes {as_milliseconds(s.seconds.median)} ms, of which "
        f"{as_milliseconds(s.waits.median)} ms, {_percent(s)}, wait for the exchange."
    )


def _compared(first: Summary, other: Summary) -> tuple[str, str]:
    """Whether the other is faster; and the noise of that."""
    found = ratio(first.run, other.run)
    names = first.run.name, other.run.name
    both = (
        f"{as_milliseconds(other.seconds.median)} and {as_milliseconds(first.seconds.median)} ms"
    )
    if found.is_noise:
        said = f"No difference shows: {names[1]} and {names[0]} take {both} a step."
    elif found.value > 1:
        said = f"It helped: {names[1]} is {found.value:.2f} times as fast as {names[0]}, {both}."
    else:
        times = 1 / found.value
        said = (
            f"It did not help: {names[1]} takes {times:.2f} times as long as {names[0]}, {both}."
        )
    noise = (
        f"Allowing for noise, a step of {names[0]} is {found.low:.2f} to {found.high:.2f} times "
        "as long (95 %, parts of both runs drawn anew)."
    )
    return said, noise


def _losses(first: Summary, last: Summary) -> Iterator[str]:
    """Where both have come at the same steps: what is fast and learns less is a loss."""
    one, other = ({step: x for step, _, x in s.losses} for s in (first, last))
    if both := sorted(one.keys() & other.keys()):
        steps, names = both[-max(1, len(both) // 5) :], (first.run.name, last.run.name)
        means = [sum(own[step] for step in steps) / len(steps) for own in (other, one)]
        yield (
            f"Over steps {steps[0]:,} to {steps[-1]:,}, the last fifth that both have, the mean "
            f"loss of {names[1]} is {means[0]:.4g}, of {names[0]} {means[1]:.4g}."
        )


def _advice(s: Summary) -> list[str]:
    """What limits it now, and what to try next."""
    alone, waits = s.computes.median, s.waits.median
    if not alone:
        return []
    most = (alone + waits) / alone
    limit = (
        f"Were nothing to be exchanged, a step would take {as_milliseconds(alone)} ms: no plan "
        f"makes this job more than {most:.2f} times as fast."
    )
    if waits < 0.05 * alone:
        return [limit, "Computing limits it now: look there, not at the network."]
    return [limit, *_next(s)]


def _next(s: Summary) -> Iterator[str]:
    parts = s.waits_for
    if not parts or not (total := sum(parts.values())):
        return
    kind = max(parts, key=lambda name: parts[name])
    share = f"{100 * parts[kind] / total:.0f} %"
    tries = {
        "wire": "to send less: what gradwire plan finds, or attach with 'auto'",
        "encode": "a cheaper compressor, or more lanes where there are processors to spare",
        "decode": "what gradwire plan finds: another collective, by which less arrives",
        "other": "more lanes, or fewer and larger buckets: lanes wait for each other",
    }
    if kind == "wire" and s.slow_ranks:
        yield f"The wire limits it now, {share} of what it waits for: mostly for a slow rank."
        return
    names = {"wire": "The wire", "encode": "Encoding", "decode": "Decoding", "other": "Waking"}
    yield f"{names[kind]} limits it now, {share} of what it waits for. Try {tries[kind]}."


def _percent(s: Summary) -> str:
    share = s.waits.median / s.seconds.median if s.seconds.median else 0.0
    return f"{100 * share:.0f} %"


def _waits(s: Summary) -> str:
    if not s.waits_for:
        return ""
    parts = ", ".join(f"{name} {as_milliseconds(x)}" for name, x in s.waits_for.items())
    return f"; on the rank that waits longest: {parts} ms"


def _plan(plan: Planned) -> str:
    strategies = dict.fromkeys(str(bucket["strategy"]) for bucket in plan.buckets)
    more = f" and {len(strategies) - 3} more" if len(strategies) > 3 else ""
    return f"{len(plan.buckets)} buckets by {', '.join(list(strategies)[:3])}{more}"


def _loss(s: Summary) -> str:
    return f"{s.losses[-1][2]:.4g}" if s.losses else ""
