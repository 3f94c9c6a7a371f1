"""A predicted step by the extension, in our model and in the published planner's."""

import torch
from torch import Tensor

from gradwire.kernels.core import JobsAt, MachineIs
from gradwire.kernels.jobs import Jobs, Machine, Recorded, Served
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import pointer, real


def address_of(jobs: Jobs) -> JobsAt:
    """Returns the addresses of the jobs' lists, as the extension takes them."""
    return (
        len(jobs), pointer(jobs.ready), pointer(jobs.option), pointer(jobs.stage),
        pointer(jobs.lane), pointer(jobs.seconds),
    )  # fmt: skip


def numbers_of(machine: Machine) -> MachineIs:
    """Returns the machine as the extension takes it; an int too large for a float becomes inf."""
    return (
        machine.lanes, real(machine.cores), machine.wire_demand, real(machine.workers),
        machine.backward_seconds, machine.start_slowdown, machine.start_sharing,
        machine.start_demand,
    )  # fmt: skip


def simulate_step(jobs: Jobs, machine: Machine, choice: Tensor, repeats: int) -> float:
    return chosen.core.simulate_step(
        address_of(jobs), numbers_of(machine), pointer(choice), repeats
    )


def record_step(jobs: Jobs, machine: Machine, choice: Tensor) -> Recorded:
    start, end = torch.zeros_like(jobs.seconds), torch.zeros_like(jobs.seconds)
    seconds, backward_end = chosen.core.record_step(
        address_of(jobs), numbers_of(machine), pointer(choice), pointer(start), pointer(end)
    )
    return Recorded(start, end, seconds, backward_end)


def ordered_step(jobs: Jobs, choice: Tensor, backward_seconds: float, by_ready: bool) -> Served:
    idle = torch.zeros_like(jobs.ready)
    seconds = chosen.core.ordered_step(
        address_of(jobs), pointer(choice), real(backward_seconds), by_ready, pointer(idle)
    )
    return Served(seconds, idle)
