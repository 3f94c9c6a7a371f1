"""A job that loses a rank and goes on from its last checkpoint, compressor's memory included.

TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 --max-restarts 1 \\
    examples/restart.py --kill-at 25

torchrun starts all ranks again when one dies; without the variable, torch 2.13 lets them find the
addresses of those that died. Each saves its own residuals beside the model; a job that is started
with another --nproc-per-node goes on from the same checkpoint.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import gradwire

PLAN = "topk(0.01)+ef | gtopk"


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns this rank's part of the step's batch; the same whenever it is requested."""
    dice = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    teacher = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
    x = torch.randn(32, 64, generator=dice)
    return x, (x @ teacher).argmax(1)


def last(folder: Path) -> Path | None:
    """Returns the newest complete checkpoint: .metadata is written last."""
    whole = [path.parent for path in folder.glob("*/.metadata")]
    return max(whole, key=lambda path: int(path.name), default=None)


def resume(
    checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, handle: gradwire.Handle
) -> int:
    """Loads the checkpoint and returns how many steps had been trained when it was saved."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=checkpoint)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    handle.load_checkpoint(checkpoint)
    return int(checkpoint.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--kill-at", type=int, help="the step in which rank 1 dies, once")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = gradwire.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    handle = gradwire.attach(model, PLAN, warmup=20)
    begin = 0
    if checkpoint := last(arguments.folder):
        begin = resume(checkpoint, model, optimizer, handle)
    first_try = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"

    loss = torch.tensor(float("nan"))  # for a job that resumes after its last step
    for step in range(begin, arguments.steps):
        if step == arguments.kill_at and dist.get_rank() == 1 and first_try:
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = batch(step)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % arguments.every == 0:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "gradwire": handle.state_dict()}
            dcp.save(state, checkpoint_id=arguments.folder / str(step + 1))
    if dist.get_rank() == 0:
        norm = sum(float(p.detach().double().square().sum()) for p in model.parameters()) ** 0.5
        print(f"after {arguments.steps} steps: loss {loss.item():.6f}, weights' norm {norm:.12f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
