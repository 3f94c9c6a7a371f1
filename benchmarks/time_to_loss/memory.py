"""Memory of a process that trains a 26 M llama, in copies of its weights in fp32. One rank.

    torchrun --nproc-per-node 2 benchmarks/time_to_loss/memory.py "lloyd(2)+muon | alltoall"

It counts what the process holds after a few steps, minus what it held before the model was made:
weights, gradients, the optimizer's state, residuals, messages and buffers.
"""

from __future__ import annotations

import gc
import sys

import psutil
import torch
import torch.distributed as dist
from step import WAYS, model, trainer

ROUNDS = 3
TOKENS = 64


def held() -> int:
    """Returns the bytes that the process holds."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    (way,) = [way for way in WAYS if way.name == sys.argv[1]]
    weights = 4 * sum(p.numel() for p in model().parameters())
    torch.ones(8, 8) @ torch.ones(8, 8)  # allocates what torch keeps in any case
    before = held()
    round_ = trainer(way, TOKENS)
    for _ in range(ROUNDS):
        round_()
    if dist.get_rank() == 0:
        print(f"{way.name}: {(held() - before) / weights:.2f} copies of {weights / 1e6:.0f} MB")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
