"""What must not come between a backward and its optimizer's step: each case is refused or warned
of."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, fingerprint, loss_of, raised, small
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import UsageError

TOPK = "topk(0.1)+ef | allgather"


class Fails(torch.autograd.Function):
    """Identity, whose backward fails."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise RuntimeError("as told")


class Heads(nn.Module):
    """A trunk and two heads, one of which is used; backward may fail between trunk and head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(4, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, head: int, fails: bool = False) -> Tensor:
        y = self.trunk(torch.ones(2, 4) * (dist.get_rank() + 1))
        return self.heads[head](Fails.apply(y) if fails else y).square().mean()


def aborted(strategy: str) -> None:
    """After an aborted backward the next one, by another head, would be this rank's alone."""
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached(model, strategy) as handle:
        for head in (0, 1):
            optimizer.zero_grad()
            model(head).backward()
            optimizer.step()
        before = fingerprint(model.parameters())
        optimizer.zero_grad()
        assert "as told" in raised(lambda: model(0, fails=True).backward(), RuntimeError)
        assert "aborted" in raised(optimizer.step)
        optimizer.zero_grad()
        assert "was aborted" in raised(lambda: model(1).backward())
        assert "was aborted" in raised(handle.synchronize)
        assert fingerprint(model.parameters()) == before
    with attached(model, strategy):  # attached again on all ranks, it trains
        optimizer.zero_grad()
        model(1).backward()
        optimizer.step()


@pytest.mark.parametrize("strategy", [TOPK, "none | allreduce"])
def test_after_an_aborted_backward(three: Ranks, strategy: str) -> None:
    three.run(aborted, strategy)


def steps_inside_backward(first: bool) -> None:
    """Each parameter's optimizer steps from its own hook, as in memory-saving recipes."""
    model = small()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def hook() -> None:
        for p, optimizer in optimizers.items():
            p.register_post_accumulate_grad_hook(lambda _, own=optimizer: own.step())

    if first:
        hook()
    with attached(model, "none | allreduce"):
        if not first:
            hook()
        before = fingerprint(model.parameters())
        early = pytest.warns(UserWarning, match="has seen no gradients")
        with early if first else nullcontext():
            told = raised(lambda: loss_of(model).backward())
        assert "inside backward()" in told
        assert first or fingerprint(model.parameters()) == before


@pytest.mark.parametrize("first", [False, True])
def test_an_optimizer_that_steps_inside_backward(three: Ranks, first: bool) -> None:
    three.run(steps_inside_backward, first)


def replaced(how: str) -> str:
    """The error when an optimizer steps parameters that took the place of others: attached ones,
    in a new optimizer or the one that has stepped before, or frozen ones."""
    model = small()
    model.two.requires_grad_(how != "frozen")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached(model, TOPK):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        if how == "frozen":
            model.two = nn.Linear(13, 3).requires_grad_(False)
        else:
            model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
        if how == "new optimizer":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        else:
            optimizer.param_groups[0]["params"] = [*model.parameters()]
        if how == "frozen":
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()
            model.two = nn.Linear(13, 3)
            optimizer.param_groups[0]["params"] = [*model.parameters()]
        loss_of(model).backward()
        return raised(optimizer.step)


@pytest.mark.parametrize("how", ["new optimizer", "same optimizer", "frozen"])
def test_parameters_that_took_the_place_of_others(three: Ranks, how: str) -> None:
    name = "two.weight" if how == "frozen" else "conv.weight"
    for told in three.run(replaced, how):
        assert f"'{name}' is a new one now" in told


def came_later(how: str) -> str:
    """The error when an optimizer steps a layer that was added later; attached too, it may be
    stepped."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached(model, "none | allreduce"):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        if how == "added":
            model.more = nn.Linear(3, 3)
            optimizer.add_param_group({"params": model.more.parameters()})
        else:
            nn.utils.parametrizations.weight_norm(model.one)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model).backward()
        if how == "added":
            model.more(torch.ones(1, 3)).sum().backward()
        told = raised(optimizer.step)
        assert raised(optimizer.step) == told, "and again"
        if how == "added":
            with attached(model.more, "none | allreduce"):
                model.more(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        return told


@pytest.mark.parametrize("how", ["added", "reparametrized"])
def test_parameters_that_came_later(three: Ranks, how: str) -> None:
    name = "more.weight" if how == "added" else "one.parametrizations.weight.original0"
    for told in three.run(came_later, how):
        assert f"'{name}' was added later" in told


def not_exchanged() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD([*model.parameters()][:2], lr=0.1)
    with attached(model, TOPK) as handle:
        for number in range(2):
            optimizer.zero_grad()
            loss_of(model, number).backward()
            optimizer.step()
            other.step()  # by the same averages
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()  # no gradient was made
        optimizer.zero_grad()
        handle.flush()
        optimizer.step()
        optimizer.zero_grad()
        with handle.no_sync():
            loss_of(model, 2).backward()
        with pytest.warns(UserWarning, match="without an exchange between, after 2 with one"):
            optimizer.step()
        optimizer.step()  # one warning is enough: warnings are errors here


def test_a_warning_if_gradients_are_not_exchanged_any_more(three: Ranks) -> None:
    three.run(not_exchanged)


class Skips(nn.Module):
    """Layers in DDP buckets of their own, one of which may be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(30, 30) for _ in range(4)])

    def forward(self, x: Tensor, without: int | None = None) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = x if i == without else layer(x)
        return x.square().mean()


def unused(without: int) -> None:
    """DDP was not told to look for unused parameters: gradwire says so, then DDP, and no rank
    hangs."""
    model = DistributedDataParallel(Skips(), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 30) * (dist.get_rank() + 1)
    with attached(model, TOPK):
        for step in range(5):
            optimizer.zero_grad()
            if step == 4:
                told = raised(lambda: model(x), RuntimeError)
                assert "Expected to have finished reduction" in told
                break
            model(x, without if step == 3 else None).backward()
            if step == 3 and without < 3:  # the first bucket has come, the last has not
                assert "find_unused_parameters=True" in raised(optimizer.step)
            else:
                none_came = pytest.warns(UserWarning, match="twice without an exchange")
                with none_came if step == 3 else nullcontext():
                    optimizer.step()


@pytest.mark.parametrize("without", [0, 1, 3])
def test_ddp_with_a_parameter_that_was_not_used(three: Ranks, without: int) -> None:
    three.run(unused, without)


def detached() -> None:
    handle = gradwire.attach(small(), TOPK)
    state = handle.state_dict()
    assert handle.attached
    handle.detach()
    assert not handle.attached
    for call in (handle.reset, handle.flush, lambda: handle.load_state_dict(state)):
        assert "detached" in raised(call, UsageError)


def test_a_detached_handle(three: Ranks) -> None:
    three.run(detached)
