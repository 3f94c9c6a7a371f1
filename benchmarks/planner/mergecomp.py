"""MergeComp's own search as it is published: two groups, found by a bisection on real steps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from turns import Trainer, seconds_of

from gradwire.buckets import Bucket, Parameter
from gradwire.plan import Plan
from gradwire.planner.partition import bisection
from gradwire.planner.profile import Profile
from gradwire.strategy import Strategy

UNCOUNTED, COUNTED = 2, 8  # steps of a measurement


def measured(trainer: Trainer, profile: Profile, strategy: str) -> Plan:
    """Returns the faster of one group and the two that the bisection finds. Collective."""
    parameters = [ready.parameter for ready in profile.ready]

    def seconds(cuts: Sequence[int]) -> float:
        assert trainer.handle is not None
        trainer.handle.adopt(grouped(parameters, cuts, strategy))
        steps = [trainer.step() for _ in range(UNCOUNTED + COUNTED)]
        return median(seconds_of([steps[UNCOUNTED:]])[0])

    count = len(parameters)
    split, probes = bisection(seconds, count)
    is_whole = seconds([count]) <= probes[split]
    return grouped(parameters, [count] if is_whole else [split, count], strategy)


def grouped(parameters: Sequence[Parameter], cuts: Sequence[int], strategy: str) -> Plan:
    """Returns a plan with one strategy for all, in groups that end at these cuts, on one lane."""
    begins = [0, *cuts[:-1]]
    buckets = tuple(Bucket(tuple(parameters[a:b])) for a, b in zip(begins, cuts))
    return Plan(buckets, (Strategy.parse(strategy),) * len(buckets), 1)
