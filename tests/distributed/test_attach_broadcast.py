"""attach makes the models of all ranks equal, however their tensors lie in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, from_all
from torch import Tensor, nn

import gradwire
from gradwire.errors import PlanError


def strided(memory: Tensor) -> Tensor:
    return memory[::2]


def expanded(memory: Tensor) -> Tensor:
    return memory[:2].expand(3, 2)


def scalar_expanded(memory: Tensor) -> Tensor:
    return memory[0].expand(100_000)


def turned(memory: Tensor) -> Tensor:
    return memory.view(4, 4).t()[:, :3]


VIEWS = [strided, expanded, scalar_expanded, turned]


def with_buffer(view: Any) -> None:
    """A buffer gets rank 0's elements; the memory between or behind them stays as it was."""
    memory = torch.arange(16.0) + 100 * dist.get_rank()
    inside = torch.zeros(16)
    view(inside).fill_(1.0) if view is not scalar_expanded else inside[0].fill_(1.0)
    wanted = torch.where(inside.bool(), torch.arange(16.0), memory)
    model = nn.Linear(2, 2)
    model.register_buffer("own", view(memory))
    with attached(model, "none | allreduce"):
        assert torch.equal(memory, wanted)


@pytest.mark.parametrize("view", VIEWS, ids=lambda v: v.__name__)
def test_memory_beside_a_buffer_stays(three: Ranks, view: Any) -> None:
    three.run(with_buffer, view)


def parameters_with_gaps() -> None:
    model = nn.Module()
    model.w = nn.Parameter((torch.arange(40.0) + 100 * dist.get_rank())[::2])
    with attached(model, "none | allreduce"):
        assert torch.equal(model.w.detach(), torch.arange(40.0)[::2])


def test_a_parameter_with_gaps(three: Ranks) -> None:
    three.run(parameters_with_gaps)


def layouts_that_differ() -> None:
    """Rank 0's weights are channels_last in memory, the others' are not."""
    torch.manual_seed(dist.get_rank())
    model = nn.Conv2d(3, 4, 3, bias=False)
    if dist.get_rank() == 0:
        model = model.to(memory_format=torch.channels_last)
    mine = model.weight.detach().clone()
    with attached(model, "none | allreduce"):
        first, *others = from_all(model.weight.detach())
        assert all(torch.equal(other, first) for other in others)
        assert torch.equal(model.weight, mine) == (dist.get_rank() == 0)


def test_layouts_may_differ(three: Ranks) -> None:
    three.run(layouts_that_differ)


def of_dtype(dtype: torch.dtype) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("own", torch.full((5,), float(dist.get_rank() + 1)).to(dtype))
    with attached(model, "none | allreduce"):
        assert torch.equal(model.own.float(), torch.ones(5))


@pytest.mark.parametrize(
    "dtype", [torch.int16, torch.bool, torch.float8_e4m3fn, torch.float64, torch.int64], ids=str
)
def test_dtypes_that_backends_do_not_know(three: Ranks, dtype: torch.dtype) -> None:
    three.run(of_dtype, dtype)


def differs(kind: str) -> None:
    rank = dist.get_rank()
    model = nn.Linear(2, 2)
    if kind == "shape":
        model.register_buffer("own", torch.ones(3 + rank))
    elif kind == "dtype":
        model.register_buffer("own", torch.ones(4).to(torch.int32 if rank else torch.float32))
    elif kind == "number" and rank:
        model.register_buffer("own", torch.ones(3))
    elif kind == "frozen":
        model.own = nn.Linear(2, 2 + rank).requires_grad_(False)
    before = [x.clone() for x in model.state_dict().values()]
    with pytest.raises(PlanError, match="the same buffers and frozen parameters"):
        gradwire.attach(model, "none | allreduce", timeout_seconds=20.0)
    assert all(map(torch.equal, before, model.state_dict().values()))


@pytest.mark.parametrize("kind", ["shape", "dtype", "number", "frozen"])
def test_what_differs_beside_the_plan_is_refused(two: Ranks, kind: str) -> None:
    """A buffer of another dtype got the bits of rank 0's; a further one hung."""
    two.run(differs, kind)
