"""What deserves attention in a run, for `gradwire report`, `gradwire top` and the page."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from gradwire.report.run import Rank
from gradwire.report.summary import Summary

GROWS = 2.0
"""The residuals' norm in the last quarter of a run over that in its second: more means that
residuals pile up. (In the first quarter they grow to the size that the density gives them.)"""
OFF_PLAN = 1.15
"""A step is off its plan if it takes more than so many times as long as the plan said."""


def alarms(s: Summary) -> Iterator[str]:
    """Yields sentences on slow ranks, steps that were not finite, residuals that grow, steps
    longer than planned, errors, and what is missing."""
    for slow, times in s.slow_ranks.items():
        yield f"rank {slow} computes {times:.2f} times as long as the others, which wait for it"
    if s.skipped:
        yield f"{s.skipped} of {s.steps} steps had gradients that were not finite"
    if (growth := residual_growth(s.run.first, s.since)) > GROWS:
        yield (
            f"residuals grow: their norm is {growth:.1f} times that of earlier in the run. Lower "
            "the learning rate, or send more"
        )
    if (workers := _planned_for(s)) is not None:
        yield (
            f"the plan is of {workers} ranks, and {s.run.averaged_over} average here: plan again, "
            f"by gradwire plan --workers {s.run.averaged_over}, or from a profile of this job"
        )
    elif (planned := planned_seconds(s)) and s.seconds.mean > OFF_PLAN * planned:
        yield (
            f"a step takes {s.seconds.mean / planned:.2f} times as long as its plan said, "
            f"{1e3 * planned:.1f} ms: profile the job again"
        )
    yield from _events(s)
    yield from s.run.problems


def _events(s: Summary) -> Iterator[str]:
    """Yields the last event of each rank, and how many like it a rank has; one that several ranks
    report for the same step, once."""
    last: dict[tuple[int, str], list[Rank]] = {}
    for rank in s.run.ranks.values():
        for event in rank.events[-1:]:
            last.setdefault((event.step, event.what), []).append(rank)
    for (step, what), ranks in last.items():
        names = ", ".join(str(rank.rank) for rank in ranks[:4]) + (", …" if ranks[4:] else "")
        who = f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
        many = max(sum(event.what == what for event in rank.events) for rank in ranks)
        more = f" ({many} such events)" if many > 1 else ""
        yield f"{who}, step {step}: {what}{more}"


def residual_growth(rank: Rank, since: int = 0) -> float:
    """Returns the residuals' norm in the last quarter of the steps from `since` on, over that in
    the second (medians); 1 if not known."""
    norms = [
        row.residual_norm for row in rank.steps
        if row.residual_norm is not None and row.step >= since
    ]  # fmt: skip
    quarter = len(norms) // 4
    if quarter < 2:
        return 1.0
    before, last = median(norms[quarter : 2 * quarter]), median(norms[-quarter:])
    return last / before if before else 1.0


def _predicted(s: Summary, name: str) -> Any:
    """Returns a value of the prediction that the plan in force carries; None if it has none."""
    _, plan = s.run.in_force
    prediction = plan.document.get("prediction") if plan is not None else None
    return prediction.get(name) if isinstance(prediction, dict) else None


def _planned_for(s: Summary) -> int | None:
    """Returns the number of ranks that the plan in force was made for, if others use it."""
    workers, over = _predicted(s, "workers"), s.run.averaged_over
    return workers if isinstance(workers, int) and over not in (None, workers) else None


def planned_seconds(s: Summary) -> float | None:
    """Returns a step's seconds as the plan in force predicts them; None if it does not."""
    seconds = _predicted(s, "seconds")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return None
    return float(seconds) if 0 < seconds < 1e9 else None
