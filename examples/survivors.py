"""Ranks may be killed and started again while the others train on.

python examples/survivors.py store &          # on a machine that stays
for RANK in 0 1 2; do python examples/survivors.py $RANK & done
kill -9 …                                     # one of the ranks
python examples/survivors.py 1                # and it is back
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import gradwire

WORLD, STEPS = 3, int(os.environ.get("STEPS", "2000"))


def train(rank: str) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29555")
    # The store outlives rank 0, so that this one may be killed, too.
    os.environ.update(RANK=rank, WORLD_SIZE=str(WORLD), TORCHELASTIC_USE_AGENT_STORE="True")
    gradwire.init_process_group("gloo")

    torch.manual_seed(0)
    teacher, student = nn.Linear(64, 8), nn.Linear(64, 8)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.5)
    handle = gradwire.attach(
        student, "topk(0.1)+ef | allgather", optimizer=optimizer, on_failure="shrink",
        timeout_seconds=30.0,
    )  # fmt: skip
    world, dice = 0, torch.Generator().manual_seed(os.getpid())
    while handle.step < STEPS:
        if world != dist.get_world_size():
            world = dist.get_world_size()
            print(f"step {handle.step}: rank {dist.get_rank()} of {world}", flush=True)
        inputs = torch.randn(32, 64, generator=dice)
        optimizer.zero_grad()
        loss = (student(inputs) - teacher(inputs).detach()).square().mean()
        loss.backward()
        optimizer.step()
    print(f"step {handle.step}: loss {loss.item():.2e}", flush=True)
    handle.detach()
    dist.destroy_process_group()


def keep_store() -> None:
    address = os.environ.get("MASTER_ADDR", "0.0.0.0")
    port = int(os.environ.get("MASTER_PORT", "29555"))
    store = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)
    print(f"a store at port {store.port}", flush=True)
    time.sleep(float("1e9"))


if __name__ == "__main__":
    keep_store() if sys.argv[1] == "store" else train(sys.argv[1])
