"""The best plan for a profiled job, what it would gain, and whether it is worth anything.

profile ─► plans of what sums on the wire (none, bf16): every parameter, tuned groups
        ─► plans of everything: matrices in groups, vectors dense in a bucket of their own
        ─► the shortest step, beside the tuned fp32 and bf16 ones, with its lower bound
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PlanError
from gradwire.plan import Plan, takes_vectors
from gradwire.planner.grouping import Grouping, Problem, solve
from gradwire.planner.profile import Profile, Ready
from gradwire.planner.stages import Bucketed, Stages
from gradwire.planner.timeline import Timeline, simulate
from gradwire.strategy import Strategy

FP32, BF16 = "none | allreduce", "bf16 | allreduce"
WORTH = 0.03
"""Exposed communication of tuned bf16, over its step, below which nothing else is looked at."""


@dataclass(frozen=True)
class Candidate:
    """A plan and the step it would make."""

    plan: Plan
    timeline: Timeline

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.timeline.iteration_seconds


@dataclass(frozen=True)
class Choice:
    """best: the plan to take. baselines: tuned fp32 and bf16, by strategy, as far as measured.

    others: the runners-up, one by main strategy, shortest first. lower_bound: no plan of these
    strategies makes a shorter step. is_enough: bf16 leaves so little exposed that nothing else was
    looked at.
    """

    best: Candidate
    baselines: Mapping[str, Candidate]
    others: tuple[Candidate, ...]
    lower_bound: float
    is_enough: bool = False

    @property
    def gap(self) -> float:
        """How much longer than the lower bound: nothing can win more."""
        return self.best.seconds / self.lower_bound - 1.0 if self.lower_bound else 0.0

    @property
    def finalists(self) -> tuple[Candidate, ...]:
        """What is worth trying on real steps: the best, its rivals and the baselines."""
        by_digest = {
            c.plan.digest(): c for c in (self.best, *self.others, *self.baselines.values())
        }
        return tuple(by_digest.values())


def choose(
    profile: Profile, strategies: Sequence[str] | None = None, *, lanes: Sequence[int] = (1, 2)
) -> Choice:
    """Plan for a profiled job.

    strategies: which may be used, of those that were measured; None: all of these. lanes: numbers
    of the conductor's lanes to try. Tables with sparse gradients travel as rows, whatever is
    chosen for the rest; their cost is not looked at. Deterministic.

    Raises:
        PlanError: nothing to plan, or a strategy that was not measured.
    """
    options = list(profile.strategies if strategies is None else strategies)
    for option in options:
        profile.cost(option)
        check_momentum(option)
    if not options or not any(not r.parameter.sparse for r in profile.ready):
        raise PlanError(
            f"a plan needs parameters with dense gradients, and strategies; got {len(options)} "
            f"strategies and {len(profile.ready)} parameters. Profile the model again."
        )
    measured = [text for text in (FP32, BF16) if text in profile.strategies]
    baselines = {text: _best(_candidates(profile, [text], lanes)) for text in measured}
    calm = baselines.get(BF16)
    if calm and calm.timeline.exposed_seconds < WORTH * calm.seconds:
        best = min(baselines.values(), key=lambda c: c.seconds)
        return Choice(best, baselines, (), _lower_bound(profile, options), is_enough=True)
    found = [*_candidates(profile, options, lanes), *baselines.values()]
    found += [c for o in options for c in _candidates(profile, [o], lanes)]
    found.sort(key=lambda c: c.seconds)
    return Choice(
        found[0], baselines, tuple(_rivals(found)), _lower_bound(profile, options)
    )  # fmt: skip


def check_momentum(text: str) -> None:
    """PlanError if a strategy keeps the momentum that others leave to the optimizer."""
    feedback = Strategy.parse(text).feedback
    if feedback is not None and feedback.keeps_momentum():
        raise PlanError(
            "a plan is chosen among strategies that leave momentum to the optimizer; "
            f"'{text}' keeps it itself. Use ef, or attach it by name."
        )


def _best(candidates: Iterator[Candidate]) -> Candidate:
    return min(candidates, key=lambda c: c.seconds)


def _rivals(found: Sequence[Candidate]) -> Iterator[Candidate]:
    """The shortest of each main strategy and number of lanes, but for the best of all."""
    seen = {_kind(found[0])}
    for candidate in found[1:]:
        if _kind(candidate) not in seen:
            seen.add(_kind(candidate))
            yield candidate


def _kind(candidate: Candidate) -> tuple[str, int]:
    return str(candidate.plan.main_strategy), candidate.plan.lanes


def _candidates(
    profile: Profile, options: Sequence[str], lanes: Sequence[int]
) -> Iterator[Candidate]:
    """Plans of these strategies: all parameters by what takes vectors too, and matrices by all."""
    whole = [o for o in options if takes_vectors(Strategy.parse(o))]
    for count in lanes:
        if whole:
            yield _planned(profile, whole, count, apart=False)
        if len(whole) < len(options) and FP32 in profile.strategies:
            yield _planned(profile, options, count, apart=True)


def _planned(profile: Profile, options: Sequence[str], lanes: int, *, apart: bool) -> Candidate:
    problem, members = _problem(profile, options, lanes, apart)
    grouping, _ = solve(problem) if problem.tensors else (Grouping((), ()), 0.0)
    return Candidate(
        _plan(profile, problem, members, grouping, apart), simulate(
            problem.jobs(grouping), problem.executor
        ),
    )  # fmt: skip


def _problem(
    profile: Profile, options: Sequence[str], lanes: int, apart: bool
) -> tuple[Problem, list[Ready]]:
    """apart: vectors have a bucket of their own, dense."""
    stages = Stages(profile)
    dense = [r for r in profile.ready if not r.parameter.sparse]
    members = [r for r in dense if not (apart and _is_vector(r.parameter))]
    vectors = [r for r in dense if apart and _is_vector(r.parameter)]
    fixed = [stages.job(_together(own), FP32, "vectors") for own in _by_dtype(vectors)]
    borders = frozenset(
        i
        for i in range(1, len(members))
        if members[i].parameter.dtype != members[i - 1].parameter.dtype
    )
    tensors = [Bucketed(r.parameter.elements, 1, r.seconds) for r in members]
    return Problem(stages, tensors, options, lanes, borders, fixed), members


def _lower_bound(profile: Profile, options: Sequence[str]) -> float:
    """Of all plans: vectors may go with anything."""
    problem, _ = _problem(profile, options, 1, apart=False)
    return problem.lower_bound()


def _plan(
    profile: Profile, problem: Problem, members: Sequence[Ready], grouping: Grouping, apart: bool
) -> Plan:
    """The buckets in the order in which they become ready."""
    made = [
        (_together(members[first:end]).ready_seconds, members[first:end], problem.options[option])
        for (first, end), option in zip(grouping.ranges, grouping.chosen)
    ]
    vectors = [
        r for r in profile.ready if apart and not r.parameter.sparse and _is_vector(r.parameter)
    ]
    made += [(_together(own).ready_seconds, own, FP32) for own in _by_dtype(vectors)]
    made.sort(key=lambda bucket: bucket[0])
    tables = [r.parameter for r in profile.ready if r.parameter.sparse]
    rows = [(Bucket((p,)), Strategy.parse("none | columns")) for p in tables]
    return Plan(
        (*(Bucket(tuple(r.parameter for r in own)) for _, own, _ in made), *(b for b, _ in rows)),
        (*(Strategy.parse(text) for _, _, text in made), *(s for _, s in rows)),
        problem.lanes,
    )


def _is_vector(parameter: Parameter) -> bool:
    return len(parameter.shape) <= 1


def _together(ready: Sequence[Ready]) -> Bucketed:
    return Bucketed(
        sum(r.parameter.elements for r in ready), len(ready), max(r.seconds for r in ready)
    )


def _by_dtype(ready: Sequence[Ready]) -> list[list[Ready]]:
    dtypes = sorted({r.parameter.dtype for r in ready})
    return [[r for r in ready if r.parameter.dtype == dtype] for dtype in dtypes]
