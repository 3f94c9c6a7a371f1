"""A predicted step in the published planner's model: lanes are queues that serve one at a time.

The rule is in gradwire/planner/ordered.py. The extension and the twin give the same bits.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.jobs import Jobs, Machine, Served, check_choice, check_machine
from gradwire.kernels.rooms import room_of


def ordered_step(
    jobs: Jobs, choice: Tensor, backward_seconds: float, by_ready: bool = False
) -> Served:
    """When the last job and backward are over, in seconds since backward began.

    choice: (jobs,) int32. by_ready: who arrives first is served first; else the order of the jobs
    rules. Raises KernelError.
    """
    check_machine(jobs, Machine(1, 1.0, 0.0, 1.0, backward_seconds))
    check_choice(jobs, choice)
    return room_of(jobs.ready).ordered_step(jobs, choice, backward_seconds, by_ready)
