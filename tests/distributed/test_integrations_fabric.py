"""Lightning Fabric: the loop is the user's, the wrapper is Fabric's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import Ranks
from torch import nn
from trainers import (
    ACCUMULATE,
    LAWS,
    SCALER_LAW,
    Job,
    Trained,
    launched,
    loader,
    needs,
    net,
    sgd,
    trained,
)

needs("lightning")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(2, tmp_path_factory.mktemp("pair"), timeout_seconds=240.0) as ranks:
        yield ranks


def train(job: Job) -> Trained:
    import lightning
    from lightning.fabric.plugins import MixedPrecision

    from gradwire.training.integrations import load, save
    from gradwire.training.integrations.lightning import attach

    launched()
    fabric = lightning.Fabric(
        accelerator="cpu", devices=2, strategy="ddp", precision="bf16-mixed" if job.half else None,
        plugins=[MixedPrecision("16-mixed", "cpu")] if job.scaled else [],
    )  # fmt: skip
    fabric.launch()
    inner = net()
    model, optimizer = fabric.setup(inner, sgd(inner, job))
    batches = fabric.setup_dataloaders(loader())
    told = list[dict[str, Any]]()
    fabric.log_dict = lambda metrics, step=None: told.append(dict(metrics))
    handle = attach(fabric, model, job.plan, timeout_seconds=30.0)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if job.resume:
        fabric.load(f"{job.folder}/0/state.ckpt", state)
        load(handle, f"{job.folder}/0")
    for epoch in range(int(job.resume), job.epochs):
        for i, (x, y) in enumerate(batches):
            waits = i % ACCUMULATE < ACCUMULATE - 1
            with fabric.no_backward_sync(model, enabled=waits):
                out = inner(x) if job.silent else model(x)
                fabric.backward(nn.functional.cross_entropy(out, y) / ACCUMULATE)
            if not waits:
                fabric.clip_gradients(model, optimizer, max_norm=0.5)
                optimizer.step()
                optimizer.zero_grad()
                fabric.log_dict({"epoch": epoch}, step=i)
        fabric.save(f"{job.folder}/{epoch}/state.ckpt", state)
        save(handle, f"{job.folder}/{epoch}")
        fabric.barrier()
    assert job.silent or all(own["gradwire/step_seconds"] > 0 for own in told), told
    end = trained(model, handle)
    handle.detach()
    return end


@pytest.mark.parametrize("law", [*LAWS, SCALER_LAW])
def test_fabric(pair: Ranks, law: Callable[..., None], tmp_path: Path) -> None:
    law(pair, train, tmp_path)
