"""A step in the published planner's model, by the extension."""

import torch
from torch import Tensor

from gradwire.kernels.cpu.schedule import address_of
from gradwire.kernels.jobs import Jobs, Served
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import pointer, real


def ordered_step(jobs: Jobs, choice: Tensor, backward_seconds: float, by_ready: bool) -> Served:
    idle = torch.zeros_like(jobs.ready)
    seconds = chosen.core.ordered_step(
        address_of(jobs), pointer(choice), real(backward_seconds), by_ready, pointer(idle)
    )
    return Served(seconds, idle)
