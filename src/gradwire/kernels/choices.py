"""Which option each job takes so that the step is short: a search, a bound, and all of them tried.

The extension searches; without it the twin takes the best of some whole choices and sweeps over
the jobs, slower and without random neighbourhoods. What each finds is what it says it is.
"""

from __future__ import annotations

import math

from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.jobs import Best, Jobs, Machine, check_choice, check_machine
from gradwire.kernels.rooms import room_of
from gradwire.kernels.tensors import real

MOST_JOBS, MOST_CHOICES = 256, 10**12
"""Of which all choices are tried."""


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
    return room_of(jobs.ready).search_options(jobs, machine, start, limit, seed)


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
    return room_of(jobs.ready).exhaust_options(jobs, machine, start)


def lower_bound(jobs: Jobs, machine: Machine) -> float:
    """Seconds since backward began before which no choice is over. Raises KernelError."""
    check_machine(jobs, machine)
    return room_of(jobs.ready).lower_bound(jobs, machine)


def undominated(jobs: Jobs) -> list[int]:
    """How many options each job has after those are dropped that another asks no more than, of any
    lane: what the search tries."""
    return room_of(jobs.ready).undominated(jobs)
