"""Large embeddings with sparse gradients, by DistributedDataParallel and by gradwire.

torchrun --nproc-per-node 4 examples/embeddings.py
gradwire lab run --hosts 4 --rate 1gbit -- python examples/embeddings.py
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

ROWS, WIDTH, FIELDS = 400_000, 64, 8


class Clicks(nn.Module):
    """Predicts clicks of users on items: two tables of 100 MB; a batch looks up some thousand
    rows."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.EmbeddingBag(ROWS, WIDTH, sparse=True)
        self.items = nn.EmbeddingBag(ROWS, WIDTH, sparse=True)
        self.top = nn.Sequential(nn.Linear(2 * WIDTH, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.top(torch.cat([self.users(users), self.items(items)], 1)).squeeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = Job(DistributedDataParallel(Clicks()))
    model = Clicks()
    handle = gradwire.attach(model, "topk(0.01)+ef | allgather")
    ours = Job(model)
    for step in range(arguments.steps):  # in turn, so that both run under the same load
        ddp.step(step)
        ours.step(step)
    if dist.get_rank() == 0:
        sent, given = (handle.stats()[name] / 1e6 for name in ("bytes_sent", "bytes_given"))
        print(f"gradient: {given:.1f} MB a step, gradwire sends {sent:.1f} MB")
        print(f"DistributedDataParallel   {ddp.milliseconds():7.1f} ms a step")
        print(f"gradwire                  {ours.milliseconds():7.1f} ms a step")
    dist.barrier()
    handle.detach()
    dist.destroy_process_group()


class Job:
    """One model in training."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._seconds = model, list[float]()
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(self, number: int) -> None:
        users, items, clicked = batch(number)
        dist.barrier()
        began = time.perf_counter()
        self._optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(self._model(users, items), clicked)
        loss.backward()
        self._optimizer.step()
        self._seconds.append(time.perf_counter() - began)

    def milliseconds(self) -> float:
        """The median time of a step, without the first two."""
        return 1e3 * median(self._seconds[2:] or self._seconds)


def batch(step: int, size: int = 1024) -> tuple[Tensor, Tensor, Tensor]:
    """Returns one batch. Row frequencies are those of words: the n-th most frequent row is looked
    up 1/n times as often as the first."""
    dice = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    where = torch.pow(ROWS, torch.rand(2, size, FIELDS, generator=dice)).long() - 1
    clicked = torch.rand(size, generator=dice).lt(0.3).float()
    return where[0], where[1], clicked


if __name__ == "__main__":
    main()
