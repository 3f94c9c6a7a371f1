"""Finds the best plan for a profiled job, and what it would gain, if anything.

profile ─► plans of strategies that sum on the wire (none, bf16): every parameter, tuned groups
        ─► plans of all strategies: matrices in groups, vectors dense in a bucket of their own
        ─► the shortest step, beside the tuned fp32 and bf16 ones, with its lower bound
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gradwire.dynamics import Dynamics, all_dynamics
from gradwire.errors import PlanError
from gradwire.plan import Plan
from gradwire.planner.candidates import (
    BF16,
    FP32,
    SOLVERS,
    Algorithm,
    Candidate,
    Maker,
    candidate_of,
    rows_of,
    timeline_of,
)
from gradwire.planner.exactness import known_errors
from gradwire.planner.grouping import SLOWER
from gradwire.planner.profile import Profile
from gradwire.planner.stages import bytes_of, way
from gradwire.planner.timeline import ratio
from gradwire.progress import Progress, each, part, silent
from gradwire.strategy import Strategy

WORTH = 0.03
"""If communication adds less than this to the step of a tuned baseline (bf16 or fp32) that may be
used, no other strategy is considered."""
LEAST_GAIN = 0.01
"""The share of a step that a plan must gain: less is not worth its complications."""

_MANY = 1 << 20  # elements

NEAR = 1.1
"""Plans that take at most so many times as long as the best are told apart by their number of
buckets, too: predictions are not more exact than that."""


@dataclass(frozen=True)
class Choice:
    """The result of planning. best: the plan to use. baselines: tuned fp32 and bf16, by the texts
    of these strategies, if measured; with the best's dynamics, so that one may follow the other.

    others: the runners-up, one for each main strategy and number of lanes, and near the best for
    each number of buckets, shortest first.
    lower_bound: no plan of these strategies on so many lanes makes a shorter step, whatever its
    error. is_enough: communication adds so little to a baseline that nothing else was considered.
    error_budget, algorithm: as requested. strategies: those that could be chosen.
    """

    best: Candidate
    baselines: Mapping[str, Candidate]
    others: tuple[Candidate, ...]
    lower_bound: float
    is_enough: bool = False
    error_budget: float | None = None
    algorithm: str = "joint"
    strategies: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """How much longer the step is than the lower bound: no plan gains more."""
        return ratio(self.best.seconds, self.lower_bound) - 1.0

    @property
    def usable(self) -> dict[str, Candidate]:
        """The baselines that may be used: allowed, and within the budget."""
        return {
            text: own for text, own in self.baselines.items()
            if text in self.strategies and own.fits(self.error_budget)
        }  # fmt: skip

    @property
    def finalists(self) -> tuple[Candidate, ...]:
        """The plans worth trying on real steps: the best, its rivals and the baselines."""
        by_digest = {
            c.plan.digest(): c for c in (self.best, *self.others, *self.baselines.values())
        }
        return tuple(by_digest.values())


def choose(
    profile: Profile, strategies: Sequence[str] | None = None, *, lanes: Sequence[int] = (1, 2),
    error_budget: float | None = None, algorithm: Algorithm = "joint",
    dynamics: Dynamics | None = None, groups: int = 2, progress: Progress = silent,
) -> Choice:  # fmt: skip
    """Plans for a profiled job. Deterministic.

    strategies: those that may be used, among the measured ones; None: all except those measured
    only for parameters of the optimizer's other rule (as `adam` beside `muon`). Vectors may always
    travel as fp32, and the baselines are always compared. lanes: numbers of the conductor's lanes
    to try. error_budget: the largest relative error of a step's average, by the errors in the
    profile (`exactness`). algorithm: "joint", ours, or the published "mergecomp" (groups: at
    most), "bytecomp", "hipress" and "byteps", whose plan is then returned as it is (`baselines`).
    Tables with sparse gradients travel as rows, by strategies that were measured for them.
    dynamics: of the plan; None: those of any of the strategies.

    Raises:
        PlanError: nothing to plan, a strategy that was not measured, a budget that no plan keeps,
            or that the algorithm does not support.
    """
    options = list(_leading(profile) if strategies is None else strategies)
    _check(profile, options, lanes, error_budget, algorithm)
    kinds = [dynamics] if dynamics else list(all_dynamics(map(Strategy.parse, options)))
    makers = [Maker(profile, lanes, algorithm, error_budget, kind, groups) for kind in kinds]
    progress("the lower bound")
    used = list(dict.fromkeys(text for maker in makers for text in _used(maker, options)))
    bound = replace(makers[0], dynamics=_least(kinds)).lower_bound(used) if used else 0.0
    made = (
        _within(maker, options, part(progress, "plans", number, len(kinds)))
        for number, maker in enumerate(makers)
    )
    choices = [choice for choice in made if choice is not None]
    if not choices:
        raise _too_tight(profile, options, error_budget)
    best = min(choices, key=lambda choice: choice.best.seconds)
    facts = error_budget, algorithm, tuple(options)
    return Choice(best.best, best.baselines, best.others, bound, best.is_enough, *facts)


def _leading(profile: Profile) -> list[str]:
    """Returns the strategies, except those with a feedback that others use for parameters of the
    optimizer's other rule, and those that round gradients without saving bytes."""
    beside = {profile.measured(way(own, is_other=True)) for own in profile.strategies
              if way(own, is_other=True) != own}  # fmt: skip
    remembers = [text for text in beside if text and Strategy.parse(text).feedback]
    return [
        text for text in profile.strategies
        if text not in remembers and _saves(text, profile.dtype)
    ]  # fmt: skip


def _saves(text: str, dtype: str) -> bool:
    """Whether a strategy sends fewer bytes of gradients of a dtype than they have, or just these:
    bf16 saves nothing of fp16, and rounds it."""
    compressor, none = Strategy.parse(text).compressor, Strategy.parse(FP32).compressor
    own, whole = (one.claims(_MANY, dtype) for one in (compressor, none))
    return compressor == none or not own.fixed or bytes_of(own) < bytes_of(whole)


def _used(maker: Maker, options: Sequence[str]) -> list[str]:
    """Returns all strategies of what `_within` returns, but for tables."""
    plain = [text for text in (FP32, BF16) if text in options and maker.whole is None]
    return [*maker.used(options), *plain]


class _Found(NamedTuple):
    """The first fields of a `Choice`."""

    best: Candidate
    baselines: Mapping[str, Candidate]
    others: tuple[Candidate, ...]
    is_enough: bool = False


def _within(maker: Maker, options: Sequence[str], progress: Progress = silent) -> _Found | None:
    """Returns the best plan of the options that have, or can take, the maker's dynamics; None if
    there is no such plan within the budget."""
    baselines = _baselines(maker)
    dense = [c for text, c in baselines.items() if text in options and c.fits(maker.error_budget)]
    is_enough = any(c.added < WORTH for c in dense)
    if maker.algorithm == "joint" and is_enough:
        return _Found(_steady(maker.profile, dense), baselines, (), is_enough)
    own = maker.taken(options)
    asked = [own]
    if maker.algorithm == "joint":
        asked += [[option] for option in own]
        whole = [o for o in own if Strategy.parse(o).collective.tasks is None]
        if 0 < len(whole) < len(own):  # with more options, a search may find less
            asked.append(whole)
    first, *others = [list(maker.plans(texts)) for texts in each(progress, "", asked, _told)]
    beside = dense if maker.algorithm == "joint" else ()
    found = [*first, *beside, *(c for plans in others for c in plans)]
    if not found:
        return None
    rows = rows_of(_shortest(found).plan)
    if dict(rows) != dict(maker.rows):  # groups were searched beside other strategies of tables
        found += replace(maker, tables=rows).plans(own)
    found.sort(key=lambda c: c.seconds)
    best = found[0] if maker.algorithm != "joint" else _steady(maker.profile, [*dense, *found])
    return _Found(best, baselines, _rivals(best, found))


def _least(kinds: Sequence[Dynamics]) -> Dynamics:
    """Returns the dynamics with the least time around a step: of all plans a bound is one of plans
    that spare the optimizer its moments, too."""
    return max(kinds, key=lambda kind: kind.keeps_moments)


def _told(options: Sequence[str]) -> str:
    return options[0] if len(options) == 1 else f"any of {len(options)} strategies"


def judge(
    profile: Profile, plan: Plan, *, lanes: Sequence[int] = (1, 2),
    error_budget: float | None = None,
) -> Choice:  # fmt: skip
    """Returns a given plan as if it had been chosen. Raises PlanError for a plan of another model,
    or with strategies that were not measured."""
    profile.check([p for bucket in plan.buckets for p in bucket.parameters])
    _check_dtypes(profile)
    best, options = candidate_of(profile, plan), list(profile.strategies)
    baselines = _baselines(Maker(profile, lanes, dynamics=Dynamics.of(plan.main_strategy)))
    kinds = list(all_dynamics(map(Strategy.parse, options)))
    maker = Maker(profile, (*lanes, plan.lanes), dynamics=_least(kinds), tables=rows_of(plan))
    bound = maker.lower_bound(options)
    return Choice(
        best, baselines, (), bound, False, error_budget, "given", tuple(options)
    )  # fmt: skip


def _check(
    profile: Profile, options: Sequence[str], lanes: Sequence[int], budget: float | None,
    algorithm: str,
) -> None:  # fmt: skip
    for option in options:
        profile.cost(option)
        if any(r.is_other for r in profile.ready):
            profile.cost(way(option, is_other=True))
    if not options or not any(not r.parameter.sparse for r in profile.ready) or not lanes:
        raise PlanError(
            "a plan needs a parameter with dense gradients, a strategy and a number of lanes; got "
            f"{len(options)} strategies, {len(profile.ready)} parameters, dense or not, and "
            f"{len(lanes)} numbers of lanes. Pass what is missing, or profile the model again."
        )
    _check_dtypes(profile)
    if algorithm not in SOLVERS:
        raise PlanError(
            f"the algorithm must be one of {', '.join(SOLVERS)}; got {algorithm!r}. Use joint."
        )
    if budget is None:
        return
    if not (math.isfinite(budget) and budget >= 0) or algorithm != "joint":
        raise PlanError(
            "an error budget must be a relative error of 0 or more, and needs the algorithm "
            f"joint; got {budget} for {algorithm}. Use for example 0.1 with joint."
        )
    for option in options:
        known_errors(profile, option)


def _check_dtypes(profile: Profile) -> None:
    """Raises PlanError for float64 gradients: all strategies but two refuse them, bf16 too."""
    double = next((p for p in profile.parameters if p.dtype == "float64"), None)
    if double is not None:
        raise PlanError(
            "plans are compared for gradients of at most 32 bits, as float64 travels only by "
            f"'{FP32}' and 'none | allgather'; '{double.name}' is float64. Attach '{FP32}', or "
            "convert it to float32 and profile again."
        )


def _too_tight(profile: Profile, options: Sequence[str], budget: float | None) -> PlanError:
    if budget is None:
        return PlanError(
            f"the plan needs '{FP32}' for vectors, as the allowed strategies "
            f"({', '.join(map(repr, options))}) take only matrices; it was not measured. Profile "
            "again with it."
        )
    lost = [known_errors(profile, option) for option in options]
    least = sum(min(own[name] for own in lost) for name in lost[0]) ** 0.5
    alone = {sum(own.values()) ** 0.5: option for own, option in zip(lost[::-1], options[::-1])}
    smallest = min(alone)
    return PlanError(
        "no plan keeps the error within the budget; the smallest error of an allowed strategy is "
        f"that of '{alone[smallest]}', {smallest:.3g}, the best choice for each tensor makes "
        f"{least:.3g}, and the budget is {budget}. Raise it, or allow '{FP32}'."
    )


def _baselines(maker: Maker) -> dict[str, Candidate]:
    """Returns the tuned fp32 and bf16 plans, whatever their error and the maker's algorithm; with
    the maker's dynamics, if gradients can be sent whole with these."""
    profile = maker.profile
    freely = Maker(profile, maker.lanes, dynamics=maker.dynamics)
    if freely.whole is None:
        freely = Maker(profile, maker.lanes)
    named = {text: freely.dynamics.take(text)
             for text in (FP32, BF16) if _saves(text, profile.dtype)}  # fmt: skip
    measured = {name: text for name, text in named.items() if text and profile.measured(text)}
    plans = {name: list(freely.plans([text])) for name, text in measured.items()}
    return {name: _shortest(own) for name, own in plans.items() if own}


def _shortest(candidates: Iterable[Candidate]) -> Candidate:
    return min(candidates, key=lambda c: c.seconds)


def _steady(profile: Profile, candidates: Sequence[Candidate]) -> Candidate:
    """Returns the first candidate that is hardly longer than the shortest, both as measured and if
    moves were slower: steps that fill the link take longer than they are predicted to."""
    most = (1 + LEAST_GAIN) * _shortest(candidates).seconds
    near = [c for c in candidates if c.seconds <= most]
    slower = profile.slowed(SLOWER)
    later = [timeline_of(slower, c.plan).iteration_seconds for c in near]
    limit = (1 + LEAST_GAIN) * min(later)
    return next(c for c, seconds in zip(near, later) if seconds <= limit)


def _rivals(best: Candidate, found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Returns the shortest plan of each main strategy and number of lanes, except the best; and of
    plans that are nearly as short as the best, that of each number of buckets, too."""
    seen, rivals = set[tuple[object, ...]](), list[Candidate]()
    for own in (best, *found):
        # One bucket travels on one lane, however many there are.
        kind = str(own.plan.main_strategy), min(own.plan.lanes, len(own.plan.buckets))
        finer = *kind, len(own.plan.buckets)
        if kind not in seen or (own.seconds <= NEAR * best.seconds and finer not in seen):
            rivals.append(own)
        seen |= {kind, finer}
    return tuple(rivals[1:])
