"""Hugging Face Accelerate: accumulation, clipping, precision, checkpoints, mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks
from small import raised
from torch import nn
from trainers import (
    ACCUMULATE,
    BATCH,
    DGC,
    LAWS,
    ROWS,
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

needs("accelerate")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(2, tmp_path_factory.mktemp("pair"), timeout_seconds=240.0) as ranks:
        yield ranks


def accelerator_of(job: Job, **options: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # of the job before in this process
    launched()
    precision = "bf16" if job.half else "no"
    accelerator = Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=ACCUMULATE, **options
    )
    if job.scaled:  # on CPUs Accelerate has no scaler
        accelerator.scaler = torch.amp.GradScaler("cpu")
    return accelerator


def train(job: Job) -> Trained:
    from gradwire.training.integrations.accelerate import attach

    accelerator, inner = accelerator_of(job), net()
    model, optimizer, batches = accelerator.prepare(inner, sgd(inner, job), loader())
    handle = attach(accelerator, model, job.plan, timeout_seconds=30.0)
    if job.resume:
        accelerator.load_state(f"{job.folder}/0")
    for epoch in range(int(job.resume), job.epochs):
        for x, y in batches:
            with accelerator.accumulate(model):
                out = inner(x) if job.silent else model(x)
                accelerator.backward(nn.functional.cross_entropy(out, y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state(f"{job.folder}/{epoch}")
        accelerator.wait_for_everyone()
    end = trained(model, handle)
    handle.detach()
    return end


@pytest.mark.parametrize("law", [*LAWS, SCALER_LAW])
def test_accelerate(pair: Ranks, law: Callable[..., None], tmp_path: Path) -> None:
    law(pair, train, tmp_path)


def test_one_process_exchanges_once_per_step(one: Ranks, tmp_path: Path) -> None:
    """Accelerate does not wrap the model of one process."""
    (end,) = one.run(train, Job(str(tmp_path), DGC, momentum=0.0))
    assert end.exchanges == ROWS / BATCH / ACCUMULATE


def logged(job: Job) -> list[dict[str, Any]]:
    from gradwire.training.integrations.accelerate import attach

    accelerator, inner = accelerator_of(job), net()
    found = list[dict[str, Any]]()
    accelerator.log = lambda values, **_: found.append(values)
    model = accelerator.prepare(inner)
    handle = attach(accelerator, model, job.plan, timeout_seconds=30.0)
    for _ in range(2):
        accelerator.backward(model(torch.ones(4, 20)).square().mean())
        accelerator.log({"loss": 1.0}, step=1)
        model.zero_grad()
    accelerator.log({"loss": 2.0})
    handle.detach()
    accelerator.log({"loss": 3.0})
    return found


def test_its_trackers_are_told(pair: Ranks, tmp_path: Path) -> None:
    for first, second, *others in pair.run(logged, Job(str(tmp_path))):
        assert first["loss"] == 1.0
        assert min(own["gradwire/bytes_sent"] for own in (first, second)) > 0
        assert others == [{"loss": 2.0}, {"loss": 3.0}], "no step, and no handle"


def two_models(job: Job) -> tuple[list[str], bool]:
    """Two models, as in a GAN: each has a plan and residuals of its own."""
    from gradwire.training.integrations.accelerate import attach

    accelerator = accelerator_of(job)
    models = accelerator.prepare(net(), nn.Linear(20, 5))
    plans = (job.plan, "topk(0.5)+ef | allgather")
    handles = [attach(accelerator, m, p, timeout_seconds=30.0) for m, p in zip(models, plans)]
    for model in models:
        model(torch.ones(4, 20) + accelerator.process_index).square().mean().backward()
    before = [trained(*pair) for pair in zip(models, handles)]
    accelerator.save_state(job.folder)
    accelerator.wait_for_everyone()
    for model in models:
        model.zero_grad()
        model(torch.ones(4, 20)).square().mean().backward()
    accelerator.load_state(job.folder)
    after = [trained(*pair) for pair in zip(models, handles)]
    for handle in handles:
        handle.detach()
    names = sorted(path.name for path in Path(job.folder).glob("gradwire*"))
    return names, [end.residuals for end in after] == [end.residuals for end in before]


def test_two_models_have_files_of_their_own(pair: Ranks, tmp_path: Path) -> None:
    names = [f"{name}-{rank}-of-2.pt" for name in ("gradwire", "gradwire_1") for rank in (0, 1)]
    assert pair.run(two_models, Job(str(tmp_path))) == [(names, True)] * 2


def hook_is_taken(job: Job) -> str:
    from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

    from gradwire.training.integrations.accelerate import attach

    own = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    accelerator = accelerator_of(job, kwargs_handlers=[own])
    model = accelerator.prepare(net())
    return raised(lambda: attach(accelerator, model, job.plan, timeout_seconds=30.0))


def test_a_hook_of_its_own_is_in_the_way(pair: Ranks, tmp_path: Path) -> None:
    for text in pair.run(hook_is_taken, Job(str(tmp_path))):
        assert "one communication hook" in text


def step(accelerator: Any, model: nn.Module) -> None:
    model.zero_grad()
    accelerator.backward(model(torch.ones(4, 20) + accelerator.process_index).square().mean())


def attached_again(job: Job) -> bool:
    """Whether a checkpoint restores residuals after the model was attached again, in another
    wrapper and by another plan."""
    from gradwire.training.integrations.accelerate import attach

    accelerator, inner = accelerator_of(job), net()
    model = accelerator.prepare(inner)
    handle = attach(accelerator, model, job.plan, timeout_seconds=30.0)
    step(accelerator, model)
    handle.detach()
    accelerator.free_memory()
    model = accelerator.prepare(inner)
    handle = attach(accelerator, model, "topk(0.5)+ef | allgather", timeout_seconds=30.0)
    step(accelerator, model)
    before = trained(model, handle)
    accelerator.save_state(job.folder)
    accelerator.wait_for_everyone()
    step(accelerator, model)
    accelerator.load_state(job.folder)
    after = trained(model, handle)
    handle.detach()
    return after.residuals == before.residuals


def test_another_plan_may_be_attached(pair: Ranks, tmp_path: Path) -> None:
    assert pair.run(attached_again, Job(str(tmp_path))) == [True, True]


def saved_detached(job: Job) -> list[str]:
    from gradwire.training.integrations.accelerate import attach

    accelerator = accelerator_of(job)
    model = accelerator.prepare(net())
    handle = attach(accelerator, model, job.plan, timeout_seconds=30.0)
    step(accelerator, model)
    handle.detach()
    accelerator.save_state(job.folder)
    accelerator.wait_for_everyone()
    accelerator.load_state(job.folder)  # without a warning that there are no residuals
    return [path.name for path in Path(job.folder).glob("gradwire*")]


def test_a_detached_model_has_no_residuals_in_checkpoints(pair: Ranks, tmp_path: Path) -> None:
    assert pair.run(saved_detached, Job(str(tmp_path))) == [[], []]
