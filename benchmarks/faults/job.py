"""The job of a scenario on one rank: undisturbed, then with its fault, and what became of it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
import traceback
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from scenario import Job, Scenario
from strikes import Points, ToldTo, give_back
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore, Store, TCPStore
from torch.amp import GradScaler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import LocalSteps
from gradwire.layout import message as wire
from gradwire.runtime import torch_dist
from gradwire.runtime.process_groups import set_timeout
from gradwire.testing import inject
from gradwire.training import agreed

SAVES_AFTER = 2
"""Steps from one checkpoint to the next."""


def run(scenario: Scenario, rank: int, folder: Path, attempt: int) -> dict[str, Any]:
    """Runs the job. Returns what became of this rank: digests of weights, and what was raised.

    attempt: 1 with the fault, 2 without, from the last checkpoint. folder: that of the attempts.
    """
    warnings.simplefilter("ignore")
    if scenario.job.large:
        torch_dist.DIRECT_BYTES = torch_dist.OWNED_BYTES = 0
    found: dict[str, Any] = {"undisturbed": None, "weights": None, "raised": None, "steps": 0}
    points = Points(scenario, rank, folder)
    place = folder / f"store-{attempt}"
    dist.init_process_group(
        "gloo", store=_store(scenario, place, rank), rank=rank, world_size=scenario.world,
        timeout=timedelta(seconds=scenario.timeout_seconds),
    )  # fmt: skip
    if attempt == 1 and scenario.job.front != "auto":
        found["undisturbed"] = Training(scenario, rank, folder, points).to_its_end()
    training = None
    try:
        if attempt == 1:
            points.arm()
        points.step = -1
        training = Training(scenario, rank, folder, points)
        if attempt == 2:
            training.resume()
        found["weights"] = training.to_its_end(saves=True)
    except BaseException as error:
        give_back()
        found["raised"] = {
            "kind": type(error).__name__,
            "ours": isinstance(error, gradwire.errors.GradwireError),
            "text": str(error),
            "at": time.monotonic(),
            "trace": traceback.format_exc(),
        }
    found["steps"] = points.step + 1
    return found


class Training:
    """A model, its optimizer, and what exchanges its gradients."""

    def __init__(self, scenario: Scenario, rank: int, folder: Path, points: Points) -> None:
        self._scenario, self._rank, self._folder, self._points = scenario, rank, folder, points
        self._job, self._first = scenario.job, 0
        self._model = _model(points)
        wrapped, group = self._wrapped()
        self._optimizer = _optimizer(self._job, wrapped)
        self._scaler = (
            GradScaler("cpu", init_scale=256.0) if self._job.precision == "scaler" else None
        )
        points.at("attach")
        with _other_version(points):
            self._handle = self._attached(wrapped, group)
        self._wrapped_model = wrapped
        faults = points.in_lanes()
        for handle in self._handles() if faults else ():
            inject(handle, *faults)
        next(self._model.parameters()).register_post_accumulate_grad_hook(
            lambda _: points.at("hook")
        )

    def _wrapped(self) -> tuple[nn.Module, Any]:
        """Returns the module that is trained, and the group that exchanges."""
        if self._job.front == "ddp":
            return DistributedDataParallel(self._model), None
        if self._job.front == "fsdp":
            shape = (2, self._scenario.world // 2)
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("slow", "fast"))
            for name in ("slow", "fast"):  # a mesh gives its groups half an hour
                set_timeout(self._scenario.timeout_seconds, mesh[name].get_group())
            return fully_shard(self._model, mesh=mesh["fast"]), mesh["slow"].get_group()
        return self._model, None

    def _attached(self, model: nn.Module, group: Any) -> Any:
        job, other = self._job, self._points.differs and self._scenario.kind
        options: dict[str, Any] = {
            "timeout_seconds": self._scenario.timeout_seconds, "process_group": group,
            "check_every": 1,
        }  # fmt: skip
        strategy = "topk(0.2)+ef | allgather" if other == "other plan" else job.strategy
        if other == "other seed":
            options["seed"] = 7
        if other == "other clipping":
            options["clip_norm"] = 3.0
        if job.front == "auto":
            return gradwire.attach(model, "auto", optimizer=self._optimizer, **options)
        options |= {"bucket_bytes": 600, "lanes": job.lanes}
        if job.front == "local":
            return LocalSteps(model, self._optimizer, 2, strategy, **options)
        return gradwire.attach(model, strategy, scaler=self._scaler, **options)

    def _handles(self) -> list[Any]:
        local = isinstance(self._handle, LocalSteps)
        return [own.handle for own in self._handle.fragments] if local else [self._handle]

    def to_its_end(self, saves: bool = False) -> str:
        """Trains. Returns the digest of this rank's weights."""
        for step in range(self._first, self._job.steps):
            self._points.step = step
            try:
                self._step(step)
            except ToldTo:
                if self._scenario.kind != "misses a backward":
                    raise
            if saves and (step + 1) % SAVES_AFTER == 0 and self._saves:
                with contextlib.suppress(OSError):  # training goes on without this checkpoint
                    self._save(step + 1)
                give_back()
        if isinstance(self._handle, LocalSteps):
            self._handle.synchronize()
        self._handle.detach()
        return digest(self._tensors())

    def _step(self, step: int) -> None:
        points, model = self._points, self._wrapped_model
        self._optimizer.zero_grad()
        for micro in range(self._job.micro):
            is_last = micro == self._job.micro - 1
            points.at("forward")
            with contextlib.nullcontext() if is_last else self._handle.no_sync():
                loss = self._loss(model, step * self._job.micro + micro)
                (self._scaler.scale(loss) if self._scaler else loss).backward()
        points.at("optimizer")
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()

    def _loss(self, model: nn.Module, number: int) -> Tensor:
        dice = torch.Generator().manual_seed(1000 * number + self._rank)
        inputs = torch.randn(8, WIDTH, generator=dice)
        bf16 = self._job.precision == "bf16"
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss = model(inputs).square().mean()
        return loss * float("nan") if self._points.poisons else loss

    # -- checkpoints -----------------------------------------------------------------------

    @property
    def _saves(self) -> bool:
        return self._job.front not in ("fsdp", "auto")

    def _save(self, steps: int) -> None:
        """Writes this rank's checkpoint beside its place, and moves it there once it is whole."""
        held = {
            "model": self._model.state_dict(), "optimizer": self._optimizer.state_dict(),
            "gradwire": self._handle.state_dict(),
            "scaler": self._scaler.state_dict() if self._scaler else {},
        }  # fmt: skip
        room = io.BytesIO()
        torch.save(held, room)
        data, path = room.getvalue(), self._folder / f"saved-{steps}-{self._rank}"
        with open(path.with_suffix(".new"), "wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            self._points.at("save")
            file.write(data[len(data) // 2 :])
        path.with_suffix(".new").rename(path)

    def resume(self) -> None:
        """Loads the last checkpoint that is there of all ranks, if there is one."""
        everybody = range(self._scenario.world)
        for steps in range(self._job.steps, 0, -1):
            if all((self._folder / f"saved-{steps}-{r}").exists() for r in everybody):
                path = self._folder / f"saved-{steps}-{self._rank}"
                held = torch.load(path, weights_only=True)
                self._model.load_state_dict(held["model"])
                self._optimizer.load_state_dict(held["optimizer"])
                self._handle.load_state_dict(held["gradwire"])
                if self._scaler:
                    self._scaler.load_state_dict(held["scaler"])
                self._first = steps
                return

    def _tensors(self) -> list[Tensor]:
        """Returns the weights that all ranks of the exchange share."""
        own = [p.detach() for p in self._model.parameters()]
        return [p.to_local() if hasattr(p, "to_local") else p for p in own]


def digest(tensors: list[Tensor]) -> str:
    """Returns a digest of the tensors' bits."""
    total = hashlib.sha256()
    for x in tensors:
        total.update(x.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


# -- the model ----------------------------------------------------------------------------------

WIDTH = 24


class _Passing(torch.autograd.Function):
    """The identity; its backward is a point of the job."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, points: Points) -> Tensor:
        ctx.points = points
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.points.at("backward")
        return gradients[0], None


class Model(nn.Module):
    """Three matrices with biases and a normalization, which lie in several buckets."""

    def __init__(self, points: Points, wide: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, 17), nn.LayerNorm(17)
        self.second, self.third = nn.Linear(17, wide), nn.Linear(wide, 5)
        self._points = points

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        return self.third(_Passing.apply(torch.tanh(self.second(x)), self._points))


def _model(points: Points) -> nn.Module:
    torch.manual_seed(3)
    other = points.scenario.kind if points.differs else ""
    model = Model(points, 12 if other == "other model" else 11)
    return model.to(torch.float64) if other == "other dtype" else model


def _optimizer(job: Job, model: nn.Module) -> torch.optim.Optimizer:
    if "+muon" in job.strategy:
        return gradwire.optim.Muon.of(model, lr=1e-3)
    if "+adam" in job.strategy:
        return gradwire.optim.AdamW(model.parameters(), 1e-3)
    if job.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), 1e-3)
    if "dgc" in job.strategy:
        return gradwire.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return torch.optim.SGD(model.parameters(), 0.05)


@contextlib.contextmanager
def _other_version(points: Points) -> Iterator[None]:
    """A context in which this rank writes messages of the next version, if it shall differ so."""
    if not (points.differs and points.scenario.kind == "other version"):
        yield
        return
    with mock.patch.object(agreed, "WIRE_VERSION", wire.WIRE_VERSION + 1):
        yield


def _store(scenario: Scenario, place: Path, rank: int) -> Store:
    """Makes a FileStore, or a TCPStore that rank 0 hosts; a file tells its address."""
    if scenario.job.store == "file":
        return FileStore(str(place), scenario.world)
    address, limit = place.with_suffix(".address"), timedelta(seconds=30)
    if rank == 0:
        host = os.environ["MASTER_ADDR"]
        store = TCPStore(host, 0, scenario.world, True, limit, wait_for_workers=False)
        address.with_suffix(".new").write_text(json.dumps([host, store.port]))
        address.with_suffix(".new").rename(address)
        return store
    while not address.exists():
        time.sleep(0.01)
    host, port = json.loads(address.read_text())
    return TCPStore(host, port, scenario.world, False, limit)
