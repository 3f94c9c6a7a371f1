"""Training loops in the style of TorchTitan: a device mesh and micro-batches.

Save `handle.state_dict()` under a key of its own in a checkpoint of torch.distributed.checkpoint;
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
    """Attach a model over a mesh, as the last step of a parallelize function. Collective.

    gradwire averages over the mesh. TorchTitan divides a loss by the tokens of all ranks and sums
    gradients: multiply such a loss by `mesh.size()`.

    Args:
        model: a plain module, or another that `gradwire.attach` takes.
        plan, options: as in `gradwire.attach`.
        mesh: the mesh dimension of replicas, as `parallel_dims.get_mesh("dp_replicate")`.

    Raises:
        As `gradwire.attach`.
    """
    return gradwire.attach(model, plan, mesh.get_group(), **options)


def micro_batch(handle: gradwire.Handle, index: int, count: int) -> AbstractContextManager[Any]:
    """A context for micro-batch `index` of `count`: only the last one's backward exchanges."""
    return nullcontext() if index == count - 1 else handle.no_sync()
