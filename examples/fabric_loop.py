"""A loop of Lightning Fabric: accumulation, clipping, checkpoints.

torchrun --nproc-per-node 2 examples/fabric_loop.py --folder /tmp/run
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning
import torch
import torch.distributed as dist
from torch import nn

from gradwire.training.integrations import load, save
from gradwire.training.integrations.lightning import attach


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", type=Path, help="of a checkpoint, to resume from and to save")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = fabric.setup(model, optimizer)
    handle = attach(fabric, model, "topk(0.01)+ef | allgather")

    state, folder = {"model": model, "optimizer": optimizer}, arguments.folder
    if folder and folder.exists():
        fabric.load(folder / "state.ckpt", state)
        load(handle, folder)
    teacher = torch.randn(64, 10)
    data = torch.Generator().manual_seed(fabric.global_rank)
    for i in range(2 * arguments.steps):
        accumulates = i % 2 == 0
        x = torch.randn(16, 64, generator=data)
        with fabric.no_backward_sync(model, enabled=accumulates):
            loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
            fabric.backward(loss / 2)
        if not accumulates:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
    if folder:
        fabric.save(folder / "state.ckpt", state)
        save(handle, folder)  # Fabric writes on rank 0 alone; residuals differ between ranks

    told = handle.stats()
    fabric.print(f"loss {loss.item():.3f}")
    fabric.print(f"{told['steps']:.0f} exchanges of {told['bytes_sent']:,.0f} bytes each")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
