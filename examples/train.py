"""A training loop with gradwire in it, run as any torch.distributed job.

torchrun --nproc-per-node 2 examples/train.py
gradwire lab run --hosts 4 --rate 100mbit -- python examples/train.py --strategy "none | allreduce"
gradwire lab run --hosts 4 --rate 100mbit -- python examples/train.py --steps 600 --record run/
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

import gradwire


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", default="qsgd(4) | alltoall")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--record", metavar="DIR", help="a run folder, for gradwire report")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                          nn.Linear(1024, 10))  # fmt: skip
    handle = gradwire.attach(model, arguments.strategy)
    # dgc keeps the momentum itself; every other strategy leaves it to the optimizer.
    momentum = 0.0 if "dgc" in arguments.strategy else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)

    if arguments.record:
        gradwire.record(handle, arguments.record)
    teacher = torch.randn(64, 10)
    data = torch.Generator().manual_seed(dist.get_rank())
    began = time.perf_counter()
    for step in range(arguments.steps):
        x = torch.randn(32, 64, generator=data)
        loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
        optimizer.zero_grad()
        loss.backward()  # returns with the average in .grad
        optimizer.step()
        handle.log(loss=loss)
        if dist.get_rank() == 0 and step % 20 == 19:
            seconds = (time.perf_counter() - began) / (step + 1)
            print(f"step {step + 1:3}  loss {loss.item():.3f}  {1e3 * seconds:.1f} ms a step")
    if dist.get_rank() == 0:
        sent, given = handle.stats()["bytes_sent"], handle.stats()["bytes_given"]
        print(f"{sent:,.0f} bytes sent a step, of {given:,.0f} bytes of gradient")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
