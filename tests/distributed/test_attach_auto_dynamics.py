"""plan="auto" where plans keep the momentum, or the moments: from the first step to the last."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks
from small import brief, fingerprint, loss_of, small

import gradwire
from gradwire.dynamics import Dynamics
from gradwire.errors import PlanError
from gradwire.tuning.attach import dynamics_of
from suites import first

PATIENCE = 4000  # steps: three races of twenty rounds
DGC, EF21 = "topk(0.1)+dgc | allgather", "topk(0.1)+ef21 | allgather"
ADAM = "lloyd(2)+adam | allgather"
GIVEN = {"dgc": [DGC, "bf16 | allreduce"], "ef21": [EF21], "adam": None, "momentum": [
    "int8+momentum | allgather", "topk(0.1)+ef21(0.9) | allgather"]}  # fmt: skip
WHOLE = {"dgc": "none+server_momentum | allreduce", "ef21": "none | allreduce",
         "adam": "none+adam | allreduce", "momentum": "none+momentum | allreduce"}  # fmt: skip


def optimizer_of(kind: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if kind == "adam":
        return gradwire.optim.AdamW(model.parameters(), lr=0.003)
    return gradwire.optim.SGD(model.parameters(), lr=0.01, momentum=0.9 * (kind != "ef21"))


def step(model: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(model, number).backward()
    optimizer.step()


@brief()
def settled(kind: str) -> tuple[Any, ...]:
    """What there was from the first step on, who raced, and what the model has become."""
    model = small()
    optimizer = optimizer_of(kind, model)
    handle: Any = gradwire.attach(model, "auto", strategies=GIVEN[kind], optimizer=optimizer)
    own, began = dynamics_of(handle.plan), f"{handle.plan.main_strategy}"
    raced, number = set[Dynamics](), 0
    while not handle.tuner.is_settled and number < PATIENCE:
        step(model, optimizer, number)
        raced.add(dynamics_of(handle.plan))
        number += 1
    others = {Dynamics.of(s) for s in handle.plan.strategies} - {own, own.of_vectors}
    kept = {f"{key}" for state in handle.state_dict()["ranks"].values()
            for of_one in state["state"].values() for key in of_one}  # fmt: skip
    handle.detach()
    return (
        number < PATIENCE, began, raced == {own}, not others, sorted(kept),
        fingerprint(model.parameters()),
    )  # fmt: skip


@pytest.mark.parametrize("kind", first(["dgc", "adam", "ef21", "momentum"], 2))
def test_all_that_race_mean_the_same_to_the_optimizer(two: Ranks, kind: str) -> None:
    one, other = two.run(settled, kind)
    assert one == other, "weights are the same to the bit"
    is_settled, began, alike, stays, kept, _ = one
    assert is_settled
    assert began == WHOLE[kind]
    assert alike
    assert stays
    moments = {"dgc": {"velocity"}, "adam": {"exp_avg", "exp_avg_sq"}, "momentum": {"velocity"}}
    assert moments.get(kind, set()) <= set(kept), "they are saved"


def resumed(kind: str) -> tuple[Any, ...]:
    """Moments before and after, of a job that is resumed while it begins anew."""
    model = small()
    optimizer = optimizer_of(kind, model)
    handle: Any = gradwire.attach(model, "auto", strategies=GIVEN[kind], optimizer=optimizer)
    for number in range(3):
        step(model, optimizer, number)
    saved, memory = handle.state_dict(), handle._session.ledger.memory
    before = {name: dict(state) for name, state in memory.items()}
    handle.detach()
    other: Any = gradwire.attach(
        model, "auto", strategies=GIVEN[kind], optimizer=optimizer_of(kind, model)
    )
    other.load_state_dict(saved)
    after = other._session.ledger.memory
    same = all(torch.equal(x, after[n][k]) for n, own in before.items() for k, x in own.items())
    steps = other.state_dict()["step"]
    other.detach()
    return same, steps, sum(map(len, before.values())) > 0


@pytest.mark.parametrize("kind", first(["adam", "dgc"], 1))
def test_moments_are_resumed(two: Ranks, kind: str) -> None:
    assert two.run(resumed, kind) == [(True, 3, True)] * 2


def refused(strategies: list[str]) -> str:
    try:
        gradwire.attach(small(), "auto", strategies=strategies)
    except PlanError as error:
        return str(error)
    return "attached"


@pytest.mark.parametrize(
    ("strategies", "said"),
    [
        ([DGC, "topk(0.1)+ef | allgather"], "some leave the momentum to it and some keep"),
        (["sign+momentum | vote"], "sends directions, which no learning rate fits"),
        (["lloyd(2)+muon | alltoall"], "treated alike"),
    ],
)
def test_what_cannot_follow_each_other_is_refused(
    two: Ranks, strategies: list[str], said: str
) -> None:
    for text in two.run(refused, strategies):
        assert said in text


@brief()
def warm() -> tuple[str, int, bool]:
    """By what the first steps go, and when the first plan races."""
    model = small()
    handle: Any = gradwire.attach(
        model, "auto", strategies=[DGC], warmup=gradwire.Warmup(60, (0.5,)),
        optimizer=(optimizer := optimizer_of("dgc", model)),
    )  # fmt: skip
    began, number = handle.plan.digest(), 0
    while handle.plan.digest() == began and number < PATIENCE:
        step(model, optimizer, number)
        number += 1
    measured = handle.tuner.profile is not None
    handle.detach()
    return f"{began}", number, measured


def test_a_plan_is_adopted_after_the_warm_up(two: Ranks) -> None:
    one, other = two.run(warm)
    assert one[1:] == other[1:]
    assert one[1] >= 60
    assert one[2]
