"""plan="auto" where plans keep the momentum or the moments, from the first step to the last."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, batch, brief, fingerprint, from_all, loss_of, small
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Plan
from gradwire.beside import second
from gradwire.dynamics import Dynamics
from gradwire.errors import PlanError, StrategyError
from gradwire.tuning.attach import dynamics_of
from suites import first

PATIENCE = 4000  # steps: three races of twenty rounds
DGC, EF21 = "topk(0.1)+dgc | allgather", "topk(0.1)+ef21 | allgather"
ADAM = "lloyd(2)+adam | allgather"
TURNS = 'lloyd(2)+muon(turns=2, rest="qsgd(4) | alltoall") | alltoall'
GIVEN = {"dgc": ["int8+dgc(mask=False) | allgather"], "ef21": [EF21], "adam": None, "momentum": [
    "int8+momentum | allgather", "topk(0.1)+ef21(0.9) | allgather"],
    "muon": None}  # fmt: skip
WHOLE = {"dgc": "none+server_momentum | allreduce", "ef21": "none | allreduce",
         "adam": "none+adam | allreduce", "momentum": "none+momentum | allreduce",
         "muon": "none+muon | allreduce"}  # fmt: skip


def optimizer_of(kind: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if kind == "adam":
        return gradwire.optim.AdamW(model.parameters(), lr=0.003)
    if kind == "muon":
        return gradwire.optim.Muon.of(model, lr=0.003)
    return gradwire.optim.SGD(model.parameters(), lr=0.01, momentum=0.9 * (kind != "ef21"))


def step(model: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(model, number).backward()
    optimizer.step()


@brief()
def settled(kind: str) -> tuple[Any, ...]:
    """The first strategy, whether all that raced have its dynamics, what is saved, and the
    weights' fingerprint."""
    model = small()
    optimizer = optimizer_of(kind, model)
    handle: Any = gradwire.attach(model, "auto", strategies=GIVEN[kind], optimizer=optimizer)
    own, began = dynamics_of(handle.plan), f"{handle.plan.main_strategy}"
    raced, number = set[Dynamics](), 0
    while not handle.tuner.is_settled and number < PATIENCE:
        step(model, optimizer, number)
        raced.add(dynamics_of(handle.plan))
        number += 1
    main = handle.plan.main_strategy
    theirs = [Dynamics.of(s) for s in [second(main)] if s is not None]
    others = {Dynamics.of(s) for s in handle.plan.strategies} - {own, own.of_vectors, *theirs}
    kept = {f"{key}" for state in handle.state_dict()["ranks"].values()
            for of_one in state["state"].values() for key in of_one}  # fmt: skip
    handle.detach()
    return (
        number < PATIENCE, began, raced == {own}, not others, sorted(kept),
        fingerprint(model.parameters()),
    )  # fmt: skip


@pytest.mark.parametrize("kind", first(["dgc", "muon", "adam", "ef21", "momentum"], 2))
def test_all_that_race_mean_the_same_to_the_optimizer(two: Ranks, kind: str) -> None:
    one, other = two.run(settled, kind)
    assert one == other, "weights are the same to the bit"
    is_settled, began, alike, stays, kept, _ = one
    assert is_settled
    assert began == WHOLE[kind]
    assert alike
    assert stays
    moments = {
        "dgc": {"velocity"}, "adam": {"exp_avg", "exp_avg_sq"}, "momentum": {"velocity"},
        "muon": {"exp_avg", "exp_avg_sq"},
    }  # fmt: skip
    assert moments.get(kind, set()) <= set(kept), "they are saved"


@brief()
def with_an_empty_vector() -> bool:
    """Whether a plan is found that can follow the first one. A vector has no elements."""
    model = small()
    model.register_parameter("empty", torch.nn.Parameter(torch.zeros(0)))
    optimizer = optimizer_of("adam", model)
    handle: Any = gradwire.attach(model, "auto", optimizer=optimizer)
    began, number = handle.plan.strategy_of("empty"), 0
    while not handle.tuner.is_settled and number < PATIENCE:
        step(model, optimizer, number)
        number += 1
    alike = began == handle.plan.strategy_of("empty")
    handle.detach()
    return alike and number < PATIENCE


def test_a_vector_without_elements_is_a_vector(two: Ranks) -> None:
    assert two.run(with_an_empty_vector) == [True, True]


@brief()
def in_turns() -> tuple[Any, ...]:
    """The first plan's strategy, and the feedbacks of the last plan's buckets, as those of turn
    0."""
    model = small()
    optimizer = optimizer_of("muon", model)
    handle: Any = gradwire.attach(model, "auto", strategies=[TURNS], optimizer=optimizer)
    began, number = str(handle.plan.main_strategy), 0
    while not handle.tuner.is_settled and number < PATIENCE:
        step(model, optimizer, number)
        number += 1
    alike = {Dynamics.of(s).feedback for s in handle.plan.strategies}
    handle.detach()
    return number < PATIENCE, began, sorted(alike), fingerprint(model.parameters())


def test_matrices_in_turns_are_tuned_too(two: Ranks) -> None:
    one, other = two.run(in_turns)
    assert one == other
    kept = 'muon(rest="qsgd | alltoall", turns=2)'
    assert one[:2] == (True, f"none+{kept} | allreduce")
    assert one[2] == [kept, "server_adam"]


class Words(torch.nn.Module):
    """An embedding and a head that are larger than the layer between them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden = torch.nn.Embedding(300, 16), torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, 300)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.hidden(self.table(x))))


@brief()
def language(wrapped: bool) -> tuple[Any, ...]:
    """The feedbacks of the hidden matrix in the first and the last plan, whose state loads
    again."""
    torch.manual_seed(0)
    module = Words()
    model = DistributedDataParallel(module) if wrapped else module
    optimizer = gradwire.optim.Muon.of(model, lr=0.003)
    handle: Any = gradwire.attach(model, "auto", optimizer=optimizer)
    began, number = handle.plan.strategy_of("hidden.weight"), 0
    dice = torch.Generator().manual_seed(dist.get_rank())
    while not handle.tuner.is_settled and number < PATIENCE:
        optimizer.zero_grad()
        x = torch.randint(300, (4,), generator=dice)
        torch.nn.functional.cross_entropy(model(x), x).backward()
        optimizer.step()
        number += 1
    ended = handle.plan.strategy_of("hidden.weight")
    saved = handle.state_dict()
    handle.detach()
    again = DistributedDataParallel(module) if wrapped else module
    other: Any = gradwire.attach(again, "auto", optimizer=optimizer)
    other.load_state_dict(saved)
    other.detach()
    feedbacks = [s.feedback.name for s in (began, ended) if s.feedback]
    return number < PATIENCE, feedbacks, fingerprint(module.parameters())


@pytest.mark.parametrize("wrapped", first([True, False]))
def test_a_large_embedding_is_the_other_rule_s_all_the_same(two: Ranks, wrapped: bool) -> None:
    one, other = two.run(language, wrapped)
    assert one == other
    assert one[:2] == (True, ["muon", "muon"])


def resumed(kind: str) -> tuple[Any, ...]:
    """Whether a job that begins anew resumes with the saved moments, and at the saved step."""
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


@pytest.mark.parametrize("kind", first(["muon", "adam", "dgc"], 1))
def test_moments_are_resumed(two: Ranks, kind: str) -> None:
    assert two.run(resumed, kind) == [(True, 3, True)] * 2


def other_row() -> str:
    """Loads the state of a job that left the momentum to its optimizer where the plan keeps it."""
    model = small()
    handle: Any = gradwire.attach(model, "auto", strategies=[EF21])
    step(model, optimizer_of("ef21", model), 0)
    saved = handle.state_dict()
    handle.detach()
    other: Any = gradwire.attach(model, "auto", strategies=[DGC])
    try:
        other.load_state_dict(saved)
    except PlanError as error:
        return str(error)
    finally:
        other.detach()
    return "loaded"


def test_a_state_of_another_kind_is_refused(two: Ranks) -> None:
    for said in two.run(other_row):
        assert "one that leaves the momentum to the optimizer" in said


class Slope(torch.nn.Module):
    """A model whose gradient is its input, whatever its weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(40, 50))

    def forward(self, c: torch.Tensor) -> torch.Tensor:
        return (self.w * c).sum()


def moved(text: str, changes: dict[int, str]) -> float:
    """How far weights move, relative to SGD with momentum: gradients for 60 steps, then none until
    nothing moves."""
    model, total = Slope(), torch.zeros(40, 50)
    nesterov = "nesterov=True" in text
    optimizer = gradwire.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=nesterov)
    with attached(model, text, optimizer=optimizer) as handle:
        dice = torch.Generator().manual_seed(1)
        for number in range(250):
            if number in changes:
                parameters = [p for bucket in handle.plan.buckets for p in bucket.parameters]
                handle.adopt(Plan.make(parameters, changes[number]))
            c = 1 + torch.randn(40, 50, generator=dice)
            c = c if number < 60 else torch.zeros(40, 50)
            total += c
            optimizer.zero_grad()
            model(c).backward()
            optimizer.step()
    return float(model.w.detach().sum() / (-10 * total).sum())


@pytest.mark.parametrize("nesterov", [False, True])
def test_what_waits_behind_a_momentum_moves_weights_once(two: Ranks, nesterov: bool) -> None:
    """However often a plan changes, no residual is multiplied by the momentum that follows."""
    of_both = f"momentum=0.9, nesterov={nesterov}"
    dense = f"none+server_momentum({of_both}) | allreduce"
    thin = f"topk(0.02)+dgc({of_both}, mask=False) | allgather"
    changes = {10: thin, 20: dense, 21: thin, 31: dense, 45: thin, 60: dense}
    assert two.run(moved, dense, changes) == pytest.approx([1.0] * 2, rel=1e-3)


def refused(strategies: Any) -> str:
    try:
        gradwire.attach(small(), "auto", strategies=strategies)
    except (PlanError, StrategyError) as error:
        return str(error)
    return "attached"


def one_is_wrong() -> str:
    return refused([DGC] if dist.get_rank() else ["topk(0.1) | nowhere"])


def test_what_one_rank_gets_wrong_all_hear_of(two: Ranks) -> None:
    began = perf_counter()
    one, other = two.run(one_is_wrong)
    assert one != "attached"
    assert other != "attached"
    assert perf_counter() - began < 100, "nobody waited for a timeout"


@pytest.mark.parametrize(
    ("strategies", "said"),
    [
        ([DGC, "topk(0.1)+ef | allgather"], "some leave it to the optimizer and some keep"),
        (["sign+momentum | vote"], "sends directions, which need another learning rate"),
        ("topk(0.1)+dgc | allgather", "must be a list of strings"),
        ({"none | allreduce"}, "must be a list of strings"),
        (7, "must be a list of strings"),
    ],
)
def test_what_cannot_follow_each_other_is_refused(two: Ranks, strategies: Any, said: str) -> None:
    for text in two.run(refused, strategies):
        assert said in text


@brief()
def with_less(kind: str) -> tuple[str, bool]:
    """Tunes a model with a frozen vector, also under DDP, where nothing but formats may be
    used."""
    module = small()
    module.norm.bias.requires_grad_(False)
    model = DistributedDataParallel(module) if kind == "ddp" else module
    optimizer = optimizer_of("momentum" if kind == "unknown" else "adam", module)
    options: dict[str, Any] = {
        "unknown": {"strategies": ["topk(0.1)+momentum | allgather"]}, "none": {"strategies": []},
    }.get(kind, {})  # fmt: skip
    handle: Any = gradwire.attach(model, "auto", optimizer=optimizer, **options)
    number = 0
    while not handle.tuner.is_settled and number < PATIENCE:
        step(model, optimizer, number)
        number += 1
    own = dynamics_of(handle.plan)
    handle.detach()
    return own.feedback, number < PATIENCE


@pytest.mark.parametrize(
    ("kind", "feedback"),
    first([("ddp", "adam"), ("unknown", "momentum"), ("frozen", "adam"), ("none", "")], 2),
)
def test_whatever_is_left_keeps_its_dynamics(two: Ranks, kind: str, feedback: str) -> None:
    assert two.run(with_less, kind) == [(feedback, True)] * 2


@brief()
def warm() -> tuple[str, int, bool]:
    """The plan of the first steps, when another follows it, and whether tuning had measured by
    then."""
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


def deep() -> torch.nn.Module:
    """Three matrices: the middle one is used by backward after the last one's gradient has
    come."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(*sizes) for sizes in ((50, 64), (64, 64), (64, 40)))
    one, two, three = layers
    return torch.nn.Sequential(
        torch.nn.Flatten(), one, torch.nn.Tanh(), two, torch.nn.Tanh(), three
    )


def adopted_amid_a_backward(wrapped: bool) -> list[bool]:
    """Whether each step's gradients are those at the weights of its forward, where the tuner
    adopts a plan as the fifth step's backward has begun; and whether ranks had own weights."""
    module, same, own = deep(), list[bool](), dict[str, torch.Tensor]()
    model = DistributedDataParallel(module, bucket_cap_mb=0.0001) if wrapped else module
    optimizer = gradwire.optim.AdamW(model.parameters(), lr=0.01)
    for name, p in module.named_parameters():
        p.register_hook(lambda g, name=name: own.update({name: g.clone()}))  # type: ignore
    with attached(model, "auto", optimizer=optimizer) as handle:
        tuner: Any = handle.tuner  # type: ignore[attr-defined]
        parameters = [p for bucket in handle.plan.buckets for p in bucket.parameters]
        first, second = (
            Plan.make(parameters, f"lloyd({bits})+adam | allgather") for bits in (1, 2)
        )

        def life() -> Any:
            tuner._adopt(first)
            yield from [None] * 4
            tuner._adopt(second)
            yield from [None] * 4

        tuner._steps.live(life())
        for number in range(8):
            optimizer.zero_grad()
            loss = loss_of(model, number)
            there = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()}
            outputs = torch.func.functional_call(deep(), there, batch(number))
            wanted = torch.autograd.grad(outputs.square().mean(), list(there.values()))
            loss.backward()
            same.append(all(torch.equal(own[n], g) for n, g in zip(there, wanted)))
            if number == 4:
                assert handle.plan == second
                apart = not torch.equal(*from_all(there["3.weight"].detach()))
            optimizer.step()
        assert torch.equal(*from_all(module[3].weight.detach()))  # type: ignore[index]
    return [*same, apart]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_plan_adopted_amid_a_backward_leaves_its_weights_alone(
    two: Ranks, wrapped: bool
) -> None:
    assert two.run(adopted_amid_a_backward, wrapped) == [[True] * 9] * 2
