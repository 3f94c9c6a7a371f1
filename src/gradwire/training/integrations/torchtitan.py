"""Loops in the style of TorchTitan: a device mesh and micro-batches.

Checkpoints of torch.distributed.checkpoint take `handle.state_dict()` under a key of its own, and
`handle.load_checkpoint` reads it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import gradwire


def attach(
    model: nn.Module, plan: str | gradwire.Strategy | gradwire.Plan | Path, mesh: DeviceMesh,
    **options: Any,
) -> gradwire.Handle:  # fmt: skip
    """The last step of a parallelize function: gradients travel by a plan. Collective.

    gradwire averages over the mesh. TorchTitan divides a loss by the tokens of all ranks and lets
    gradients be summed: multiply such a loss by `mesh.size()`.

    Args:
        model: a plain module, or what `gradwire.attach` takes.
        plan, options: as of `gradwire.attach`.
        mesh: the dimension of replicas, as `parallel_dims.get_mesh("dp_replicate")`.

    Raises:
        As `gradwire.attach`.
    """
    return gradwire.attach(model, plan, mesh.get_group(), **options)


def micro_batch(handle: gradwire.Handle, index: int, count: int) -> AbstractContextManager[Any]:
    """Around micro-batch number `index` of `count`: gradients are exchanged in the last one's."""
    return nullcontext() if index == count - 1 else handle.no_sync()
