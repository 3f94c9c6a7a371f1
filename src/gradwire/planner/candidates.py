"""Makes plans of some strategies for a profiled job: matrices in groups, vectors dense beside.

which strategies, how many lanes ──► Problem ──► an algorithm ──► Plan, and its timeline
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

from gradwire.buckets import Bucket, Parameter
from gradwire.dynamics import PLAIN, Dynamics, has_vectors_apart
from gradwire.plan import Plan, in_turns, takes_vectors
from gradwire.planner.baselines import bytecomp, byteps, hipress, mergecomp
from gradwire.planner.budget import solve_within
from gradwire.planner.exactness import error_of, known_errors
from gradwire.planner.grouping import Grouping, Problem, solve
from gradwire.planner.profile import MOST_ERROR, Profile, Ready, TableCost
from gradwire.planner.search import Alternatives
from gradwire.planner.stages import Bucketed, Stages, way
from gradwire.planner.timeline import Job, Timeline, simulate
from gradwire.strategy import Strategy

FP32, BF16 = "none | allreduce", "bf16 | allreduce"

Algorithm: TypeAlias = Literal["joint", "mergecomp", "bytecomp", "hipress", "byteps"]
Rows: TypeAlias = Sequence[tuple[Bucket, Strategy]]
"""Buckets of tables of rows, with their strategies."""
Solver: TypeAlias = Callable[[Problem], tuple[Grouping, float]]
SOLVERS: Mapping[str, Solver] = {
    "joint": solve, "mergecomp": mergecomp, "bytecomp": bytecomp, "hipress": hipress,
    "byteps": byteps,
}  # fmt: skip
_ONE_BY_ONE = ("mergecomp", "byteps")  # these plan with one compressor at a time
_BESIDE_WHOLE = ("bytecomp", "hipress", "byteps")  # these may leave a tensor uncompressed


@dataclass(frozen=True)
class Candidate:
    """A plan and its predicted step. error: of a step's average (`exactness`); None if the profile
    lacks the error of a strategy."""

    plan: Plan
    timeline: Timeline
    error: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.timeline.iteration_seconds

    @property
    def added(self) -> float:
        """The share of the step that communication adds: after backward, and by slowing it."""
        return self.timeline.added_seconds / self.seconds if self.seconds else 0.0

    def fits(self, error_budget: float | None) -> bool:
        """Whether the error is known to be within a budget; None: any error is."""
        if error_budget is None:
            return True
        return self.error is not None and self.error <= error_budget * (1 + 1e-9)


@dataclass(frozen=True)
class Maker:
    """Makes plans. error_budget: the largest error of a plan; None: any. groups: the most
    groups of mergecomp. tables: with which groups are searched; None: those of `tables_of`."""

    profile: Profile
    lanes: Sequence[int] = (1, 2)
    algorithm: Algorithm = "joint"
    error_budget: float | None = None
    dynamics: Dynamics = PLAIN
    groups: int = 2
    tables: Rows | None = None

    @property
    def whole(self) -> str | None:
        """The strategy that sends matrices whole; None if none does, or it was not measured."""
        return self._whole(self.dynamics)

    @property
    def of_vectors(self) -> str | None:
        """The strategy that sends vectors whole; None as of `whole`."""
        return self._whole(self.dynamics.of_vectors)

    @property
    def _sends_vectors(self) -> bool:
        """Whether there are no vectors, or they can be sent whole."""
        dense = (r.parameter for r in self.profile.ready if not r.parameter.sparse)
        return self.of_vectors is not None or not any(map(is_vector, dense))

    def _whole(self, dynamics: Dynamics) -> str | None:
        text = dynamics.take(FP32)
        return text if text is not None and self.profile.measured(text) else None

    def plans(self, options: Sequence[str]) -> Iterator[Candidate]:
        """Yields plans of all parameters by options that take vectors too, and plans of matrices
        by all options."""
        for own in [[o] for o in options] if self.algorithm in _ONE_BY_ONE else [options]:
            yield from self._plans(list(dict.fromkeys((*self._beside, *own))))

    def taken(self, options: Sequence[str]) -> list[str]:
        """Returns the options as plans use them: those that have, or can take, the dynamics, and
        were measured so."""
        found = (self.dynamics.take(option) for option in options)
        return [text for text in found if text is not None and self.profile.measured(text)]

    def used(self, options: Sequence[str]) -> list[str]:
        """Returns all strategies that plans of these options may use for dense gradients."""
        vectors = [] if self.of_vectors is None else [self.of_vectors]
        return list(dict.fromkeys((*self._beside, *self.taken(options), *vectors)))

    @property
    def _beside(self) -> list[str]:
        whole = self.whole if self.algorithm in _BESIDE_WHOLE else None
        return [] if whole is None else [whole]

    def _plans(self, options: Sequence[str]) -> Iterator[Candidate]:
        made = {option: Strategy.parse(option) for option in options}
        whole = [o for o, s in made.items() if takes_vectors(s) and not has_vectors_apart(s)]
        for count in self.lanes:
            if whole:
                yield from self._planned(whole, count, apart=False)
            if len(whole) < len(options) and self._sends_vectors:
                yield from self._planned(options, count, apart=True)

    def _planned(self, options: Sequence[str], lanes: int, *, apart: bool) -> Iterator[Candidate]:
        """Yields a plan, or nothing if no grouping is exact enough."""
        problem = self.problem(options, lanes, apart)
        grouping = Grouping((), ())
        if problem.tensors:
            if not problem.may_fit:
                return
            grouping, _ = self._solver(problem)
        vectors = self.of_vectors if apart else None
        plan = _plan(self.profile, problem, grouping, vectors, self.rows)
        yield with_best_rows(self.profile, candidate_of(self.profile, plan))

    @property
    def rows(self) -> Rows:
        """The tables with which groups are searched."""
        return tables_of(self.profile) if self.tables is None else self.tables

    @property
    def _solver(self) -> Solver:
        if self.algorithm == "mergecomp":
            return partial(mergecomp, groups=self.groups)
        limited = self.error_budget is not None and self.algorithm == "joint"
        return solve_within if limited else SOLVERS[self.algorithm]

    def problem(self, options: Sequence[str], lanes: int, apart: bool) -> Problem:
        """Returns what to group. apart: whether vectors have a bucket of their own, dense."""
        profile = self.profile
        stages = Stages(profile, self.dynamics.keeps_moments)
        members, vectors = _divided(profile, apart)
        whole = self.of_vectors or FP32
        fixed = [stages.job(_together(own), whole, "vectors") for own in vectors]
        jobs = (stages.table_job(bucket, str(strategy)) for bucket, strategy in self.rows)
        fixed += [job for job in jobs if job is not None]
        has_second = any(way(option, True) != option for option in options)
        kinds = [(r.parameter.dtype, has_second and r.is_other) for r in members]
        borders = frozenset(i for i in range(1, len(kinds)) if kinds[i] != kinds[i - 1])
        tensors = [Bucketed.alone(r) for r in members]
        # The uncompressed option goes first: published planners expect it there.
        dense_first = sorted(options, key=lambda option: option != self.whole)
        made = Problem(stages, tensors, dense_first, lanes, borders, fixed)
        if self.error_budget is not None:
            lost = [known_errors(profile, option) for option in made.options]
            made.errors = [[own[r.parameter.name] for r in members] for own in lost]
            made.most_error = min(self.error_budget, MOST_ERROR) ** 2
        return made

    def lower_bound(self, options: Sequence[str]) -> float:
        """Returns a lower bound over all plans with these buckets of tables. Vectors may use any
        option, and tables any strategy that was measured."""
        stages, beside = Stages(self.profile), list[Alternatives]()
        for bucket, strategy in self.rows:
            own = stages.table_job(bucket, str(strategy))
            if own is not None:
                jobs = (stages.table_job(bucket, text) for text in ways_of(self.profile, bucket))
                ways = tuple(job.stages for job in jobs if job is not None)
                beside.append(Alternatives(own.ready_seconds, ways))
        dense = replace(self, tables=()).problem(options, max(self.lanes), apart=False)
        return dense.lower_bound(beside)


def candidate_of(profile: Profile, plan: Plan) -> Candidate:
    """Returns the plan with its predictions. Raises PlanError as `jobs_of` does."""
    return Candidate(plan, timeline_of(profile, plan), error_of(profile, plan))


def jobs_of(profile: Profile, plan: Plan) -> list[Job | None]:
    """Returns the jobs of a plan's buckets; None for tables whose cost was not measured. Raises
    PlanError for any other strategy that was not measured."""
    stages = Stages(profile)
    return [
        stages.table_job(bucket, str(strategy)) if bucket.has_rows
        else stages.job(stages.bucketed(bucket), str(strategy))
        for bucket, strategy in zip(plan.buckets, plan.strategies)
    ]  # fmt: skip


def timeline_of(profile: Profile, plan: Plan) -> Timeline:
    """Predicts the step of a plan; tables without a measured cost take no time. Raises PlanError
    as `jobs_of` does."""
    jobs = [job for job in jobs_of(profile, plan) if job is not None]
    return simulate(jobs, stages_of(profile, plan).executor(plan.lanes))


def stages_of(profile: Profile, plan: Plan) -> Stages:
    """Returns the stages of a plan's buckets."""
    return Stages(profile, Dynamics.of(plan.main_strategy).keeps_moments)


def _plan(
    profile: Profile, problem: Problem, grouping: Grouping, of_vectors: str | None,
    tables: Rows = (),
) -> Plan:  # fmt: skip
    """Returns the plan, its buckets in the order in which they become ready. of_vectors: the
    strategy of vectors, if they have a bucket of their own."""
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
    pairs = [*own, *tables]
    # The order of `Problem.jobs`: of buckets that begin together, groups come first.
    pairs.sort(key=lambda pair: stages.woken(stages.bucketed(pair[0]).ready_seconds))
    pairs = in_turns(pairs)
    return Plan(tuple(b for b, _ in pairs), tuple(s for _, s in pairs), problem.lanes)


def rows_of(plan: Plan) -> Rows:
    """Returns a plan's tables of rows."""
    pairs = zip(plan.buckets, plan.strategies)
    return [(bucket, strategy) for bucket, strategy in pairs if bucket.has_rows]


def ways_of(profile: Profile, bucket: Bucket) -> list[str]:
    """Returns the strategies that were measured for tables in one bucket."""
    names = set(bucket.names)
    return [cost.strategy for cost in profile.tables if set(cost.parameters) == names]


def with_best_rows(profile: Profile, candidate: Candidate) -> Candidate:
    """Gives one bucket of tables after the other the strategy that makes the step shortest: what
    is fastest alone may not be beside what else is sent."""
    for number, bucket in enumerate(candidate.plan.buckets):
        for text in ways_of(profile, bucket) if bucket.has_rows else ():
            own = list(candidate.plan.strategies)
            own[number] = Strategy.parse(text)
            other = candidate_of(profile, replace(candidate.plan, strategies=tuple(own)))
            if other.seconds < candidate.seconds:
                candidate = other
    return candidate


def tables_of(profile: Profile) -> list[tuple[Bucket, Strategy]]:
    """Returns the buckets and strategies of tables of rows: together as they were measured, by the
    fastest strategy; each alone, by 'none | columns', if they were not measured."""
    parameters = {r.parameter.name: r.parameter for r in profile.ready if r.parameter.sparse}
    best = dict[frozenset[str], TableCost]()
    for cost in profile.tables:
        key = frozenset(cost.parameters)
        if key <= parameters.keys() and (key not in best or cost.seconds < best[key].seconds):
            best[key] = cost
    found = list[tuple[Bucket, Strategy]]()
    for cost in best.values():
        if all(name in parameters for name in cost.parameters):  # else one is in another bucket
            own = [parameters.pop(name) for name in dict.fromkeys(cost.parameters)]
            found.append((Bucket(tuple(own)), Strategy.parse(cost.strategy)))
    usual = Strategy.parse("none | columns")
    return [*found, *((Bucket((p,)), usual) for p in parameters.values())]


def is_vector(parameter: Parameter) -> bool:
    """Whether the parameter has at most one dimension."""
    return len(parameter.shape) <= 1


def _together(ready: Sequence[Ready]) -> Bucketed:
    return Bucketed.joined([Bucketed.alone(own) for own in ready])


def _divided(profile: Profile, apart: bool) -> tuple[list[Ready], list[list[Ready]]]:
    """Returns the dense parameters to group, and the vectors kept apart, by their dtype.

    Of each dtype in the order of backward: a group has one dtype, so where dtypes alternate, the
    order of backward alone would put every parameter into a group of its own.
    """
    dense = [r for r in profile.ready if not r.parameter.sparse]
    dense.sort(key=lambda r: r.parameter.dtype)
    members = [r for r in dense if not (apart and is_vector(r.parameter))]
    vectors = [r for r in dense if apart and is_vector(r.parameter)]
    dtypes = sorted({r.parameter.dtype for r in vectors})
    return members, [[r for r in vectors if r.parameter.dtype == dtype] for dtype in dtypes]
