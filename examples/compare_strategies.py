"""One training job, three strategies: what each sends, costs and reaches.

torchrun --nproc-per-node 4 examples/compare_strategies.py
gradwire lab run --hosts 4 --rate 100mbit -- python examples/compare_strategies.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradwire

STRATEGIES = ("none | allreduce", "qsgd(4) | alltoall", "dgc(0.01) | allgather")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategies", nargs="*", default=STRATEGIES)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print(f"{'strategy':24}{'loss':>8}{'accuracy':>10}{'ms/step':>9}{'kB/step':>9}")
    for strategy in arguments.strategies:
        train(strategy, arguments.steps)
    dist.destroy_process_group()


def train(strategy: str, steps: int) -> None:
    """Trains the same model on the same pictures in the same order, and prints a row of the
    table."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 20),
    )  # fmt: skip
    handle = gradwire.attach(model, strategy)
    # dgc keeps the momentum itself; every other strategy leaves it to the optimizer.
    momentum = 0.0 if "dgc" in strategy else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)
    pictures = glyphs(32, seed=1 + dist.get_rank())
    began = time.perf_counter()
    for _, (x, y) in zip(range(steps), pictures):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # returns with the average in .grad
        optimizer.step()
    seconds, stats = (time.perf_counter() - began) / steps, handle.stats()
    handle.detach()
    if dist.get_rank() == 0:
        loss, accuracy = judge(model)
        kilobytes = stats["bytes_sent"] / 1e3
        print(f"{strategy:24}{loss:8.3f}{accuracy:10.1%}{1e3 * seconds:9.1f}{kilobytes:9.1f}")


def judge(model: nn.Module) -> tuple[float, float]:
    """Returns loss and accuracy on pictures that no rank has seen."""
    x, y = next(glyphs(2000, seed=0))
    with torch.no_grad():
        scores = model(x)
    right = (scores.argmax(1) == y).float().mean()
    return float(nn.functional.cross_entropy(scores, y)), float(right)


def glyphs(count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields pictures of 16 × 16: one of 20 smooth random shapes, shifted, under noise."""
    shapes = nn.functional.interpolate(
        torch.randn(20, 1, 5, 5, generator=torch.Generator().manual_seed(7)), size=16,
        mode="bicubic",
    )  # fmt: skip
    dice = torch.Generator().manual_seed(seed)
    while True:
        y = torch.randint(20, (count,), generator=dice)
        shifts = torch.randint(-3, 4, (count, 2), generator=dice).tolist()
        moved = [torch.roll(shapes[i], tuple(s), (1, 2)) for i, s in zip(y.tolist(), shifts)]
        yield torch.stack(moved) + torch.randn(count, 1, 16, 16, generator=dice), y


if __name__ == "__main__":
    main()
