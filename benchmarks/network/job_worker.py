"""One rank of `job.py`: steps of one matrix, each variant attached anew in every round, so that
hashed connections have other ports. Rank 0 prints seconds by variant."""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter

import torch
import torch.distributed as dist

import gradwire

ROUNDS = 1
PLANES = os.environ["GRADWIRE_PLANES"]
OWN = ",".join(["10.77." + PLANES.split(",")[0].split(".", 2)[2]] * len(PLANES.split(",")))
"""The host's own address instead of one for each plane: the same messages, hashed."""


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    file, side = sys.argv[1], int(sys.argv[2])
    model = torch.nn.Linear(side, side, bias=False)
    seconds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for strategy in ("none | allreduce", "none | alltoall"):
            for variant, addresses in (
                ("Gloo / hashed", None), ("pairs, in turns / hashed", OWN),
                ("pairs, in turns / pinned", PLANES),
            ):  # fmt: skip
                took = step(model, strategy, file, addresses)
                seconds.setdefault(f"{strategy} / {variant}", []).append(took)
    if dist.get_rank() == 0:
        print(json.dumps(seconds))
    dist.destroy_process_group()


def step(model: torch.nn.Linear, strategy: str, file: str, addresses: str | None) -> float:
    """Of the slowest rank."""
    if addresses:
        os.environ["GRADWIRE_PLANES"] = addresses
    handle = gradwire.attach(
        model, strategy, bucket_bytes=1 << 30, lanes=1, planes=file if addresses else None
    )
    data = torch.ones(1, model.in_features)
    model.zero_grad()
    dist.barrier()
    began = perf_counter()
    model(data).sum().backward()
    took = torch.tensor(perf_counter() - began)
    handle.detach()
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


if __name__ == "__main__":
    main()
