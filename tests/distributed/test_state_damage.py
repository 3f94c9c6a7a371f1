"""States that are damaged anywhere are refused by gradwire's own errors, and change nothing."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradwire
from gradwire import LocalSteps, Warmup
from gradwire.errors import PlanError, UsageError
from suites import first

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from damage import NASTY, damaged

pytestmark = pytest.mark.filterwarnings("ignore::gradwire.soundness.SoundnessWarning")

TENSORS = (*NASTY, torch.zeros(3), torch.zeros((), dtype=torch.int64))


@pytest.fixture(autouse=True, scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one rank, in this process."""
    store = tmp_path_factory.mktemp("alone") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def odd(found: Any) -> tuple[Any, ...]:
    """Variants of a tensor that differ in shape, dtype, layout, device or values."""
    if not isinstance(found, Tensor):
        return ()
    return (
        found.flatten()[:-1], found.to(torch.int32), found.to_sparse(), found.to("meta"),
        found.double(), torch.full_like(found, torch.nan), found[None],
    )  # fmt: skip


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(6, 8)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(1, 6)).square().sum().backward()
        optimizer.step()


def same(one: Any, other: Any) -> bool:
    """Whether both are equal, bit by bit."""
    if isinstance(one, Tensor):
        return bool(torch.equal(one, other)) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def check(
    good: Any, load: Callable[[Any], None], state: Callable[[], Any], work: Callable[[], None],
    errors: tuple[type[Exception], ...],
) -> int:  # fmt: skip
    """The number of damaged states that are refused; the others must work."""
    refused, before = 0, copy.deepcopy(state())
    for what, bad in damaged(good, TENSORS, odd):
        try:
            load(copy.deepcopy(bad))  # torch keeps the loaded tensors
            work()
            load(copy.deepcopy(good))
        except errors:
            refused += 1
        except Exception as error:
            raise AssertionError(what) from error
        assert same(state(), before), f"{what}: changed"
    return refused


HANDLES = {
    "topk(0.1)+ef | allgather": {"warmup": Warmup(4, [0.5, 0.3]), "clip_norm": 1.0},
    "qsgd(4)+dgc(momentum=0.9) | alltoall": {"seed": 3},
    "none | powersgd(2)": {},
}


@pytest.mark.once
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("strategy", HANDLES)
def test_a_handle_refuses_what_is_damaged(strategy: str, strict: bool) -> None:
    net = model()
    handle: Any = gradwire.attach(net, strategy, **HANDLES[strategy])
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.0)
    train(net, optimizer, 2)
    good = copy.deepcopy(handle.state_dict())
    handle.load_state_dict(good)
    refused = check(
        good, lambda bad: handle.load_state_dict(bad, strict=strict), handle.state_dict,
        lambda: train(net, optimizer, 1), (PlanError,),
    )  # fmt: skip
    handle.detach()
    assert refused > 200


def test_accordion_refuses_what_is_damaged() -> None:
    net = model()
    handle = gradwire.attach(net, "topk(0.1)+ef | allgather")
    accordion = gradwire.Accordion(handle, 0.5, every=1)

    def work() -> None:
        net.zero_grad()
        net(torch.ones(1, 6)).square().sum().backward()
        accordion.step(0.01)

    work()
    good = accordion.state_dict()
    refused = check(good, accordion.load_state_dict, accordion.state_dict, work, (UsageError,))
    with pytest.raises(UsageError, match="is needed here; got a handle's state"):
        accordion.load_state_dict(handle.state_dict())
    handle.detach()
    assert refused > 30


@pytest.mark.parametrize("fragments", first([1, 2]))
def test_local_steps_refuse_what_is_damaged(fragments: int) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    local = LocalSteps(net, optimizer, 2, "topk(0.5)+ef | allgather", fragments=fragments)
    train(net, optimizer, 4)
    good = copy.deepcopy(local.state_dict())
    weights = copy.deepcopy(net.state_dict())

    def work() -> None:
        net.load_state_dict(weights)
        train(net, optimizer, 2)

    def state() -> Any:
        return local.state_dict()

    errors = PlanError, UsageError
    assert check(good, local.load_state_dict, state, work, errors) > 250 * fragments
    local.detach()


MAKES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda own: gradwire.optim.SGD(own, 0.01, 0.9, momentum_kept=False, weight_decay=0.1),
    "adam": lambda own: gradwire.optim.OneBitAdam(own, 0.01, freeze_step=3, momentum_kept=True),
}


@pytest.mark.parametrize("name", MAKES)
def test_optimizers_refuse_what_is_damaged(name: str) -> None:
    net = model()
    optimizer = MAKES[name](net.parameters())
    train(net, optimizer, 2)

    def work() -> None:
        with contextlib.suppress(UsageError):  # a field of torch's SGD may fail in the step
            train(net, optimizer, 1)

    good = copy.deepcopy(optimizer.state_dict())
    load, state = optimizer.load_state_dict, optimizer.state_dict
    assert check(good, load, state, work, (UsageError,)) > 100
