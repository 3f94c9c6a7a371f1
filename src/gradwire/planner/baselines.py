"""The published planners on a profile's costs: what to compare with, and what they cannot do.

    mergecomp   one strategy for all tensors, cut in two by bisection       (partition.bisection)
    bytecomp    every tensor by itself, Algorithm 1 in the model of its authors  (bytecomp.greedy)

Both look for their plan as published and are then timed by our timeline. MergeComp measures real
iterations; here the timeline says them. ByteComp's Algorithm 2 chooses devices, of which a plan of
whole strategies has none, so that it has nothing to decide.
Source: Wang, Wu and Ng 2021, "MergeComp"; Wang et al. 2023, "Hi-Speed DNN Training with Espresso".
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.planner import bytecomp as published
from gradwire.planner.grouping import Grouping, Problem
from gradwire.planner.ordered import ordered
from gradwire.planner.partition import bisection
from gradwire.planner.timeline import Job


def mergecomp(problem: Problem) -> tuple[Grouping, float]:
    """Two groups by the first option, or one, if that is shorter; dtypes cut further."""

    def cut(ends: Sequence[int]) -> Grouping:
        every = tuple(sorted({*ends, *problem.borders, len(problem.tensors)}))
        return Grouping(every, (0,) * len(every))

    one = cut(())
    if len(problem.tensors) < 2:
        return one, problem.seconds(one)
    split, _ = bisection(lambda cuts: problem.seconds(cut(cuts)), len(problem.tensors))
    best = min(cut((split,)), one, key=problem.seconds)
    return best, problem.seconds(best)


def bytecomp(problem: Problem) -> tuple[Grouping, float]:
    """An option for every tensor; the first of the problem's is without compression."""
    count = len(problem.tensors)
    tensors = [
        published.Tensor(
            tensor.ready_seconds, tensor.elements,
            tuple(
                published.Option(problem.job(i, i + 1, o).stages)
                for o in range(len(problem.options))
            ),
        )
        for i, tensor in enumerate(problem.tensors)
    ]  # fmt: skip

    def evaluate(jobs: Sequence[Job]) -> float:
        every = sorted([*jobs, *problem.fixed], key=lambda job: job.ready_seconds)
        return ordered(every, problem.executor)

    found = published.greedy(tensors, evaluate, problem.executor)
    grouping = Grouping(tuple(range(1, count + 1)), tuple(choice.option for choice in found))
    return grouping, problem.seconds(grouping)
