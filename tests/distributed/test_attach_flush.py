"""flush: residuals arrive whole, at the learning rate of the step that the flush is for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import (
    attached,
    entry,
    fingerprint,
    from_all,
    gradients,
    small,
    train,
)
from torch import nn
from torch.amp import GradScaler

import gradwire
from gradwire.errors import UsageError
from suites import first

DGC = "dgc(0.1) | allgather"


def flushed(strategy: str) -> None:
    """One all-reduce brings all residuals; none is left then, and momentum stays."""
    model, world = small(), dist.get_world_size()
    with attached(model, strategy) as handle:
        train(model, range(3))
        waiting = handle._session.ledger.waiting()
        velocity = {n: s["velocity"].clone() for n, s in entry(handle)["state"].items()
                    if "velocity" in s}  # fmt: skip
        for p in model.parameters():
            p.grad = None
        handle.flush()
        assert waiting
        for name, found in gradients(model).items():
            wanted = torch.zeros_like(found)
            if name in waiting:
                wanted = sum(from_all(waiting[name])).view_as(found) / world  # type: ignore[union-attr]
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
        assert not any(float(x.abs().max()) for x in handle._session.ledger.waiting().values())
        for name, u in velocity.items():
            assert torch.equal(entry(handle)["state"][name]["velocity"], u)
        before = gradients(model)
        handle.flush()  # no residual is left, so nothing is added
        for name, x in gradients(model).items():
            assert torch.equal(x, before[name])
        fingerprints = {
            fingerprint([x]) for x in from_all(torch.cat([g.flatten() for g in before.values()]))
        }
        assert len(fingerprints) == 1


@pytest.mark.parametrize(
    "strategy", [DGC, "topk(0.1)+ef | gtopk", "qsgd(4)+ef | alltoall", "powersgd(1)"]
)
def test_flush_empties_what_waits(three: Ranks, strategy: str) -> None:
    three.run(flushed, strategy)


def too_large_to_flush() -> None:
    """float16 cannot hold what waits: it goes on waiting, and is flushed where it fits."""
    model = nn.Linear(16, 8, bias=False).half()
    nn.init.zeros_(model.weight)
    factors, rank = torch.full((8, 16), 2.3e4, dtype=torch.float16), dist.get_rank()
    factors.view(-1)[4 * rank : 4 * rank + 4] = 6.4e4  # each rank sends two of its own
    with attached(model, "topk(0.01)+ef | allgather") as handle:
        for _ in range(3):
            model.weight.grad = None
            (model.weight * factors).sum().backward()
            assert model.weight.grad.isfinite().all()
        model.weight.grad = None
        before = {n: x.clone() for n, x in handle._session.ledger.waiting().items()}
        with pytest.raises(UsageError, match=r"'weight' it reaches 6.9e\+04, beyond float16"):
            handle.flush()
        assert model.weight.grad is None
        after = handle._session.ledger.waiting()
        assert all(torch.equal(x, before[name]) for name, x in after.items())
        handle._session.ledger.scale_waiting("weight", 0.5)
        handle.flush()
        assert model.weight.grad is not None
        assert float(model.weight.grad.max()) > 34_000
        assert not any(x.any() for x in handle._session.ledger.waiting().values())


def test_what_float16_cannot_hold_is_not_flushed(three: Ranks) -> None:
    three.run(too_large_to_flush)


def flushed_after(change: str) -> float:
    """The share of the gradients that did not arrive, though the rate fell or the scale rose
    between the last step and the flush, or in the flush's own step, or the job was resumed."""
    model = nn.Linear(16, 8, bias=False)
    nn.init.zeros_(model.weight)
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1, enabled="scale" in change)
    optimizer, dice = torch.optim.SGD(model.parameters(), 1.0), torch.Generator().manual_seed(1)
    plan: Any = {"plan": "topk(0.05)+ef | allgather"}
    plan["scaler"] = scaler if scaler.is_enabled() else None
    with attached(model, **plan) as handle:
        given = torch.zeros(8, 16)
        for _ in range(3):
            optimizer.zero_grad()
            factors = torch.randn(8, 16, generator=dice)
            given += factors
            scaler.scale((model.weight * factors).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        state = copy.deepcopy(handle.state_dict())
        if "resumed" not in change:
            _flush(change, handle, optimizer, scaler)
    if "resumed" in change:  # into a process that has seen neither the optimizer nor its rate
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        with attached(model, **plan) as handle:
            handle.load_state_dict(state)
            _flush(change, handle, optimizer, scaler)
    return float((model.weight + given).detach().norm() / given.norm())


def _flush(
    change: str, handle: gradwire.Handle, optimizer: torch.optim.Optimizer, scaler: GradScaler
) -> None:
    optimizer.zero_grad()
    for moment in ("rate", "late"):
        if moment in change:
            optimizer.param_groups[0]["lr"] *= 0.125
        if moment == "rate":
            handle.flush()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    for group in optimizer.param_groups:  # it has arrived: a later rate does not apply to it
        group["lr"] *= 0.5
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    optimizer.step()


@pytest.mark.parametrize(
    "change",
    ["nothing", "rate", "scale", "late", "rate late", "resumed rate", "resumed rate scale"],
)
def test_a_flush_brings_what_waited_whole(three: Ranks, change: str) -> None:
    assert max(three.run(flushed_after, change)) < 1e-6


def momentum_flushed(strategy: str, flushes: bool, steps: int) -> float:
    """The share of the gradients that did not arrive, once momentum has died away."""
    model = nn.Linear(16, 8, bias=False)
    nn.init.zeros_(model.weight)
    dice, given = torch.Generator().manual_seed(dist.get_rank()), torch.zeros(8, 16)
    optimizer = gradwire.optim.SGD(model.parameters(), 1.0, momentum=0.9)
    with attached(model, strategy) as handle:
        for step in range(steps):
            factors = torch.randn(8, 16, generator=dice) * (step < 8)
            if step < 8:
                given += sum(from_all(factors)) / dist.get_world_size()
            if step == 8 and flushes:
                optimizer.zero_grad()
                handle.flush()
                optimizer.step()
            optimizer.zero_grad()
            (model.weight * factors).sum().backward()
            optimizer.step()
    return float((model.weight + given).detach().norm() / given.norm())


@pytest.mark.parametrize(
    ("strategy", "steps"),
    first(
        [("topk(0.2)+shared_momentum(0.9) | allgather", 150),
         ("int8+shared_momentum(0.9) | alltoall", 60),
         ("int8+shared_momentum(0.9) | alltoall", 150)], 2,
    ),
)  # fmt: skip
def test_a_flush_goes_through_the_momentum_of_all(three: Ranks, strategy: str, steps: int) -> None:
    """The momentum is built of averages, and the flushed one is one of them."""
    for flushes in (False, True):
        assert max(three.run(momentum_flushed, strategy, flushes, steps)) < 0.02
