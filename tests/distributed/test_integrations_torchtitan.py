"""Loops in the style of TorchTitan: a mesh, micro-batches, torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from trainers import (
    ACCUMULATE,
    BATCH,
    LAWS,
    Job,
    Rows,
    Trained,
    a_checkpoint_without_residuals,
    launched,
    net,
    sgd,
    trained,
)

from gradwire.training.integrations.torchtitan import attach, micro_batch


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(2, tmp_path_factory.mktemp("pair"), timeout_seconds=240.0) as ranks:
        yield ranks


def train(job: Job) -> Trained:
    launched()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("replicate",))
    model = net()
    optimizer = sgd(model, job)
    handle = attach(model, job.plan, mesh["replicate"], timeout_seconds=30.0)
    rows = Rows()
    if job.resume:
        states = states_of(model, optimizer)
        dcp.load(states, checkpoint_id=f"{job.folder}/0")
        set_optimizer_state_dict(model, optimizer, states["optimizer"])
        handle.load_checkpoint(f"{job.folder}/0")
    for epoch in range(int(job.resume), job.epochs):
        order = torch.arange(len(rows)).view(-1, ACCUMULATE, mesh.size(), BATCH)
        for step in order:
            for i, micro in enumerate(step):
                x, y = rows.x[micro[mesh.get_rank()]], rows.y[micro[mesh.get_rank()]]
                with handle.no_sync() if job.silent else micro_batch(handle, i, ACCUMULATE):
                    with torch.autocast("cpu", torch.bfloat16) if job.half else nullcontext():
                        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
                    (loss * mesh.size() / step.numel()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        states = states_of(model, optimizer) | {"gradwire": handle.state_dict()}
        dcp.save(states, checkpoint_id=f"{job.folder}/{epoch}")
    end = trained(model, handle)
    handle.detach()
    return end


def states_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }


# For a checkpoint without residuals, nobody calls `handle.load_checkpoint`.
OURS = [law for law in LAWS if law is not a_checkpoint_without_residuals]


@pytest.mark.parametrize("law", OURS)
def test_torchtitan(pair: Ranks, law: Callable[..., None], tmp_path: Path) -> None:
    law(pair, train, tmp_path)
