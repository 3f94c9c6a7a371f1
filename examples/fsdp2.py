"""A language model that fully_shard shards inside replicas, and gradwire averages over replicas.

torchrun --nproc-per-node 4 examples/fsdp2.py
torchrun --nproc-per-node 4 examples/fsdp2.py --strategy "none | allreduce"
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradwire

WORDS, WIDTH, LENGTH = 64, 128, 32


class Block(nn.Module):
    """Attention, then a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norms[0](x)).chunk(3, -1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    """Maps words to the log-probabilities of the next words."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).log_softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", default="qsgd(4) | alltoall")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    # On a cluster a replica is a machine: its ranks follow one another.
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    group = mesh["replicate"].get_group()
    handle = gradwire.attach(model, arguments.strategy, process_group=group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    data = torch.Generator().manual_seed(dist.get_rank())
    for step in range(arguments.steps):
        words = batch(data)
        loss = nn.functional.nll_loss(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # returns with the average over all ranks in each shard's .grad
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if dist.get_rank() == 0 and step % 20 == 19:
            print(f"step {step + 1:3}  loss {loss.item():.3f}")
    if dist.get_rank() == 0:
        sent, given = handle.stats()["bytes_sent"], handle.stats()["bytes_given"]
        print(f"{sent:,.0f} bytes a step to the other replica, of {given:,.0f} of shards")
    handle.detach()
    dist.destroy_process_group()


def batch(data: torch.Generator, size: int = 16) -> Tensor:
    """Returns sequences in which each word follows from the one before."""
    start = torch.randint(WORDS, (size, 1), generator=data)
    stride = torch.randint(1, 4, (size, 1), generator=data)
    return (start + stride * torch.arange(LENGTH)) % WORDS


if __name__ == "__main__":
    main()
