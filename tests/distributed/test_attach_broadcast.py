"""attach makes the models of all ranks equal, however their tensors lie in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, from_all
from torch import Tensor, nn


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
