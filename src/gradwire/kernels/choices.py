"""Choosing an option for each job so that the step is short: a search, a bound, exhaustion.

The extension searches; without it the twin takes the best of some whole choices and sweeps over
the jobs, slower and without random neighbourhoods. Both return the true time of their choice.
"""

from __future__ import annotations

import math

from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.jobs import (
    MOST_LANES,
    Best,
    Jobs,
    Machine,
    check_choice,
    check_machine,
)
from gradwire.kernels.rooms import room_of
from gradwire.kernels.tensors import real

MOST_JOBS, MOST_CHOICES = 256, 10**12
"""The most jobs, and the most choices, that `exhaust_options` tries."""


def search_options(
    jobs: Jobs, machine: Machine, start: Tensor, *, limit: float, seed: int = 0
) -> Best:
    """Returns a choice that makes `simulate_step` short, and is not slower than `start`.

    start: (jobs,) int32. limit: the most evaluations of a step; one that starts in the middle of
    the step counts in part. The same arguments give the same choice. Raises KernelError.
    """
    check_machine(jobs, machine)
    check_choice(jobs, start)
    if not 0 < (limit := real(limit)) < math.inf:
        raise KernelError(
            f"limit, the evaluations of a step, must be finite and above 0, not {limit}; give a "
            "limit, such as 1000.0"
        )
    if not isinstance(seed, int):
        raise KernelError(f"seed must be a whole number, not {seed!r}; give 0")
    return room_of(jobs.ready).search_options(jobs, machine, start, limit, seed)


def exhaust_options(jobs: Jobs, machine: Machine, start: Tensor) -> Best:
    """Returns the best of all choices, in time that grows as their number. Raises KernelError,
    also for more than MOST_JOBS jobs, or MOST_CHOICES choices.

    Its evaluations are the number of jobs begun, divided by the number of jobs.
    """
    check_machine(jobs, machine)
    check_choice(jobs, start)
    choices = math.prod(jobs.counts) if len(jobs) <= MOST_JOBS else math.inf
    if choices > MOST_CHOICES:
        raise KernelError(
            f"all choices can be tried of at most {MOST_JOBS} jobs and {MOST_CHOICES:g} choices, "
            f"not of {len(jobs)} jobs with {choices:g}; use a search instead"
        )
    return room_of(jobs.ready).exhaust_options(jobs, machine, start)


def lower_bound(jobs: Jobs, machine: Machine) -> float:
    """Returns a bound: no choice ends earlier than so many seconds after backward began. With a
    lane for each job it holds however jobs share lanes.

    Raises KernelError.
    """
    check_machine(jobs, machine, max(MOST_LANES, len(jobs)))
    return room_of(jobs.ready).lower_bound(jobs, machine)


def undominated(jobs: Jobs) -> list[int]:
    """Returns how many options of each job the search tries: an option is dropped if another one
    needs no more time on any lane."""
    return room_of(jobs.ready).undominated(jobs)
