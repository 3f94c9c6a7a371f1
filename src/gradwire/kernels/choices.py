"""Which option each job takes so that the step is short: a search, a bound, and all of them tried.

The extension searches; without it the twin takes the best of some whole choices and sweeps over
the jobs, slower and without random neighbourhoods. What each finds is what it says it is.
"""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.machine import Machine
from gradwire.kernels.native import core_for
from gradwire.kernels.schedule import Jobs, check_choice, check_machine
from gradwire.kernels.schedule_twin import Lists, Run
from gradwire.kernels.tensors import pointer, real

ROUNDS = 300
"""Of the bound's weights; more bring little."""
MOST_JOBS, MOST_CHOICES = 256, 10**12
"""Of which all choices are tried."""


class Best(NamedTuple):
    """choice: (jobs,) int32. bound: no choice is over sooner. evaluations: of a whole step."""

    choice: Tensor
    seconds: float
    bound: float
    evaluations: float


def search_options(
    jobs: Jobs, machine: Machine, start: Tensor, *, limit: float, seed: int = 0
) -> Best:
    """A choice that makes `simulate_step` short, not slower than `start`, (jobs,) int32.

    limit: of evaluations; one that goes on from the middle counts in part. The same arguments give
    the same choice. Raises KernelError.
    """
    check_machine(jobs, machine)
    check_choice(jobs, start)
    if not 0 < (limit := real(limit)) < math.inf:
        raise KernelError(
            f"a search may evaluate 1 step or more, not {limit}; give a limit, as 1000.0"
        )
    if not isinstance(seed, int):
        raise KernelError(f"seed is a whole number, not {seed!r}; give 0")
    found = core_for(jobs.ready)
    if found is None:
        return search_options_twin(jobs, machine, start, limit=limit)
    choice = start.clone()
    seconds, bound, evaluations = found[0].search_options(
        jobs.address, machine.numbers, limit, seed % 2**64, ROUNDS, pointer(choice)
    )
    return Best(choice, seconds, bound, evaluations)


def search_options_twin(jobs: Jobs, machine: Machine, start: Tensor, *, limit: float) -> Best:
    """Sweeps from `start`, job by job from the last, until nothing changes."""
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
    bound = lower_bound_twin(jobs, machine)
    return Best(torch.tensor(choice, dtype=torch.int32), best, bound, evaluations)


def exhaust_options(jobs: Jobs, machine: Machine, start: Tensor) -> Best:
    """The best of all choices; time grows as their number. Raises KernelError, also for more than
    MOST_JOBS jobs, or MOST_CHOICES choices.

    evaluations: how many jobs were begun, over the number of jobs.
    """
    check_machine(jobs, machine)
    check_choice(jobs, start)
    choices = math.prod(jobs.option.diff().tolist()) if len(jobs) <= MOST_JOBS else math.inf
    if choices > MOST_CHOICES:
        raise KernelError(
            f"all choices are tried of {MOST_JOBS} jobs and {MOST_CHOICES:g} choices at most, not "
            f"of {len(jobs)} jobs with {choices:g}; search instead"
        )
    found = core_for(jobs.ready)
    if found is None:
        return exhaust_options_twin(jobs, machine)
    choice = start.clone()
    seconds, begun = found[0].exhaust_options(jobs.address, machine.numbers, pointer(choice))
    return Best(choice, seconds, seconds, begun / max(1, len(jobs)))


def exhaust_options_twin(jobs: Jobs, machine: Machine) -> Best:
    """Every choice, one after the other."""
    lists = jobs.lists()
    options = jobs.option.diff().tolist()
    every = product(*map(range, options))
    seconds, choice = min((Run(lists, machine, own).end, own) for own in every)
    return Best(torch.tensor(choice, dtype=torch.int32), seconds, seconds, math.prod(options))


def lower_bound(jobs: Jobs, machine: Machine) -> float:
    """Seconds since backward began before which no choice is over. Raises KernelError."""
    check_machine(jobs, machine)
    found = core_for(jobs.ready)
    if found is None:
        return lower_bound_twin(jobs, machine)
    return found[0].lower_bound(jobs.address, machine.numbers, ROUNDS)


def lower_bound_twin(jobs: Jobs, machine: Machine) -> float:
    """A weaker bound: backward, and each lane's jobs one after the other, the shortest of each."""
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
    """How many options each job has after those are dropped that another asks no more than, of any
    lane: what the search tries."""
    found = core_for(jobs.ready)
    if found is None:
        return jobs.option.diff().tolist()
    begins = found[0].undominated(jobs.address)
    return [end - begin for begin, end in pairwise(begins)]
