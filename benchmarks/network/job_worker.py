"""One rank of `job.py`: steps of one matrix; each variant is attached anew, so that hashed
connections have other ports. Rank 0 prints seconds by variant."""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter

import torch
import torch.distributed as dist

import gradwire

PLANES = os.environ["GRADWIRE_PLANES"]
OWN = ",".join(["10.77." + PLANES.split(",")[0].split(".", 2)[2]] * len(PLANES.split(",")))
"""The host's own address instead of one per plane: the same messages, hashed."""
STEPS = 2
EXPERTS = 4
"""The ranks of a group that exchanges within itself."""


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    files, side = dict(zip(("all", "groups"), sys.argv[1:3])), int(sys.argv[3])
    model = torch.nn.Linear(side, side, bias=False)
    rank, world = dist.get_rank(), dist.get_world_size()
    made = [dist.new_group(range(first, first + EXPERTS)) for first in range(0, world, EXPERTS)]
    groups = {"all": None, "groups": made[rank // EXPERTS]}
    seconds: dict[str, list[float]] = {}
    for who, strategy, carried in (
        ("all", "none | allreduce", "pairs, in turns"),
        ("all", "none | alltoall", "pairs, in turns"),
        ("groups", "none | alltoall", "pairs, at once"),
    ):
        for variant, addresses in (
            ("Gloo / hashed", None), (f"{carried} / hashed", OWN), (f"{carried} / pinned", PLANES),
        ):  # fmt: skip
            took = steps(model, strategy, groups[who], files[who], addresses)
            seconds[f"{who} / {strategy} / {variant}"] = took
    if rank == 0:
        print(json.dumps(seconds))
    dist.destroy_process_group()


def steps(
    model: torch.nn.Linear, strategy: str, group: dist.ProcessGroup | None, file: str,
    addresses: str | None,
) -> list[float]:  # fmt: skip
    """Returns the steps' seconds on the slowest rank, after one step that first touches all
    memory."""
    if addresses:
        os.environ["GRADWIRE_PLANES"] = addresses
    handle = gradwire.attach(
        model, strategy, group, bucket_bytes=1 << 30, lanes=1, planes=file if addresses else None
    )
    data, found = torch.ones(1, model.in_features), []
    for _ in range(1 + STEPS):
        model.zero_grad()
        dist.barrier()
        began = perf_counter()
        model(data).sum().backward()
        took = torch.tensor(perf_counter() - began)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        found.append(float(took))
    handle.detach()
    return found[1:]


if __name__ == "__main__":
    main()
