"""Plans of some strategies for a profiled job: matrices in groups, vectors dense beside them.

which strategies, how many lanes ──► Problem ──► an algorithm ──► Plan, and its timeline
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from gradwire.buckets import Bucket, Parameter
from gradwire.dynamics import PLAIN, Dynamics, has_vectors_apart
from gradwire.plan import Plan, in_turns, takes_vectors
from gradwire.planner.baselines import bytecomp, byteps, hipress, mergecomp
from gradwire.planner.budget import solve_within
from gradwire.planner.exactness import error_of, known_errors
from gradwire.planner.grouping import Grouping, Problem, solve
from gradwire.planner.profile import Profile, Ready, TableCost
from gradwire.planner.stages import Bucketed, Stages, way
from gradwire.planner.timeline import Job, Timeline, simulate
from gradwire.strategy import Strategy

FP32, BF16 = "none | allreduce", "bf16 | allreduce"

_ANY_ERROR = 1e100  # whose square is finite

Algorithm: TypeAlias = Literal["joint", "mergecomp", "bytecomp", "hipress", "byteps"]
Solver: TypeAlias = Callable[[Problem], tuple[Grouping, float]]
SOLVERS: Mapping[str, Solver] = {
    "joint": solve, "mergecomp": mergecomp, "bytecomp": bytecomp, "hipress": hipress,
    "byteps": byteps,
}  # fmt: skip
_ONE_BY_ONE = ("mergecomp", "byteps")  # these know of one way to compress
_BESIDE_WHOLE = ("bytecomp", "hipress", "byteps")  # these may leave a tensor as it is


@dataclass(frozen=True)
class Candidate:
    """A plan and the step it would make. error: of a step's average (`exactness`); None: the
    profile does not say it of all strategies."""

    plan: Plan
    timeline: Timeline
    error: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.timeline.iteration_seconds


@dataclass(frozen=True)
class Maker:
    """Makes candidates. error_budget: the largest error of a plan; None: any. groups: of
    mergecomp, at most."""

    profile: Profile
    lanes: Sequence[int] = (1, 2)
    algorithm: Algorithm = "joint"
    error_budget: float | None = None
    dynamics: Dynamics = PLAIN
    groups: int = 2

    @property
    def whole(self) -> str | None:
        """How matrices are sent whole; None, if that cannot be, or was not measured."""
        return self._whole(self.dynamics)

    @property
    def of_vectors(self) -> str | None:
        """How vectors are."""
        return self._whole(self.dynamics.of_vectors)

    def _whole(self, dynamics: Dynamics) -> str | None:
        text = dynamics.take(FP32)
        return text if text is not None and self.profile.measured(text) else None

    def plans(self, options: Sequence[str]) -> Iterator[Candidate]:
        """All parameters by what takes vectors too, and matrices by all of them."""
        whole = self.whole if self.algorithm in _BESIDE_WHOLE else None
        beside = [] if whole is None else [whole]
        for own in [[o] for o in options] if self.algorithm in _ONE_BY_ONE else [options]:
            yield from self._plans(list(dict.fromkeys((*beside, *own))))

    def _plans(self, options: Sequence[str]) -> Iterator[Candidate]:
        made = {option: Strategy.parse(option) for option in options}
        whole = [o for o, s in made.items() if takes_vectors(s) and not has_vectors_apart(s)]
        for count in self.lanes:
            if whole:
                yield from self._planned(whole, count, apart=False)
            if len(whole) < len(options) and self.of_vectors is not None:
                yield from self._planned(options, count, apart=True)

    def _planned(self, options: Sequence[str], lanes: int, *, apart: bool) -> Iterator[Candidate]:
        """Nothing, if no option is exact enough."""
        problem = self.problem(options, lanes, apart)
        grouping = Grouping((), ())
        if problem.tensors:
            if not problem.may_fit:
                return
            grouping, _ = self._solver(problem)
        plan = _plan(self.profile, problem, grouping, self.of_vectors if apart else None)
        yield Candidate(plan, timeline_of(self.profile, plan), error_of(self.profile, plan))

    @property
    def _solver(self) -> Solver:
        if self.algorithm == "mergecomp":
            return partial(mergecomp, groups=self.groups)
        limited = self.error_budget is not None and self.algorithm == "joint"
        return solve_within if limited else SOLVERS[self.algorithm]

    def fits(self, candidate: Candidate) -> bool:
        """Whether it is within the error budget."""
        if self.error_budget is None:
            return True
        return candidate.error is not None and candidate.error <= self.error_budget * (1 + 1e-9)

    def problem(self, options: Sequence[str], lanes: int, apart: bool) -> Problem:
        """apart: vectors have a bucket of their own, dense."""
        profile, stages = self.profile, Stages(self.profile)
        members, vectors = _divided(profile, apart)
        fixed = [stages.job(_together(own), FP32, "vectors") for own in vectors]
        tables = (stages.table_job(b, str(s)) for b, s in tables_of(profile))
        fixed += [job for job in tables if job is not None]
        has_second = any(way(option, True) != option for option in options)
        kinds = [(r.parameter.dtype, has_second and r.is_other) for r in members]
        borders = frozenset(i for i in range(1, len(kinds)) if kinds[i] != kinds[i - 1])
        tensors = [Bucketed.alone(r) for r in members]
        # As given, but what does not compress in front: there published planners look for it.
        dense_first = sorted(options, key=lambda option: option != self.whole)
        made = Problem(stages, tensors, dense_first, lanes, borders, fixed)
        if self.error_budget is not None:
            lost = [known_errors(profile, option) for option in made.options]
            made.errors = [[own[r.parameter.name] for r in members] for own in lost]
            made.most_error = min(self.error_budget, _ANY_ERROR) ** 2
        return made

    def lower_bound(self, options: Sequence[str]) -> float:
        """A bound on all plans: vectors may go with anything."""
        return self.problem(options, 1, apart=False).lower_bound()


def jobs_of(profile: Profile, plan: Plan) -> list[Job | None]:
    """The jobs of a plan's buckets; None of tables whose cost nobody measured. PlanError for
    another strategy that was not measured."""
    stages = Stages(profile)
    return [
        stages.table_job(bucket, str(strategy)) if bucket.has_rows
        else stages.job(stages.bucketed(bucket), str(strategy))
        for bucket, strategy in zip(plan.buckets, plan.strategies)
    ]  # fmt: skip


def timeline_of(profile: Profile, plan: Plan) -> Timeline:
    """The step that a plan makes; what `jobs_of` does not know takes no time. PlanError as of
    `jobs_of`."""
    jobs = [job for job in jobs_of(profile, plan) if job is not None]
    return simulate(jobs, Stages(profile).executor(plan.lanes))


def _plan(
    profile: Profile, problem: Problem, grouping: Grouping, of_vectors: str | None
) -> Plan:  # fmt: skip
    """The buckets in the order in which they become ready. of_vectors: of a bucket of their own,
    if they have one."""
    members, vectors = _divided(profile, of_vectors is not None)
    made = [
        (members[first:end], problem.options[option])
        for (first, end), option in zip(grouping.ranges, grouping.chosen)
    ]
    made += [(own, of_vectors or FP32) for own in vectors]
    own = [
        (Bucket(tuple(r.parameter for r in ready)),
         Strategy.parse(way(text, _together(ready).is_other)))
        for ready, text in made
    ]  # fmt: skip
    stages = problem.stages
    pairs = [*own, *tables_of(profile)]
    # As `Problem.jobs` has them: of those that are begun together groups first.
    pairs.sort(key=lambda pair: stages.woken(stages.bucketed(pair[0]).ready_seconds))
    pairs = in_turns(pairs)
    return Plan(tuple(b for b, _ in pairs), tuple(s for _, s in pairs), problem.lanes)


def tables_of(profile: Profile) -> list[tuple[Bucket, Strategy]]:
    """How tables of rows travel: together as they were measured, by what took least; each alone,
    by what is usual, where nobody measured it."""
    parameters = {r.parameter.name: r.parameter for r in profile.ready if r.parameter.sparse}
    best = dict[frozenset[str], TableCost]()
    for cost in profile.tables:
        key = frozenset(cost.parameters)
        if key <= parameters.keys() and (key not in best or cost.seconds < best[key].seconds):
            best[key] = cost
    found = list[tuple[Bucket, Strategy]]()
    for cost in best.values():
        own = [parameters.pop(name) for name in cost.parameters if name in parameters]
        if len(own) == len(cost.parameters):
            found.append((Bucket(tuple(own)), Strategy.parse(cost.strategy)))
    usual = Strategy.parse("none | columns")
    return [*found, *((Bucket((p,)), usual) for p in parameters.values())]


def is_vector(parameter: Parameter) -> bool:
    """Whether it has at most one dimension."""
    return len(parameter.shape) <= 1


def _together(ready: Sequence[Ready]) -> Bucketed:
    return Bucketed.joined([Bucketed.alone(own) for own in ready])


def _divided(profile: Profile, apart: bool) -> tuple[list[Ready], list[list[Ready]]]:
    """Dense parameters that are grouped, and those vectors that are not, by their dtype."""
    dense = [r for r in profile.ready if not r.parameter.sparse]
    members = [r for r in dense if not (apart and is_vector(r.parameter))]
    vectors = [r for r in dense if apart and is_vector(r.parameter)]
    dtypes = sorted({r.parameter.dtype for r in vectors})
    return members, [[r for r in vectors if r.parameter.dtype == dtype] for dtype in dtypes]
