"""A recorded run, or several side by side, in words: what `gradwire report` prints and shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from gradwire.report import noise
from gradwire.report.alarms import alarms
from gradwire.report.summary import LANE_KINDS, Spread, Summary, ratio_of
from gradwire.report.table import Table
from gradwire.report.terminal import plain
from gradwire.run_folder import Planned


def one(s: Summary) -> str:
    """Describes a run in some lines: how long a step takes, what it waits for, what is wrong."""
    said, advice = verdict([s])
    return "\n".join([*_lines(s), "", said, *advice, *alarms(s)])


def several(summaries: Sequence[Summary]) -> str:
    """Returns a table of the runs, and whether each is faster than the first or noise hides it."""
    rows = [
        (
            s.run.name, speed(summaries[0], s), as_milliseconds(s.seconds.mean),
            as_milliseconds(s.seconds.median), spread(s.seconds),
            as_milliseconds(s.computes.mean), as_milliseconds(s.waits.mean),
            as_bytes(s.bytes_sent), _loss(s),
        )
        for s in summaries
    ]  # fmt: skip
    headers = (
        "run", "speed", "ms/step", "median", "quartiles", "computes", "waits", "sent", "last loss"
    )  # fmt: skip
    said, advice = verdict(summaries)
    warned = [f"{s.run.name}: {text}" for s in summaries for text in alarms(s)]
    return "\n".join([said, "", Table(headers, rows).as_text(), "", *advice, *warned])


def verdict(summaries: Sequence[Summary]) -> tuple[str, list[str]]:
    """Returns a sentence on one run, or on the last compared with the first; and more: what limits
    it now, what to try next, and how the others compare."""
    first, last = summaries[0], summaries[-1]
    if last is first:
        return _alone(first), _advice(first)
    said, *others = (_compared(first, other) for other in (last, *summaries[1:-1]))
    more = [other[0] for other in others]
    learnt = [*_losses(first, last), *_in_equal_time(first, last)]
    return said[0], [
        said[1],
        *more,
        *learnt,
        *_apart(first, last),
        *_advice(last, f" of {last.run.name}"),
    ]


def sent(s: Summary) -> str:
    """Says how much of its gradient a rank sends."""
    if not s.bytes_sent:
        return f"nothing, of a gradient of {as_bytes(s.bytes_given)}"
    times = (
        f"{s.fewer:.1f} times less than" if s.fewer > 1
        else f"{s.bytes_sent / s.bytes_given:.1f} times" if s.bytes_given else "beside"
    )  # fmt: skip
    own = as_bytes(s.bytes_given)
    return f"{as_bytes(s.bytes_sent)} a step and rank, {times} its gradient of {own}"


def speed(first: Summary, other: Summary) -> str:
    """Writes how many times as fast another run is as the first, and whether that is noise; "" if
    one has too few steps."""
    if other is first:
        return "1.00×"
    found = ratio_of(first, other)
    if found is None:
        return ""
    return f"{found.value:.2f}×{' (noise)' if found.holds(1.0) else ''}"


def count(number: int, what: str) -> str:
    """Writes how many there are of something: "1 step", "2,000 steps"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def as_milliseconds(seconds: float) -> str:
    """Writes seconds as milliseconds, without the unit, in about three figures."""
    return f"{1e3 * seconds:.1f}" if abs(seconds) >= 1e-3 else f"{1e3 * seconds:.2g}"


def as_bytes(count: float) -> str:
    """Writes a number of bytes in the unit that makes it short."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{plain(count / size)} {unit}"
    return f"{count:.0f} B"


def spread(found: Spread) -> str:
    """Writes the quartiles over parts of the run, in milliseconds."""
    return f"{as_milliseconds(found.low)} to {as_milliseconds(found.high)}"


def _lines(s: Summary) -> Iterator[str]:
    facts = s.run.first.about.facts
    yield (
        f"{s.run.name}: {count(s.steps, 'step')} on {len(s.run.ranks)} of "
        f"{count(s.run.world, 'rank')}, "
        f"{facts.get('backend', '?')} on {facts.get('device', '?')}"
        + (f", an exchange every {s.run.every:g} steps" if s.run.every > 1 else "")
    )
    plans = distinct(s.run.plans)
    yield from (f"  from step {plan.step}: {_plan(plan)}" for plan in plans[-3:])
    if s.since:
        yield f"  the numbers below: steps from {s.since:,} on, by the last of {len(plans)} plans"
    yield ""
    own = as_milliseconds(s.seconds.mean)
    yield f"a step    {own} ms in the mean; quartiles of parts of the run {spread(s.seconds)}"
    yield f"computes  {as_milliseconds(s.computes.mean)} ms: data, forward, backward, optimizer"
    yield f"waits     {as_milliseconds(s.waits.mean)} ms, {_percent(s)}{_waits(s)}"
    busy = ", ".join(f"{kind} {as_milliseconds(s.lanes[kind])}" for kind in LANE_KINDS)
    yield f"lanes     {busy} ms; {100 * s.overlap:.0f} % of that while it computes"
    yield f"sends     {sent(s)}"
    if s.losses:
        step, seconds, loss = s.losses[-1]
        yield f"loss      {loss:.4g} after step {step:,}, {seconds:.1f} s"


def distinct(plans: Sequence[Planned]) -> list[Planned]:
    """Returns the plans without those that equal the one before: each recording begins with its
    plan."""
    before = [None, *(plan.document for plan in plans)]
    return [plan for plan, last in zip(plans, before) if plan.document != last]


def _alone(s: Summary) -> str:
    return (
        f"A step takes {as_milliseconds(s.seconds.mean)} ms, of which "
        f"{as_milliseconds(s.waits.mean)} ms, {_percent(s)}, wait for the exchange."
    )


def _compared(first: Summary, other: Summary) -> tuple[str, str]:
    """Says whether the other run is faster, and how far noise may move that."""
    found, names = ratio_of(first, other), (first.run.name, other.run.name)
    both = f"{as_milliseconds(other.seconds.mean)} and {as_milliseconds(first.seconds.mean)} ms"
    if found is None:
        said = f"Too few steps to tell: {names[1]} and {names[0]} take {both} a step."
        return said, f"Steps vary; record {noise.LEAST * 4} steps or more of each."
    if found.holds(1.0):
        said = f"No difference shows: {names[1]} and {names[0]} take {both} a step."
    elif found.value > 1:
        faster = f"{names[1]} is {found.value:.2f} times as fast as {names[0]}, {both}"
        said = (
            f"{faster}, but it learns less in a step."
            if learns_less(first, other) else f"It helped: {faster}."
        )  # fmt: skip
    else:
        times = 1 / found.value
        said = (
            f"It did not help: {names[1]} takes {times:.2f} times as long as {names[0]}, {both}."
        )
    return said, (
        f"As far as steps vary within the runs, a step of {names[0]} is {found.low:.2f} to "
        f"{found.high:.2f} times as long (95 %). Runs started again may differ more."
    )


def _last_losses(first: Summary, last: Summary) -> list[tuple[int, float, float]]:
    """Returns the step and both losses, over the last fifth of the steps that both have logged."""
    one, other = ({step: x for step, _, x in s.losses} for s in (first, last))
    both = sorted(one.keys() & other.keys())
    return [(step, one[step], other[step]) for step in both[-max(1, len(both) // 5) :]]


def learns_less(first: Summary, last: Summary) -> bool:
    """Whether the last run's losses are worse than the first's, by more than a hundredth and by
    more than noise, or not finite in the end; with too few steps, only the latter counts. Single
    losses that are not finite, as where a GradScaler skips a step, do not count."""
    last_both = _last_losses(first, last)
    known = [pair for pair in last_both if math.isfinite(pair[1])]
    both = [pair for pair in known if math.isfinite(pair[2])]
    if known and (not math.isfinite(known[-1][2]) or 2 * len(both) < len(known)):
        return True  # the last run has diverged
    apart = noise.mean([*noise.parts((1, b - a) for _, a, b in both).values()])
    if apart is None:
        return False
    return apart.low > 0 and apart.value > 0.01 * fmean(abs(a) for _, a, _ in both)


def _losses(first: Summary, last: Summary) -> Iterator[str]:
    """Compares the runs' losses over the same steps: a faster run that learns less is no gain."""
    both = _last_losses(first, last)
    finite = [pair for pair in both if math.isfinite(pair[1]) and math.isfinite(pair[2])]
    if 2 * len(finite) >= len(both) and finite[-1:] == both[-1:]:
        both = finite  # single losses that are not finite do not count
    if both:
        names = first.run.name, last.run.name
        means = fmean(b for _, _, b in both), fmean(a for _, a, _ in both)
        yield (
            f"Over steps {both[0][0]:,} to {both[-1][0]:,}, the last fifth that both have, the "
            f"mean loss of {names[1]} is {means[0]:.4g}, of {names[0]} {means[1]:.4g}."
        )


def _in_equal_time(first: Summary, last: Summary) -> Iterator[str]:
    """Compares the runs' losses over the same seconds: what learns less in a step may still be
    ahead."""
    if not all(s.losses and math.isfinite(s.losses[-1][2]) for s in (first, last)):
        return
    end = min(s.losses[-1][1] for s in (first, last))
    both = [
        [loss for _, at, loss in s.losses if 0.8 * end <= at <= end and math.isfinite(loss)]
        for s in (first, last)
    ]
    if all(both):
        yield (
            f"From second {0.8 * end:.3g} to {end:.3g} of each, the last fifth of both, the "
            f"mean loss of {last.run.name} is {fmean(both[1]):.4g}, of {first.run.name} "
            f"{fmean(both[0]):.4g}."
        )


_FACTS = ("backend", "device", "cores", "threads", "torch", "optimizer", "seed", "kernels")


def _apart(first: Summary, last: Summary) -> Iterator[str]:
    """Says in which facts, besides their plans, two runs differ: that makes them hard to
    compare. What only one of them knows, as the optimizer where `attach` was not told, is no
    difference."""
    facts = [
        {"ranks": s.run.world, "hosts": len({r.about.host for r in s.run.ranks.values()}),
         **{name: s.run.first.about.facts.get(name) for name in _FACTS}}
        for s in (first, last)
    ]  # fmt: skip
    found = [
        f"{name} {facts[1][name]} and {facts[0][name]}"
        for name in facts[0]
        if facts[0][name] != facts[1][name] and None not in (facts[0][name], facts[1][name])
    ]  # fmt: skip
    if found:
        names = f"{last.run.name} and {first.run.name}"
        yield f"Apart from their plans, {names} differ in: {', '.join(found)}."


def _advice(s: Summary, whose: str = "") -> list[str]:
    """Says what limits the run now, and what to try next. whose: the run, if there are others."""
    alone = s.alone
    if not alone:
        return []
    most = max(1.0, s.seconds.mean / alone)
    slow = ", ".join(f"rank {rank}" for rank in s.slow_ranks)
    limit = (
        f"If exchanges took no time, a step{whose} would take {as_milliseconds(alone)} ms, as "
        f"long as {slow or 'the rank that computes longest'} computes: {most:.2f} times as fast, "
        "or a little more where lanes take processors from it."
    )
    if most < 1.05:
        whose = f"of {slow}, for which the others wait, " if slow else ""
        return [limit, f"Computing {whose}limits it now: look there, not at the network."]
    return [limit, *_next(s)]


def _next(s: Summary) -> Iterator[str]:
    if s.run.world == 1:
        yield "One rank has nobody to exchange with: gradwire only takes time here."
        return
    parts = s.waits_for
    if not (total := sum(parts.values())):
        yield (
            "What it waits for is not known: no step that was recorded span by span on all of "
            "these ranks shows it."
        )
        return
    auto = ", or attach with 'auto'" if len(distinct(s.run.plans)) == 1 else ""
    kind = max(parts, key=lambda name: parts[name])
    share = f"{100 * parts[kind] / total:.0f} %"
    tries = {
        "wire": f"sending less: use the plan that gradwire plan finds{auto}"
        if s.run.every == 1
        else "more steps between exchanges (every=), or exchanges during steps (delay=)",
        "encode": "a cheaper compressor, or more lanes where there are processors to spare",
        "decode": "another collective, with which less arrives: gradwire plan compares them",
        "other": "more lanes, or fewer and larger buckets: lanes wait for each other",
    }
    if kind == "ranks":
        slow = ", ".join(f"rank {rank}" for rank in s.slow_ranks) or "now one, now another"
        yield (
            f"Ranks that are late to the exchange limit it now, {share} of the waiting time: "
            f"{slow}. Sending less does not help; batches of equal length may, or a look at "
            "what such a rank does."
        )
        return
    names = {
        "wire": "The wire",
        "encode": "Encoding",
        "decode": "Decoding",
        "other": "Waiting for lanes",
    }
    yield f"{names[kind]} limits it now: {share} of the waiting time. Try {tries[kind]}."


def _percent(s: Summary) -> str:
    share = s.waits.mean / s.seconds.mean if s.seconds.mean else 0.0
    return f"{100 * share:.0f} %"


def _waits(s: Summary) -> str:
    if not s.waits_for:
        return ""
    parts = ", ".join(f"{name} {as_milliseconds(x)}" for name, x in s.waits_for.items())
    return f"; on the rank that waits longest: {parts} ms"


def _plan(plan: Planned) -> str:
    strategies = dict.fromkeys(str(bucket["strategy"]) for bucket in plan.buckets)
    more = f" and {len(strategies) - 3} more" if len(strategies) > 3 else ""
    return f"{count(len(plan.buckets), 'bucket')} by {', '.join(list(strategies)[:3])}{more}"


def _loss(s: Summary) -> str:
    return f"{s.losses[-1][2]:.4g}" if s.losses else ""
