"""A predicted step: jobs with options, options with stages, on the conductor's lanes.

The rule, with a drawing, is in gradwire/planner/timeline.py; the rule of the published planner's
model, in which lanes are queues that serve one at a time, in gradwire/planner/ordered.py. Times
are seconds in float64; the extension and the twins (torch/schedule.py, torch/queues.py) give the
same bits.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.jobs import Jobs, Machine, Recorded, Served, check_choice, check_machine
from gradwire.kernels.rooms import room_of


def simulate_step(jobs: Jobs, machine: Machine, choice: Tensor, repeats: int = 1) -> float:
    """Returns when the last job and backward are over, in seconds since backward began.

    choice: (jobs,) int32, an option of each job. repeats: how often it is computed, for
    benchmarks. Raises KernelError.
    """
    check_machine(jobs, machine)
    check_choice(jobs, choice)
    if not isinstance(repeats, int) or not 1 <= repeats < 1 << 31:
        raise KernelError(f"repeats must be 1 to 2^31 - 1, not {repeats}; give 1")
    return room_of(jobs.ready).simulate_step(jobs, machine, choice, repeats)


def record_step(jobs: Jobs, machine: Machine, choice: Tensor) -> Recorded:
    """Returns what `simulate_step` does, with the times of each stage. Raises KernelError."""
    check_machine(jobs, machine)
    check_choice(jobs, choice)
    return room_of(jobs.ready).record_step(jobs, machine, choice)


def ordered_step(
    jobs: Jobs, choice: Tensor, backward_seconds: float, by_ready: bool = False
) -> Served:
    """Returns when all is over, in seconds since backward began, in the published planner's model.

    choice: (jobs,) int32. by_ready: jobs are served in the order in which they arrive, otherwise
    in their own order. Raises KernelError.
    """
    check_machine(jobs, Machine(1, 1.0, 0.0, 1.0, backward_seconds))
    check_choice(jobs, choice)
    return room_of(jobs.ready).ordered_step(jobs, choice, backward_seconds, by_ready)
