"""Small models, data that differs by rank and step, and shorthands that tests share."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradwire
from gradwire import Handle, Plan, Strategy
from gradwire.errors import UsageError
from gradwire.planner import correction
from gradwire.planner.profile import Profile
from gradwire.tuning import auto, contention, probe, race

STRATEGIES = (
    "none | allreduce",
    "fp16 | allreduce",
    "bf16 | allreduce",
    "topk(0.1)+ef | allgather",
    "dgc(0.1) | allgather",
)


class Small(nn.Module):
    """Convolution, normalization, two matrices: 1- to 4-dimensional parameters of odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 5, 3)
        self.norm = nn.LayerNorm(45)
        self.one = nn.Linear(45, 13)
        self.two = nn.Linear(13, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).flatten(1))
        return self.two(torch.tanh(self.one(y)))


def small(seed: int = 0) -> Small:
    """A model with the same weights on every rank."""
    torch.manual_seed(seed)
    return Small()


def batch(step: int = 0, rank: int | None = None, rows: int = 4) -> Tensor:
    """Inputs that differ for every rank and step."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, 2, 5, 5, generator=generator)


def loss_of(model: nn.Module, step: int = 0, rank: int | None = None) -> Tensor:
    return model(batch(step, rank)).square().mean()


def train(model: nn.Module, steps: range, lr: float = 0.05) -> None:
    """Trains by SGD with momentum, whether the optimizer or the plan keeps it."""
    optimizer = gradwire.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=1e-3)
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def zero(model: nn.Module, kind: type, **options: Any) -> torch.optim.Optimizer:
    """An optimizer with which each rank steps some of the parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, when it is imported
        from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(model.parameters(), kind, lr=0.05, **options)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all gradients, by name; DDP's prefix is dropped."""
    return {
        name.removeprefix("module."): p.grad.detach().clone()
        for name, p in model.named_parameters()
        if p.grad is not None
    }


def local_gradients(model: nn.Module, step: int = 0) -> dict[str, Tensor]:
    """This rank's gradients as they would be without any exchange; the model is not touched."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss_of(model, step), list(named.values()))
    return {name.removeprefix("module."): g for name, g in zip(named, found)}


def entry(handle: Handle) -> dict[str, Any]:
    """This rank's own entry in the handle's state."""
    ranks: Any = handle.state_dict()["ranks"]
    (own,) = ranks.values()
    return dict(own)


def from_all(x: Tensor) -> list[Tensor]:
    """Every rank's tensor, in rank order. Collective, over the default group."""
    x = x.contiguous()
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


def mean(x: Tensor) -> Tensor:
    """The mean over ranks, summed in rank order and in fp32, with one division. Collective."""
    total = torch.zeros_like(x, dtype=torch.float32)
    for part in from_all(x):
        total += part.float()
    return (total / dist.get_world_size()).to(x.dtype)


def fingerprint(tensors: Any) -> str:
    """A hash of the tensors' bits."""
    whole = hashlib.sha256()
    for x in tensors:
        data = x.detach().contiguous().flatten()
        whole.update(bytes(data.view(torch.uint8).tolist()))
    return whole.hexdigest()


@contextmanager
def attached(module: nn.Module, plan: Any, **options: Any) -> Iterator[Handle]:
    """Attaches, and detaches whatever happens."""
    handle = gradwire.attach(module, plan, **{"timeout_seconds": 20.0, **options})
    try:
        yield handle
    finally:
        handle.detach()


_BRIEF = (
    (auto, {"_WATCHED": (3, 3), "_CORRECTIONS": 1, "Race": partial(race.Race, rounds=(2, 2))}),
    (race, {"_UNCOUNTED": 1, "_COUNTED": 1}),
    (correction, {"_FACTORS": (0.5, 1.0, 2.0)}),
    (probe, {"SECONDS": 0.01, "PASSES": 1, "WARM_UP": 1, "FEWEST": 1, "_MANY": 4, "_SMALL": 256}),
    (contention, {
        "_SECONDS": 0.02, "_LAYERS": 4, "_WIDTH": 32, "_MOVED": 1 << 14, "_LOCAL": 1 << 14,
        "_TURNS": 2, "_PAIRS": 1, "_FEWEST": 2,
    }),
)  # fmt: skip


@contextmanager
def brief() -> Iterator[None]:
    """Measurements are the smallest, races the shortest, and one race may follow the first: what
    counts is that ranks decide alike."""
    with ExitStack() as patches:
        for module, values in _BRIEF:
            patches.enter_context(patch.multiple(module, **values))
        yield


@contextmanager
def won_by(strategy: str, races: bool = False) -> Iterator[None]:
    """A plan of this strategy wins, whatever was measured; with `races`, after a race."""
    choose = auto.Tuner._choose

    def decided(
        tuner: auto.Tuner, found: Profile, rival: Plan | None = None
    ) -> Generator[None, None, Plan]:
        if races:  # without the rival: the profile does not know the plan that has won
            yield from choose(tuner, found)
        return auto.at_once(found, Strategy.parse(strategy))

    with patch.object(auto.Tuner, "_choose", decided):
        yield


def residuals(handle: Handle) -> dict[str, Tensor]:
    """A copy of all residuals, by parameter name."""
    state = entry(handle)["state"]
    return {n: v["residual"].clone() for n, v in state.items() if "residual" in v}


def close(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert list(found) == list(wanted)
    for name, g in wanted.items():
        torch.testing.assert_close(found[name], g, rtol=tolerance, atol=tolerance, msg=name)


def raised(function: Any, kind: type[BaseException] = UsageError) -> str:
    """The text of the error that the function must raise."""
    try:
        function()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")
