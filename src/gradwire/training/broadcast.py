"""Makes the models of all ranks equal, when they are attached."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.runtime.process_groups import attaching
from gradwire.training.agreed import same_everywhere
from gradwire.training.trainable import own_name, shard_of


@torch.no_grad()
def broadcast(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Copy rank 0's parameters and buffers to all ranks, as DDP does at its start.

    Tensors travel as bytes, in row-major order: backends do not know all dtypes, and send memory
    as it lies, while ranks may have other strides, with gaps, or with 0 for repeated elements.

    Raises PlanError if ranks have other buffers or frozen parameters: no plan has these, and bytes
    of one would be copied into another.
    """
    device = shard_of(next(module.parameters())).device
    same_everywhere(
        group, device, lambda: _beside_the_plan(module), str,
        "all ranks must attach a model with the same buffers and frozen parameters",
        "Build the same model on every rank.",
    )  # fmt: skip
    source = dist.get_process_group_ranks(group)[0]
    with attaching(group):
        for tensor in (*module.parameters(), *module.buffers()):
            own = _without_repeats(shard_of(tensor).detach())
            dense = own.contiguous()
            dist.broadcast(dense.view(-1).view(torch.uint8), src=source, group=group)
            if dense.data_ptr() != own.data_ptr():
                own.copy_(dense)


def _beside_the_plan(module: nn.Module) -> str:
    """Returns names, dtypes and shapes of what is not trained."""
    frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
    told = [
        f"{own_name(name)}, {str(x.dtype).removeprefix('torch.')} of {tuple(shard_of(x).shape)}"
        for name, x in (*frozen, *module.named_buffers())
    ]
    return f"{len(told)} ({'; '.join(told)})" if told else "none"


def _without_repeats(tensor: Tensor) -> Tensor:
    """Returns a view of an expanded tensor in which each element in memory occurs once."""
    for dim in reversed(range(tensor.dim())):
        if tensor.numel() and tensor.stride(dim) == 0:
            tensor = tensor.select(dim, 0)
    return tensor
