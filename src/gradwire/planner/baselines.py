"""The published planners on a profile's costs, to compare with.

    mergecomp   one strategy for all tensors, in groups whose ends are bisected  (partition.py)
    bytecomp    every tensor by itself, Algorithm 1 in the model of its authors  (bytecomp.greedy)
    hipress     every tensor by itself, by the option that alone takes least            (SeCoPa)
    byteps      every tensor by itself, compressed from 64 KiB on                (BytePS-Compress)

All search for their plan as published, and our timeline then times it. MergeComp measures real
iterations; here the timeline predicts them. ByteComp's Algorithm 2 chooses devices, of which a
plan has none on processors, so that it has nothing to decide. HiPress and BytePS also cut a tensor
into parts that follow one another; here a parameter is in one bucket, and only its collective cuts
it (`alltoall`: a part for each rank). BytePS sends first what the next forward needs.
Source: Wang, Wu and Ng 2021, "MergeComp"; Wang et al. 2023, "Hi-Speed DNN Training with Espresso";
Bai et al. 2021, "Gradient Compression Supercharged High-Performance Data Parallel DNN Training",
section 4.3; Zhong et al. 2021, "Compressed Communication for Distributed Training".
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.buckets import Parameter
from gradwire.planner import bytecomp as published
from gradwire.planner.grouping import Grouping, Problem
from gradwire.planner.ordered import ordered
from gradwire.planner.partition import heuristic
from gradwire.planner.timeline import Job

MIN_COMPRESS_BYTES = 1 << 16
"""BytePS's own default of BYTEPS_MIN_COMPRESS_BYTES."""


def mergecomp(problem: Problem, groups: int = 2) -> tuple[Grouping, float]:
    """Returns at most `groups` groups by the first option, cut further where dtypes change, and
    the step's seconds. Raises PlanError if there are no tensors, or groups is below 1.

    More than two take O(tensors^(groups - 2)) searches.
    """

    def cut(ends: Sequence[int]) -> Grouping:
        every = tuple(sorted({*ends, *problem.borders, len(problem.tensors)}))
        return Grouping(every, (0,) * len(every))

    count = len(problem.tensors)
    ends, seconds = heuristic(lambda cuts: problem.seconds(cut(cuts)), count, groups)
    return cut(ends), seconds


def hipress(problem: Problem) -> tuple[Grouping, float]:
    """SeCoPa: gives every tensor the option that alone takes least, whatever else is sent."""

    def least(i: int) -> int:
        taken = [
            sum(stage.seconds for stage in problem.job(i, i + 1, o).stages)
            for o in range(len(problem.options))
        ]
        return taken.index(min(taken))

    return _apart(problem, [least(i) for i in range(len(problem.tensors))])


def byteps(problem: Problem) -> tuple[Grouping, float]:
    """Gives tensors of 64 KiB or more the last option, smaller ones the first."""
    last, usual = len(problem.options) - 1, problem.stages.profile.dtype
    sizes = [Parameter("any", (t.elements,), t.dtype or usual).bytes for t in problem.tensors]
    return _apart(problem, [last if size >= MIN_COMPRESS_BYTES else 0 for size in sizes])


def _apart(problem: Problem, chosen: Sequence[int]) -> tuple[Grouping, float]:
    grouping = Grouping(tuple(range(1, len(chosen) + 1)), tuple(chosen))
    return grouping, problem.seconds(grouping)


def bytecomp(problem: Problem) -> tuple[Grouping, float]:
    """Gives every tensor an option; the problem's first option is without compression."""
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
    return _apart(problem, [choice.option for choice in found])
