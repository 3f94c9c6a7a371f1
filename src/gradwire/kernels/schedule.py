"""A predicted step: jobs with options, options with stages, on the conductor's lanes.

The rule, with a drawing, is in gradwire/planner/timeline.py. Times are seconds in float64; the
extension and the twin (torch/schedule.py) give the same bits.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.jobs import Jobs, Machine, Recorded, check_choice, check_machine
from gradwire.kernels.rooms import room_of


def simulate_step(jobs: Jobs, machine: Machine, choice: Tensor, repeats: int = 1) -> float:
    """When the last job and backward are over, in seconds since backward began.

    choice: (jobs,) int32, an option of each job. repeats: run so often, for benchmarks. Raises
    KernelError.
    """
    check_machine(jobs, machine)
    check_choice(jobs, choice)
    if not isinstance(repeats, int) or not 1 <= repeats < 1 << 31:
        raise KernelError(f"repeats are 1 to 2^31 - 1 times, not {repeats}; give 1")
    return room_of(jobs.ready).simulate_step(jobs, machine, choice, repeats)


def record_step(jobs: Jobs, machine: Machine, choice: Tensor) -> Recorded:
    """`simulate_step`, with the times of each stage. Raises KernelError."""
    check_machine(jobs, machine)
    check_choice(jobs, choice)
    return room_of(jobs.ready).record_step(jobs, machine, choice)
