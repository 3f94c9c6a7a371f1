"""A loop of Hugging Face Accelerate: accumulation, clipping, checkpoints.

torchrun --nproc-per-node 2 examples/accelerate_loop.py --folder /tmp/run
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwire.training.integrations.accelerate import attach


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", type=Path, help="of a checkpoint, to resume from and to save")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, batches = accelerator.prepare(
        model, optimizer, batches_for(arguments.steps * 2 * accelerator.num_processes)
    )
    handle = attach(accelerator, model, "topk(0.01)+ef | allgather")

    if arguments.folder and arguments.folder.exists():
        accelerator.load_state(arguments.folder)
    for x, y in batches:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    if arguments.folder:
        accelerator.save_state(arguments.folder)  # each rank its own residuals, too

    told = handle.stats()
    accelerator.print(f"loss {loss.item():.3f}")
    accelerator.print(f"{told['steps']:.0f} exchanges of {told['bytes_sent']:,.0f} bytes each")
    accelerator.end_training()


def batches_for(count: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Returns `count` batches, the same on all ranks: Accelerate distributes them."""
    x, teacher = torch.randn(16 * count, 64), torch.randn(64, 10)
    return DataLoader(TensorDataset(x, (x @ teacher).argmax(1)), batch_size=16, shuffle=True)


if __name__ == "__main__":
    main()
