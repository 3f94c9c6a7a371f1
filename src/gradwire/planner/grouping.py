"""Decides which gradients travel together, and each group's strategy, by the predicted step.

    seeds      for each strategy alone, the best of even cuts into groups
      │
    options    of every group, on the timeline with its lanes and shared processors (`search`)
      │
    groups     merged, split, shifted at their borders while the step becomes shorter
      │
    fewer      merged while the step is hardly longer: predictions are no more accurate

The lower bound holds for all groupings: every tensor alone, on a lane of its own, at the least
cost per element in any group, without a start-up. Of local work, no more is done at once than a
plan has lanes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise

from gradwire.planner.curves import Curve
from gradwire.planner.search import Alternatives, lower_bound, search
from gradwire.planner.stages import Bucketed, Stages, way
from gradwire.planner.timeline import Executor, Job, Resource, Stage, step_seconds

WORTH = 1e-4  # the share of a step below which a gain is no improvement
TIE = 0.005
"""The share of a step below which predictions tie, as they may be wrong by more. The cost of
messages beside each other is what they know least, so of ties the one with fewer groups wins."""
SLOWER = 1.25
"""Moves may take so many times as long as measured: a tie must still be one then."""
_EFFORT = 1500  # timelines to simulate, at most, when borders are moved
_MOST_GROUPS = 256  # even cuts to begin with: thousands would take minutes, while ranks wait


@dataclass(frozen=True)
class Grouping:
    """Groups of tensors: the end of each (exclusive), and the number of its option."""

    ends: tuple[int, ...]
    chosen: tuple[int, ...]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The index of each group's first tensor, and its end (exclusive)."""
        return list(zip((0, *self.ends), self.ends))


@dataclass
class Problem:
    """What to group. tensors: in the order of backward, those of each dtype together. borders:
    positions where a group must end, as dtypes change there. options: texts of strategies. fixed:
    other jobs of the step. errors: for each option the error that each tensor adds, if
    `most_error` limits the sum."""

    stages: Stages
    tensors: Sequence[Bucketed]
    options: Sequence[str]
    lanes: int = 1
    borders: frozenset[int] = frozenset()
    fixed: Sequence[Job] = ()
    errors: Sequence[Sequence[float]] = ()
    most_error: float = math.inf
    _jobs: dict[tuple[int, int, int], Job] = field(default_factory=dict)

    @cached_property
    def slower(self) -> Problem:
        """The same problem with moves that take `SLOWER` times as long."""
        profile = self.stages.profile.slowed(SLOWER)
        fixed = [job._replace(stages=tuple(map(_slowed, job.stages))) for job in self.fixed]
        return replace(self, stages=Stages(profile), fixed=fixed, _jobs={})

    @cached_property
    def executor(self) -> Executor:
        """What runs the stages of a step."""
        return self.stages.executor(self.lanes)

    def bucket(self, first: int, end: int) -> Bucketed:
        """Returns tensors first … end - 1 as one."""
        return Bucketed.joined(self.tensors[first:end])

    def job(self, first: int, end: int, option: int) -> Job:
        """Returns the job of the group first … end - 1 by an option."""
        key = first, end, option
        if key not in self._jobs:
            self._jobs[key] = self.stages.job(self.bucket(first, end), self.options[option])
        return self._jobs[key]

    def jobs(self, grouping: Grouping) -> list[Job]:
        """Returns the jobs of a step, in the order of issue."""
        own = [self.job(*r, o) for r, o in zip(grouping.ranges, grouping.chosen)]
        return sorted([*own, *self.fixed], key=lambda job: job.ready_seconds)

    def seconds(self, grouping: Grouping) -> float:
        """Returns the seconds of a step."""
        return step_seconds(self.jobs(grouping), self.executor)

    def error(self, grouping: Grouping) -> float:
        """Returns the sum of all groups' errors by their options."""
        if not self.errors:
            return 0.0
        pairs = zip(grouping.ranges, grouping.chosen)
        return sum(self._upto[o][end] - self._upto[o][first] for (first, end), o in pairs)

    @cached_property
    def _upto(self) -> list[list[float]]:
        return [[0.0, *accumulate(own)] for own in self.errors]

    def fits(self, grouping: Grouping) -> bool:
        """Whether its error is within the limit."""
        return self.error(grouping) <= self.most_error * (1 + 1e-9)

    @property
    def exactest(self) -> Grouping:
        """Each tensor by its most exact option; neighbours with the same option are together."""
        count, every = len(self.tensors), range(len(self.options))
        best = [min(every, key=lambda o: self.errors[o][i]) for i in range(count)]
        ends = [
            i for i in range(1, count + 1)
            if i == count or best[i] != best[i - 1] or i in self.borders
        ]  # fmt: skip
        return Grouping(tuple(ends), tuple(best[end - 1] for end in ends))

    @property
    def may_fit(self) -> bool:
        """Whether any grouping is within the limit."""
        return not self.errors or self.fits(self.exactest)

    @property
    def fitting(self) -> list[int]:
        """Options that stay within the limit if all tensors use them."""
        end = len(self.tensors)
        return [o for o in range(len(self.options)) if self.fits(Grouping((end,), (o,)))]

    def lower_bound(self, beside: Sequence[Alternatives] = ()) -> float:
        """Returns seconds below which no grouping and no choice of options makes the step, on so
        many lanes or fewer. beside: further jobs of the step."""
        each = {
            kind: [_least_stages(self, way(option, kind[0]), kind[1]) for option in self.options]
            for kind in {(t.is_other, t.dtype) for t in self.tensors}
        }
        jobs = [
            Alternatives(
                t.ready_seconds,
                tuple(_times(t.elements, stages) for stages in each[t.is_other, t.dtype]),
            )
            for t in self.tensors
        ]
        fixed = [Alternatives(job.ready_seconds, (job.stages,)) for job in self.fixed]
        every = sorted([*jobs, *fixed, *beside], key=lambda job: job.ready_seconds)
        return lower_bound(every, replace(self.executor, workers=self.lanes), by_turns=False)

    @property
    def most(self) -> int:
        """The elements of the largest possible group."""
        return max(1, sum(t.elements for t in self.tensors))


def _slowed(stage: Stage) -> Stage:
    return stage._replace(seconds=SLOWER * stage.seconds) if stage.kind == "wire" else stage


def solve(problem: Problem) -> tuple[Grouping, float]:
    """Finds a grouping with its options; returns it, and the seconds of its step."""
    found = [_with_best_options(problem, seed) for seed in _seeds(problem)]
    best = min(found, key=problem.seconds)
    grouping = fewer(problem, improve(problem, best))
    return grouping, problem.seconds(grouping)


# -- seeds -------------------------------------------------------------------------------------


def _seeds(problem: Problem) -> Iterator[Grouping]:
    """Yields, for each option alone, the best of even cuts; of those as good the one with the
    fewest groups, as it has the fewest borders to move."""
    cuts = list(dict.fromkeys(_even_cuts(problem)))
    for option in range(len(problem.options)):
        own = [Grouping(ends, (option,) * len(ends)) for ends in cuts]
        seconds = [problem.seconds(grouping) for grouping in own]
        enough = min(seconds) * (1 + WORTH)
        near = [g for g, took in zip(own, seconds) if took <= enough]
        yield min(near, key=lambda grouping: len(grouping.ends))


def _even_cuts(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yields ends of 1, 2, 3, 4, 6, 8, 11, … groups with equally many elements, or tensors."""
    n = len(problem.tensors)
    upto, most = list(accumulate(t.elements for t in problem.tensors)), min(n, _MOST_GROUPS)
    for i in range(2 * most.bit_length() + 1):
        count = min(round(2 ** (i / 2)), most)
        parts = range(1, count)
        by_elements = [bisect_left(upto, upto[-1] * k / count) + 1 for k in parts]
        for ends in (by_elements, [n * k // count for k in parts]):
            yield tuple(sorted({*(end for end in ends if end < n), *problem.borders, n}))


def _with_best_options(problem: Problem, grouping: Grouping) -> Grouping:
    """Returns a grouping with the same groups, whose step is not longer."""
    jobs = [
        (
            Alternatives(
                problem.job(*r, chosen).ready_seconds,
                tuple(problem.job(*r, o).stages for o in range(len(problem.options))),
            ),
            chosen,
        )
        for r, chosen in zip(grouping.ranges, grouping.chosen)
    ]
    fixed = [(Alternatives(job.ready_seconds, (job.stages,)), 0) for job in problem.fixed]
    every = [*jobs, *fixed]
    order = sorted(range(len(every)), key=lambda i: every[i][0].ready_seconds)
    start = [every[i][1] for i in order]
    found = search([every[i][0] for i in order], problem.executor, limit=2000, start=start)
    chosen_of = dict(zip(order, found.choice))
    return Grouping(grouping.ends, tuple(chosen_of[i] for i in range(len(grouping.ends))))


# -- borders -----------------------------------------------------------------------------------


def improve(problem: Problem, grouping: Grouping) -> Grouping:
    """Takes first improvements that fit, group after group, until a whole round brings none."""
    best, seconds, left = grouping, problem.seconds(grouping), _EFFORT
    improved = True
    while improved and left > 0:
        improved = False
        for number in range(len(best.ends)):
            for other in _neighbours(problem, best, number) if left > 0 else ():
                left -= 1
                took = problem.seconds(other)
                if took < seconds * (1 - WORTH) and problem.fits(other):
                    best, seconds, improved = other, took, True
                    break
        if improved:
            other = _with_best_options(problem, best)
            took = problem.seconds(other)
            if took < seconds and problem.fits(other):
                best, seconds = other, took
    return best


def _neighbours(problem: Problem, at: Grouping, number: int) -> Iterator[Grouping]:
    """Yields groupings with group `number` merged with the next, its end moved, or cut in two."""
    if number >= len(at.ends):
        return
    first, end = at.ranges[number]
    ends, chosen = list(at.ends), list(at.chosen)
    if number + 1 < len(ends) and end not in problem.borders:
        for kept in dict.fromkeys(chosen[number : number + 2]):
            yield Grouping(
                tuple(ends[:number] + ends[number + 1 :]),
                (*chosen[:number], kept, *chosen[number + 2 :]),
            )
        for step in (-1, 1, -4, 4):
            if first < end + step < at.ends[number + 1]:
                yield Grouping((*ends[:number], end + step, *ends[number + 1 :]), at.chosen)
    for cut in sorted({first + 1, (first + end) // 2, end - 1}):
        if first < cut < end:
            for other in range(len(problem.options)):
                yield Grouping(
                    (*ends[:number], cut, *ends[number:]),
                    (*chosen[:number], other, *chosen[number:]),
                )


def fewer(problem: Problem, grouping: Grouping) -> Grouping:
    """Merges neighbours with the same option, the smallest first, while the step is at most `TIE`
    longer than it was, and would be if moves were slower, too."""
    limits = [(own, own.seconds(grouping) * (1 + TIE)) for own in (problem, problem.slower)]
    kept = set(problem.borders)
    while pairs := list(_alike(problem, grouping, kept)):
        _, number = min(pairs)
        ends, chosen = list(grouping.ends), list(grouping.chosen)
        end = ends.pop(number)
        del chosen[number]
        merged = Grouping(tuple(ends), tuple(chosen))
        if all(own.seconds(merged) <= limit for own, limit in limits):
            grouping = merged
        else:
            kept.add(end)
    return grouping


def _alike(
    problem: Problem, grouping: Grouping, kept: Collection[int]
) -> Iterator[tuple[int, int]]:
    """Yields the elements of two neighbours with the same option, and the first one's number,
    except where the border between them is kept."""
    ranges, chosen = grouping.ranges, grouping.chosen
    for number, ((first, end), (_, last)) in enumerate(pairwise(ranges)):
        if chosen[number] == chosen[number + 1] and end not in kept:
            yield sum(t.elements for t in problem.tensors[first:last]), number


# -- bound -------------------------------------------------------------------------------------


def _least_stages(problem: Problem, option: str, dtype: str) -> tuple[Stage, ...]:
    """Returns encode, moves and decode of one element of a dtype, at the least seconds that an
    element takes in a group of any size."""
    cost, most = problem.stages.profile.cost(option), problem.most
    rate = cost.wire.curve.rows[-1][2]  # link_seconds is no less than either argument
    wire = max(
        _least(cost.wire.curve, most, cost.latency_seconds),
        min(_least(cost.wire.curve, most), rate),
    )
    return (
        Stage(Resource.WORKERS, _least(cost.encode.curve, most), "encode"),
        Stage(problem.stages.link, wire * problem.stages.ratio(option, dtype), "wire"),
        Stage(Resource.WORKERS, _least(cost.decode.curve, most), "decode"),
    )


def _times(elements: int, stages: Sequence[Stage]) -> tuple[Stage, ...]:
    return tuple(stage._replace(seconds=elements * stage.seconds) for stage in stages)


def _least(curve: Curve, most: int, less: float = 0.0) -> float:
    """Returns the least seconds per element of a curve, which are at a bend or at the end."""
    sizes = [x for x, _ in curve.points if 0 < x < most]
    return min(max(0.0, curve(x) - less) / x for x in (*sizes, float(most)))
