"""A loop in the style of TorchTitan: a mesh, micro-batches, torch.distributed.checkpoint.

torchrun --nproc-per-node 2 examples/torchtitan_loop.py --folder /tmp/run
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from gradwire.training.integrations.torchtitan import attach, micro_batch

MICRO_BATCHES, ROWS = 4, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", type=Path, help="of a checkpoint, to resume from and to save")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_replicate",))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))
    handle = attach(model, "topk(0.01)+ef | allgather", mesh["dp_replicate"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    folder = arguments.folder
    if folder and folder.exists():
        states = states_of(model, optimizer)
        dcp.load(states, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=states["model"],
                       optim_state_dict=states["optimizer"])  # fmt: skip
        handle.load_checkpoint(folder)
    teacher = torch.randn(64, 10)
    data = torch.Generator().manual_seed(dist.get_rank())
    rows_of_all = MICRO_BATCHES * ROWS * mesh.size()
    for _ in range(arguments.steps):
        for i in range(MICRO_BATCHES):
            x = torch.randn(ROWS, 64, generator=data)
            y = (x @ teacher).argmax(1)
            with micro_batch(handle, i, MICRO_BATCHES):
                loss = nn.functional.cross_entropy(model(x), y, reduction="sum") / rows_of_all
                (loss * mesh.size()).backward()  # gradwire averages, where TorchTitan sums
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if folder:
        states = states_of(model, optimizer) | {"gradwire": handle.state_dict()}
        dcp.save(states, checkpoint_id=folder)

    told = handle.stats()
    if dist.get_rank() == 0:
        print(f"{told['steps']:.0f} exchanges of {told['bytes_sent']:,.0f} bytes each")
    dist.destroy_process_group()


def states_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parts = get_state_dict(model, optimizer)
    return {"model": parts[0], "optimizer": parts[1]}


if __name__ == "__main__":
    main()
