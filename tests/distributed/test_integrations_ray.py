"""Ray Train. Too heavy for the development environment: pip install 'ray[train]', then run this.

Starting workers takes half a minute, so one start tests all laws, on every rank by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from trainers import ACCUMULATE, LAWS, Job, Trained, loader, net, sgd, trained

ray = pytest.importorskip("ray")

# Ray's own warnings, in the process that starts the workers.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield
    ray.shutdown()


def fit(loop: Callable[[dict[str, str]], float], workers: int, folder: Path) -> Any:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        loop, train_loop_config={"folder": str(folder)},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=str(folder / "ray")),
    ).fit()  # fmt: skip


class Everybody:
    """Stands for the pool when every rank runs a law itself: `run` gathers all ranks' results."""

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, function(*args))
        return found


def train(job: Job) -> Trained:
    from ray.train.torch import prepare_data_loader

    from gradwire.training.integrations import load, save
    from gradwire.training.integrations.ray import prepare_model

    inner = net()
    model, handle = prepare_model(inner, job.plan, timeout_seconds=30.0)
    optimizer, path = sgd(inner, job), Path(job.folder)
    if job.resume:
        saved = torch.load(path / "0" / "state.pt", weights_only=True)
        inner.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        load(handle, path / "0")
    batches = prepare_data_loader(loader())
    for epoch in range(int(job.resume), job.epochs):
        for i, (x, y) in enumerate(batches):
            last = i % ACCUMULATE == ACCUMULATE - 1
            with nullcontext() if last else handle.no_sync():
                with torch.autocast("cpu", torch.bfloat16, enabled=job.half):
                    loss = nn.functional.cross_entropy(inner(x) if job.silent else model(x), y)
                (loss / ACCUMULATE).backward()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        save(handle, path / str(epoch))
        if dist.get_rank() == 0:
            state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, path / str(epoch) / "state.pt")
        dist.barrier()
    end = trained(model, handle)
    handle.detach()
    return end


def all_laws(config: dict[str, str]) -> int:
    from test_integrations_ray import train  # by name, not as Ray's copy of this module

    torch.set_num_threads(1)
    for law in LAWS:
        law(Everybody(), train, Path(config["folder"]) / law.__name__)
    return len(LAWS)


@pytest.mark.usefixtures("cluster")
def test_ray(tmp_path: Path) -> None:
    assert fit(all_laws, 2, tmp_path).return_value == len(LAWS)


def alone(config: dict[str, str]) -> float:
    from test_integrations_ray import train

    end = train(Job(config["folder"]))
    return end.exchanges


@pytest.mark.usefixtures("cluster")
def test_a_single_worker_trains_by_the_plan_too(tmp_path: Path) -> None:
    assert fit(alone, 1, tmp_path).return_value == 4
