"""The picture of `docs/how-a-bucket-flows.md`: one step of a real run, and one bucket's way in it.

gradwire lab run --hosts 4 --rate 200mbit -- python docs/pictures/bucket.py record build/bucket
python docs/pictures/bucket.py draw build/bucket docs/_static/bucket.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import gradwire
from gradwire.report.run import Run
from step_picture import drawn

WIDTH, LAYERS, ROWS, STEPS = 1024, 4, 32, 120


def record(folder: str) -> None:
    """Train a perceptron for some steps; each of its matrices is a bucket."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    handle = gradwire.attach(
        model, "topk(0.01)+ef | allgather", bucket_bytes=1 << 20, lanes=1, optimizer=optimizer
    )
    teacher = torch.randn(WIDTH, 10)
    data = torch.Generator().manual_seed(dist.get_rank())
    with gradwire.record(handle, folder):
        for _ in range(STEPS):
            x = torch.randn(ROWS, WIDTH, generator=data)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
            loss.backward()
            optimizer.step()
            handle.log(loss=loss)
    dist.destroy_process_group()


def draw(folder: str, picture: str) -> None:
    """Write the picture of the shortest step, in which the machine had least else to do."""
    run = Run(folder)
    seen = set(run.steps_with_spans())
    rows = [row for row in run.first.steps if row.step in seen and row.step >= STEPS // 4]
    step = min(rows, key=lambda row: row.seconds).step
    Path(picture).write_text(drawn(run.trace([step]), BUCKET), encoding="utf-8")
    print(f"step {step}: {picture}")


BUCKET = 2
"""The one that is followed."""

if __name__ == "__main__":
    {"record": record, "draw": draw}[sys.argv[1]](*sys.argv[2:])
