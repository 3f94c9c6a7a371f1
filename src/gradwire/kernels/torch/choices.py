"""Choices of options in plain Python: slower, without random neighbourhoods, a weaker bound."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from gradwire.kernels.jobs import Best, Jobs, Lists, Machine
from gradwire.kernels.torch.schedule import Run


def search_options(jobs: Jobs, machine: Machine, start: Tensor, limit: float, seed: int) -> Best:
    """Sweeps over the jobs, from the last to the first, until nothing changes."""
    lists, choice = jobs.lists(), start.tolist()
    best, evaluations, changed = Run(lists, machine, choice).end, 1, True
    while changed:
        changed = False
        for job in reversed(range(len(jobs))):
            for option in range(lists.option[job + 1] - lists.option[job]):
                if evaluations >= limit:
                    break
                own = [*choice[:job], option, *choice[job + 1 :]]
                evaluations += 1
                if (seconds := Run(lists, machine, own).end) < best * (1.0 - 1e-12):
                    best, choice, changed = seconds, own, True
    bound = lower_bound(jobs, machine)
    return Best(torch.tensor(choice, dtype=torch.int32), best, bound, evaluations)


def exhaust_options(jobs: Jobs, machine: Machine, start: Tensor) -> Best:
    """Simulates every choice, one after the other."""
    lists = jobs.lists()
    options = jobs.counts
    every = product(*map(range, options))
    seconds, choice = min((Run(lists, machine, own).end, own) for own in every)
    return Best(torch.tensor(choice, dtype=torch.int32), seconds, seconds, math.prod(options))


def lower_bound(jobs: Jobs, machine: Machine) -> float:
    """Returns a weaker bound: the longer of backward and of each lane's jobs one after the other,
    each with its shortest option."""
    lists = jobs.lists()
    bound = machine.backward_seconds
    for lane in range(machine.lanes):
        end = 0.0
        for job in range(lane, len(jobs), machine.lanes):
            end = max(end, lists.ready[job]) + min(_totals(lists, job))
        bound = max(bound, end)
    return bound


def _totals(lists: Lists, job: int) -> list[float]:
    options = range(lists.option[job], lists.option[job + 1])
    return [sum(lists.seconds[lists.stage[o] : lists.stage[o + 1]]) for o in options]


def undominated(jobs: Jobs) -> list[int]:
    """Returns the numbers of all options: none is dropped."""
    return jobs.counts
