"""Residuals keep the learning rate with which they came."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradwire import Plan, Strategy
from gradwire.buckets import Parameter
from gradwire.runtime.rates import TOLERANCE, Rates
from gradwire.testing import Workers
from suites import first

WORLD, STEPS = 3, 400
MATRIX = Parameter("a", (20, 30))
Schedule = Callable[[int], float]


def gradients(step: int) -> list[dict[str, Tensor]]:
    dice = torch.Generator().manual_seed(step)
    common = torch.randn(MATRIX.shape, generator=torch.Generator().manual_seed(1 << 20))
    return [{"a": common + torch.randn(MATRIX.shape, generator=dice)} for _ in range(WORLD)]


def missing(text: str, rate: Schedule, *, follows: bool) -> float:
    """The part of Σ rate · mean gradient that neither arrived nor waits, over the residual's."""
    workers, rates = Workers(Plan.make([MATRIX], Strategy.parse(text)), WORLD), Rates()
    given = arrived = torch.zeros(MATRIX.shape, dtype=torch.float64)
    for step in range(STEPS):
        drawn = gradients(step)
        given = given + rate(step) * sum(g["a"].double() for g in drawn) / WORLD
        arrived = arrived + rate(step) * workers.exchange(drawn)["a"].double()
        if follows:
            rates.follow({"a": rate(step)}, workers.ledgers)
    unit = rates.units["a"] if follows else rate(STEPS - 1)
    waits = sum(ledger.waiting()["a"].double() for ledger in workers.ledgers) / WORLD
    off = given - arrived - unit * torch.as_tensor(waits).view(MATRIX.shape)
    return float(off.norm() / (unit * torch.as_tensor(waits)).norm())


def falls(step: int) -> float:
    return 0.5 * (1 - 0.9 * step / STEPS)


def jumps(step: int) -> float:
    return 0.5 if step < STEPS - 40 else 0.05


TOPK, GTOPK = "topk(0.01)+ef | allgather", 'topk(0.01)+ef | gtopk(variant="butterfly")'


@pytest.mark.parametrize(
    "text",
    first([GTOPK, "powersgd(2)", TOPK, "topk(0.01)+ef | gtopk", "onebit+ef | alltoall"], 2),
)
def test_rate_times_gradient_arrives_or_waits(text: str) -> None:
    """It does up to the tolerance; without `follow` several times the residuals are missing."""
    assert missing(text, falls, follows=True) < 0.3
    assert missing(text, falls, follows=False) > 3


@pytest.mark.parametrize("text", first([TOPK, GTOPK]))
def test_a_jump_costs_what_is_left_of_one_step(text: str) -> None:
    assert missing(text, jumps, follows=True) < 0.3
    assert missing(text, jumps, follows=False) > 3


def test_momentum_is_no_debt() -> None:
    """Only the residual follows the rate, as the optimizer's own momentum does not, either."""
    workers, rates = Workers(Plan.make([MATRIX], Strategy.parse("dgc(0.1)|allgather")), 2), Rates()
    workers.exchange(gradients(0)[:2])
    rates.follow({"a": 1.0}, workers.ledgers)
    before = {key: x.clone() for key, x in workers.ledgers[0].memory["a"].items()}
    rates.follow({"a": 0.25}, workers.ledgers)
    after = workers.ledgers[0].memory["a"]
    assert torch.equal(after["velocity"], before["velocity"])
    assert torch.equal(after["residual"], 4 * before["residual"])


def test_leftovers_follow_too() -> None:
    plan = Plan.make([MATRIX], Strategy.parse("topk(0.1)+ef | allgather"))
    workers, rates = Workers(plan, WORLD), Rates()
    workers.exchange(gradients(0))
    rates.follow({"a": 1.0}, workers.ledgers)
    waited = workers.ledgers[0].waiting()["a"]
    workers.adopt(Plan.make([MATRIX], Strategy.parse("none | allreduce")))
    rates.follow({"a": 0.5}, workers.ledgers)
    assert torch.equal(workers.ledgers[0].leftovers["a"].view(-1), 2 * waited.view(-1))


def test_small_drifts_cost_nothing_and_add_up() -> None:
    workers = Workers(Plan.make([MATRIX], Strategy.parse("topk(0.1)+ef | allgather")), WORLD)
    rates = Rates()
    workers.exchange(gradients(0))
    rates.follow({"a": 1.0}, workers.ledgers)
    before = workers.ledgers[0].waiting()["a"]
    rates.follow({"a": 1 - TOLERANCE / 2}, workers.ledgers)
    assert torch.equal(workers.ledgers[0].waiting()["a"], before)
    rates.follow({"a": 1 - 2 * TOLERANCE}, workers.ledgers)
    wanted = before / (1 - 2 * TOLERANCE)
    torch.testing.assert_close(workers.ledgers[0].waiting()["a"], wanted)


@pytest.mark.parametrize("rate", [0.0, float("nan"), 0.25 * (1 + math.cos(math.pi + 1e-7))])
def test_a_rate_that_says_nothing(rate: float) -> None:
    """A dry step before training has rate 0, and so may a schedule's end before it begins anew."""
    workers = Workers(Plan.make([MATRIX], Strategy.parse("topk(0.1)+ef | allgather")), WORLD)
    rates = Rates()
    workers.exchange(gradients(0))
    if not rate > 0:
        rates.follow({"a": rate}, workers.ledgers)
        assert rates.units == {}
    rates.follow({"a": 0.5}, workers.ledgers)
    before = workers.ledgers[0].waiting()["a"]
    rates.follow({"a": rate}, workers.ledgers)
    rates.follow({"a": 0.5}, workers.ledgers)
    assert torch.equal(workers.ledgers[0].waiting()["a"], before)
