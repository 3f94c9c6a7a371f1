"""One rank of a training job on a GPU: `python job.py MODEL HOW STEPS`, started by jobs.py.

Rank 0 prints one line of JSON: the seconds of each step, the losses, and the memory it took.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.demo.rows import keeps_momentum

DEVICE = torch.device(os.environ.get("GRADWIRE_BENCH_DEVICE", "cuda:0"))
VOCABULARY, WIDTH, BLOCKS, HEADS, TIME, BATCH = 50_304, 768, 12, 12, 512, 8
if DEVICE.type == "cpu":  # to try this program without a GPU
    VOCABULARY, WIDTH, BLOCKS, TIME, BATCH = 512, 96, 2, 32, 2
CLASSES, SIDE, PICTURES = 100, 64, 32


class Block(nn.Module):
    """Causal attention, and two layers of four times the width."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.three, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        heads = self.three(self.before(x)).view(batch, time, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, time, WIDTH))
        return x + self.layers(self.between(x))


class Gpt(nn.Module):
    """124 M parameters in the shapes of GPT-2 small, words predicted with their embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TIME, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.last = nn.LayerNorm(WIDTH)
        for weights in (self.words.weight, self.places.weight):
            nn.init.normal_(weights, std=0.02)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places.weight[: words.shape[1]]
        return self.last(self.blocks(x)) @ self.words.weight.T


def convnet() -> nn.Module:
    """A model of 25 M parameters: twelve convolutions, the last of 512 channels."""
    layers: list[nn.Module] = []
    last = 3
    for width, count, stride in ((64, 2, 1), (128, 2, 2), (256, 3, 2), (512, 5, 2)):
        for i in range(count):
            convolution = nn.Conv2d(last, width, 3, stride if i == 0 else 1, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
            last = width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * last, 1536), nn.ReLU(),
        nn.Linear(1536, CLASSES),
    )  # fmt: skip


def batch(model: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns a rank's batch of one step; in text each word follows from the one before it."""
    if model == "gpt":
        first = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
        words = (first + 7 * torch.arange(TIME + 1)) % VOCABULARY
        return words[:, :-1].to(DEVICE), words[:, 1:].to(DEVICE)
    labels = torch.randint(CLASSES, (PICTURES,), generator=generator)
    pictures = torch.randn(PICTURES, 3, SIDE, SIDE, generator=generator)
    return (pictures + labels.view(-1, 1, 1, 1) / CLASSES).to(DEVICE), labels.to(DEVICE)


def together(model: nn.Module, how: str) -> tuple[Any, float, Any]:
    """Returns the module to call for a forward pass, the momentum that the optimizer keeps, and
    the handle if gradwire averages the gradients."""
    if how == "alone":
        return model, 0.9, None
    if how not in ("ddp", "bf16", "powersgd"):
        handle = gradwire.attach(model, how)
        return model, 0.0 if keeps_momentum(how) else 0.9, handle
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if how == "bf16":
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    if how == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp, 0.9, None


def main(name: str, how: str, steps: int) -> None:
    """Trains `steps` steps."""
    torch.set_num_threads(1)
    backend = os.environ.get("GRADWIRE_BENCH_BACKEND", "gloo")
    dist.init_process_group(backend, device_id=DEVICE if backend == "nccl" else None)
    torch.manual_seed(1)
    model = (Gpt() if name == "gpt" else convnet()).to(DEVICE)
    trained, momentum, handle = together(model, how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    generator = torch.Generator().manual_seed(dist.get_rank())
    seconds, losses = [], []
    for _ in range(steps):
        given, right = batch(name, generator)
        done()
        dist.barrier()
        began = perf_counter()
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, torch.bfloat16):
            scores = trained(given)
        loss = cross_entropy(scores.flatten(0, -2).float(), right.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        done()
        seconds.append(round(perf_counter() - began, 5))
        losses.append(round(loss.item(), 4))
    if dist.get_rank() == 0:
        found = {
            "model": name, "how": how, "ranks": dist.get_world_size(), "seconds": seconds,
            "losses": losses, "parameters": sum(p.numel() for p in model.parameters()),
        }  # fmt: skip
        if handle is not None:
            found["stats"] = handle.stats()
        if DEVICE.type == "cuda":
            found["memory"] = torch.cuda.max_memory_allocated()
        print(json.dumps(found), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def done() -> None:
    """Waits for the device."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
