"""muon: Muon's arithmetic, the noise factor, and Muon without a momentum of its own."""

from __future__ import annotations

import copy
import math
import re
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from own_steps import by_lockstep
from torch import Tensor, nn

import gradwire.optim
from gradwire import Plan, Strategy, lockstep
from gradwire.buckets import Parameter
from gradwire.errors import StrategyError, UsageError
from gradwire.feedback._orthogonal import orthogonal
from gradwire.kernels import is_raised, new_status, use
from gradwire.optim.muon import Muon
from gradwire.soundness import answering, sound
from gradwire.testing import Workers
from gradwire.training.session import describe
from gradwire.training.trainable import hidden_matrices, others
from interpreter import quicken

SHAPE = 24, 40
MUON = "muon(momentum=0.9)"


def drawn(*facts: int, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(hash(facts) % 2**31))


def by_torch(gradients: list[Tensor], **options: Any) -> Tensor:
    """The weights to which torch's Muon goes from zero, without weight decay."""
    p = nn.Parameter(torch.zeros_like(gradients[0]))
    optimizer = torch.optim.Muon(
        [p], 1.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw", **options
    )
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    return p.detach()


# -- arithmetic --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (24, 40), (40, 24), (1, 7)])
def test_a_step_is_nearly_orthogonal_and_as_large_as_adamw_s(shape: tuple[int, int]) -> None:
    step = orthogonal(drawn(1, shape=shape))
    values = torch.linalg.svdvals(step / (0.2 * max(shape) ** 0.5))
    assert values.min() > 0.6
    assert values.max() < 1.3
    rms = float(step.square().mean().sqrt())
    assert rms == pytest.approx(0.2, rel=0.35)


def test_no_momentum_is_no_step() -> None:
    assert torch.equal(orthogonal(torch.zeros(SHAPE)), torch.zeros(SHAPE))


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [SHAPE, SHAPE[::-1]])
def test_equal_gradients_give_torch_s_step(shape: tuple[int, int], nesterov: bool) -> None:
    """The step is torch's up to bfloat16, in which torch computes it."""
    gradients = [[drawn(step, shape=shape)] * 3 for step in range(6)]
    text = f"none+muon(momentum=0.9, nesterov={nesterov}) | allgather"
    found, states = by_lockstep(text, gradients)
    wanted = by_torch([own[0] for own in gradients], momentum=0.9, nesterov=nesterov)
    assert float((found - wanted).norm() / wanted.norm()) < 0.02
    assert float(states[0]["noise"][2]) == pytest.approx(1.0, abs=1e-4)


def test_pure_noise_is_made_good() -> None:
    gradients = [[drawn(step, rank) for rank in range(4)] for step in range(41)]
    _, states = by_lockstep(f"none+{MUON} | allgather", gradients)
    assert len({float(state["noise"][2]) for state in states}) == 1
    assert float(states[0]["noise"][2]) == pytest.approx(2.0, rel=0.2)


def test_what_is_sent_is_made_so_much_longer() -> None:
    """The result is the mean of the ranks' own steps, times the factor measured before it."""
    own = [drawn(0, rank) for rank in range(4)]
    found, states = by_lockstep("none+muon(momentum=0.0) | allgather", [own])
    mean = torch.stack([orthogonal(g) for g in own]).mean(0)
    factor = float(states[0]["noise"][2])
    assert factor > 1.5
    assert torch.allclose(-found, factor * mean, atol=1e-5)


def test_what_is_not_sent_waits_in_steps() -> None:
    gradients = [[drawn(step, rank) for rank in range(2)] for step in range(15)]
    exact, _ = by_lockstep(f"none+{MUON} | allgather", gradients)
    found, states = by_lockstep(f"lloyd(1, turns=2)+{MUON} | allgather", gradients)
    waits = torch.stack([state["residual"].view(SHAPE) for state in states]).mean(0)
    assert waits.abs().max() > 0.05
    assert torch.allclose(found - waits, exact, atol=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_leaves_momentum_and_factor_alone(bad: float) -> None:
    states: list[dict[str, Tensor]] = [{} for _ in range(2)]
    text = f"lloyd(1)+{MUON} | alltoall"
    for step in range(10):
        lockstep(text, [drawn(step, r) for r in range(2)], step=step, state=states)
    before, spoiled = copy.deepcopy(states), [drawn(10, 0), drawn(10, 1)]
    spoiled[1][3, 7] = bad
    results, _ = lockstep(text, spoiled, step=10, state=states)
    assert all(x.isnan().all() for x in results)
    for old, new in zip(before, states):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[key], new[key]) for key in old)


# -- turns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [0, 2])
@pytest.mark.parametrize("way", ["allgather", "alltoall"])
def test_a_matrix_is_stepped_in_its_turn_so_many_times_as_far(turn: int, way: str) -> None:
    """Its momentum has the gradients of all steps; in the other steps nothing is sent."""
    text = f"none+muon(momentum=0.9, turns=3, turn={turn}) | {way}"
    states: list[dict[str, Tensor]] = [{}, {}]
    momentum = torch.zeros(SHAPE)
    for step in range(9):
        x = drawn(step)
        results, trace = lockstep(text, [x, x], step=step, state=states)
        momentum.lerp_(x, 0.1)
        if step % 3 == turn:
            wanted = 3 * orthogonal(x.lerp(momentum, 0.9))
            assert all(torch.allclose(y, wanted, atol=1e-3) for y in results)
        else:
            assert all(not y.any() for y in results)
            assert not any(trace.bytes_sent)


def test_what_waits_stays_in_others_turns() -> None:
    gradients = [[drawn(step, rank) for rank in range(2)] for step in range(16)]
    exact, _ = by_lockstep("none+muon(momentum=0.9, turns=4) | allgather", gradients)
    found, states = by_lockstep("lloyd(1)+muon(momentum=0.9, turns=4) | allgather", gradients)
    waits = torch.stack([state["residual"].view(SHAPE) for state in states]).mean(0)
    assert waits.abs().max() > 0.05
    assert torch.allclose(found - waits, exact, atol=1e-4)


def test_noise_is_measured_in_its_turn() -> None:
    text = "none+muon(momentum=0.9, turns=4, turn=3) | allgather"
    gradients = [[drawn(step, rank) for rank in range(4)] for step in range(44)]
    _, states = by_lockstep(text, gradients[:3])
    assert "noise" not in states[0]
    _, states = by_lockstep(text, gradients)
    assert float(states[0]["noise"][2]) == pytest.approx(2.0, rel=0.25)


@pytest.mark.parametrize("room", ["", "triton"])
def test_a_bad_number_in_others_turn_is_not_remembered(room: str) -> None:
    """Nor is it on a device, whose flag the host does not read; a finite one is remembered."""
    if room:
        pytest.importorskip("triton")
        quicken()
    with use(room) if room else nullcontext():
        _spoil_others_turn()


def _spoil_others_turn() -> None:
    states: list[dict[str, Tensor]] = [{}, {}]
    text = "lloyd(2)+muon(turns=2) | alltoall"
    for step in range(2):
        lockstep(text, [drawn(step, rank) for rank in range(2)], step=step, state=states)
    before, spoiled = copy.deepcopy(states), [drawn(3, 0), torch.full(SHAPE, math.inf)]
    results, _ = lockstep(text, spoiled, step=3, state=states)
    assert all(not x.any() for x in results)
    assert torch.equal(before[1]["exp_avg"], states[1]["exp_avg"])
    assert not torch.equal(before[0]["exp_avg"], states[0]["exp_avg"])


def test_a_plan_spreads_matrices_over_turns() -> None:
    parameters = [Parameter(f"w{i}", (8, 8 * (1 + i % 3))) for i in range(12)]
    plan = Plan.make(parameters, Strategy.parse("lloyd(2)+muon(turns=3) | alltoall"))
    sizes = {str(s): b.elements for b, s in zip(plan.buckets, plan.strategies)}
    assert len(sizes) == 3
    assert max(sizes.values()) - min(sizes.values()) <= 8 * 24
    assert answering(plan.strategies) == list(plan.strategies)
    chosen = [["w0"], ["w1", "w2"]]
    plan = Plan.make(parameters, plan.strategies[0], buckets=chosen)
    turns = {name: plan.strategy_of(name).feedback.turn for name in ("w0", "w1")}  # type: ignore[union-attr]
    assert turns == {"w0": 0, "w1": 1}


def test_a_skipped_step_gives_back_nothing_that_was_not_sent() -> None:
    """One bucket is spoiled in a step in which another one rests."""
    parameters = [Parameter("a", SHAPE), Parameter("b", SHAPE)]
    plan = Plan.make(parameters, Strategy.parse("lloyd(1)+muon(turns=2) | alltoall"))
    resting = {plan.strategy_of(name).feedback.turn: name for name in ("a", "b")}  # type: ignore[union-attr]
    workers = Workers(plan, 2)
    for step in range(4):
        workers.exchange([{n: drawn(step, r) for n in ("a", "b")} for r in range(2)])
    before = [copy.deepcopy(own.memory) for own in workers.ledgers]
    spoiled = [{n: drawn(4, r) for n in ("a", "b")} for r in range(2)]
    spoiled[1][resting[0]][0, 0] = math.nan
    averages = workers.exchange(spoiled)
    assert all(x.isnan().all() for x in averages.values())
    for old, own in zip(before, workers.ledgers):
        for name in ("a", "b"):
            for key in ("residual", "owners_residual"):
                torch.testing.assert_close(
                    old[name][key], own.memory[name][key], atol=1e-5, rtol=0
                )


def test_a_step_that_is_skipped_can_be_taken_back() -> None:
    """The encoder's change of the state and what was sent are undone, up to rounding."""
    from gradwire.runtime.encoder import make_encoder
    from gradwire.strategy import Key, StepInfo

    strategy = Strategy.parse(f"lloyd(1)+{MUON} | allgather")
    encoder, state = make_encoder(strategy.compressor, strategy.feedback), dict[str, Tensor]()
    sizes = strategy.compressor.claims(960).sections
    sections = [torch.zeros(n, dtype=getattr(torch, kind)) for kind, n in sizes]
    for step in range(4):
        info = StepInfo(step, 0.5, SHAPE)
        before = {key: x.clone() for key, x in state.items()}
        status = new_status()
        encoder.encode(drawn(step).view(-1), state, sections, info, Key(0, step, "w"), status)
        assert not is_raised(status)
    assert not torch.equal(before["residual"], state["residual"])
    encoder.undo(drawn(3).view(-1), state, sections, info)
    assert all(torch.allclose(before[key], state[key], atol=1e-5) for key in before)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("muon(momentum=1.0)", "muon's momentum must be at least 0 and below 1; got 1.0"),
        ("muon(beta2=-0.1)", "muon's beta2 must be at least 0"),
        ("muon(nesterov=2)", "muon's nesterov must be True or False; got 2"),
        ("muon(turns=0)", "muon's turns must be a whole number, at least 1"),
        ("muon(turns=2, turn=2)", "got turns=2, turn=2. Use for example muon(turns=4)"),
        ("muon | hierarchical", "needs whole matrices; 'hierarchical' cuts them"),
        ("muon(rest='qsgd(4)')", "needs a collective after"),
        ("muon(rest=4)", "cannot read the strategy 4: it must be a non-empty string"),
        ("muon(rest='lloyd(2)+ef | allgather')", "with its own feedback; got 'lloyd(2)+ef"),
        ("muon(rest='none | columns')", "with its own feedback; got 'none | columns'"),
        ("muon(rest='none | hierarchical')", "its own feedback; got 'none | hierarchical'"),
        ("muon(rest='powersgd(4)')", "with its own feedback; got 'powersgd(4)'"),
    ],
)
def test_what_it_refuses(text: str, said: str) -> None:
    with pytest.raises(StrategyError, match=re.escape(said)):
        Strategy.parse(f"lloyd(1)+{text}{'' if '|' in text else ' | allgather'}")


def test_turns_are_of_one_member() -> None:
    with pytest.raises(StrategyError, match="some elements would never be sent"):
        Strategy.parse("lloyd(1, turns=2)+muon(turns=2) | allgather")
    assert str(Strategy.parse("topk(0.1)+muon(turns=2) | allgather"))  # the largest, whenever


# -- which parameters --------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.inner, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
        self.head = nn.Linear(16, 30)
        if tied:
            self.head.weight = self.words.weight


@pytest.mark.parametrize("tied", [False, True])
def test_hidden_matrices_are_those_between_the_ends(tied: bool) -> None:
    model = Model(tied)
    assert hidden_matrices(model) == ["inner.weight"]
    optimizer = Muon.of(model, lr=0.1)
    assert [group["muon"] for group in optimizer.param_groups] == [True, False]
    wanted = [n for n, _ in model.named_parameters() if n != "inner.weight"]
    assert others(model) == wanted == others(model, optimizer)


def test_groups_say_what_is_muon_s() -> None:
    model = Model()
    own = [{"params": [model.words.weight]}, {"params": [model.inner.weight], "muon": False}]
    assert "words.weight" not in others(model, Muon(own))
    assert "inner.weight" in others(model, Muon(own))


def test_a_plan_gives_others_the_feedback_of_their_own_rule() -> None:
    model, strategy = Model(), Strategy.parse("lloyd(1)+muon(beta2=0.99) | alltoall")
    plan = Plan.make(describe(dict(model.named_parameters())), strategy, others=others(model))
    texts = {name: str(plan.strategy_of(name)) for name, _ in model.named_parameters()}
    assert texts["inner.weight"] == "lloyd(1)+muon(beta2=0.99) | alltoall"
    assert texts["words.weight"] == "lloyd(1)+adam(beta2=0.99) | alltoall"
    assert texts["inner.bias"] == "none+server_adam(beta2=0.99) | allreduce"


@pytest.mark.parametrize(
    ("rest", "words", "bias"),
    [
        ("qsgd(4) | alltoall", "qsgd(4)+server_adam | alltoall", "qsgd(4)+server_adam | alltoall"),
        ("bf16 | allreduce", "bf16+server_adam | allreduce", "bf16+server_adam | allreduce"),
        ("lloyd(2) | allgather", "lloyd(2)+adam | allgather", "none+server_adam | allreduce"),
    ],
)
def test_the_rest_may_travel_otherwise(rest: str, words: str, bias: str) -> None:
    """The rest travels as gradients, and vectors with it, or as steps; excluded ones are dense."""
    model, strategy = Model(), Strategy.parse(f'lloyd(1)+muon(rest="{rest}") | alltoall')
    parameters = describe(dict(model.named_parameters()))
    for known in (others(model), [n for n in others(model) if model.get_parameter(n).dim() > 1]):
        plan = Plan.make(parameters, strategy, others=known, dense=["norm.bias"])
        assert plan.strategy_of("inner.weight") == strategy
        assert plan.strategy_of("words.weight") == Strategy.parse(words)
        assert plan.strategy_of("inner.bias") == Strategy.parse(bias)
        assert plan.strategy_of("norm.bias") == Strategy.parse("none+server_adam | allreduce")
        assert answering(plan.strategies) == [strategy]


def test_the_head_may_have_another_format_than_hidden_matrices() -> None:
    """As `gradwire plan` gives it one: the plan is as sound with Muon as the two formats are."""
    texts = ["lloyd(2)+muon | alltoall", "bf16+adam | allreduce", "none+server_adam | allreduce"]
    judged = answering(map(Strategy.parse, texts))
    assert judged == [Strategy.parse(texts[0]), Strategy.parse("bf16+muon | allreduce")]
    assert {sound(own, "muon").kind for own in judged} == {"sound"}
    of_adam = [Strategy.parse(text) for text in ("lloyd(2)+adam | allgather", texts[1])]
    assert answering(of_adam) == of_adam, "AdamW has one rule for all"


# -- the optimizer -----------------------------------------------------------------------------


def stepped(make: Any, steps: int = 4) -> list[Tensor]:
    torch.manual_seed(0)
    model = Model()
    optimizers = make(model)
    for step in range(steps):
        for i, p in enumerate(model.parameters()):
            p.grad = drawn(step, i, shape=tuple(p.shape))
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach() for p in model.parameters()]


def torch_s(model: Model) -> list[torch.optim.Optimizer]:
    hidden = [model.inner.weight]
    rest = [p for p in model.parameters() if p is not model.inner.weight]
    return [
        torch.optim.Muon(hidden, 0.01, 0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, 0.01, weight_decay=0.1),
    ]


def test_where_nothing_keeps_the_momentum_its_steps_are_torch_s_to_the_bit() -> None:
    ours = stepped(lambda model: [Muon.of(model, lr=0.01)])
    assert all(map(torch.equal, ours, stepped(torch_s)))


def test_a_state_resumes() -> None:
    model = Model()
    optimizer = Muon.of(model, lr=0.01)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    other = Muon.of(Model(), lr=0.5)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 0.01
    assert len(other.state_dict()["state"]) == len(list(model.parameters()))
    copied = copy.deepcopy(optimizer)
    assert copied._kept is None


def matrices(turns: int) -> tuple[list[nn.Parameter], Muon]:
    """Three matrices, of which two have half as many elements, and the optimizer."""
    shapes = (12, 8), (8, 6), (6, 8)
    weights = [nn.Parameter(drawn(i, shape=shape)) for i, shape in enumerate(shapes)]
    return weights, Muon(weights, 0.1, 0.5, turns=turns)


def test_in_turns_each_matrix_steps_as_many_times_as_far() -> None:
    """Its momentum has the gradients of all steps; both turns have as many elements."""
    weights, optimizer = matrices(2)
    momenta = [torch.zeros_like(p) for p in weights]
    for step in range(4):
        before = [p.detach().clone() for p in weights]
        for i, (p, m) in enumerate(zip(weights, momenta)):
            p.grad = drawn(step, i, shape=tuple(p.shape))
            m.lerp_(p.grad, 1 - 0.95)
        optimizer.step()
        for i, (p, m, old) in enumerate(zip(weights, momenta, before)):
            wanted = old
            if (i == 0) == (step % 2 == 0):
                along = orthogonal(p.grad.lerp(m, 0.95))
                wanted = old * (1 - 2 * 0.1 * 0.5) - 2 * 0.1 * along
            assert torch.allclose(p, wanted, atol=0.02 * 2 * 0.1)


def test_turns_go_on_after_a_resume() -> None:
    weights, optimizer = matrices(2)
    for p in weights:
        p.grad = torch.ones_like(p)
    optimizer.step()
    again = Muon(weights, 0.1, 0.5)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert (again.param_groups[0]["turns"], again.param_groups[0]["turn"]) == (2, 1)
    before = [p.detach().clone() for p in weights]
    again.step()
    assert [torch.equal(*pair) for pair in zip(weights, before)] == [True, False, False]


def test_a_state_from_before_there_were_turns_loads() -> None:
    weights, optimizer = matrices(1)
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        del group["turns"], group["turn"]
    again = Muon(weights, 0.1, turns=3)
    again.load_state_dict(saved)
    assert again.param_groups[0]["turns"] == 1


@pytest.mark.parametrize("kind", [torch.optim.Muon, torch.optim.AdamW, gradwire.optim.SGD])
def test_a_state_of_another_optimizer_is_refused(kind: Any) -> None:
    """torch's Muon, too: its rate means steps of another length."""
    weight = nn.Parameter(drawn(1, shape=(4, 3)))
    weight.grad = torch.ones_like(weight)
    other, optimizer = kind([weight], lr=0.1), Muon([weight], lr=0.5)
    other.step()
    with pytest.raises(UsageError, match="must have lr, weight_decay, momentum, nesterov"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_an_incomplete_state_is_refused() -> None:
    weights, optimizer = matrices(1)
    for p in weights:
        p.grad = torch.ones_like(p)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][1] = {"exp_avg": torch.ones(8, 6)}
    with pytest.raises(UsageError, match=r"state\[1\] must have momentum_buffer"):
        Muon(weights).load_state_dict(saved)


def test_complex_matrices_and_sparse_gradients_are_refused_before_any_step() -> None:
    """torch's orthogonal step would lose the imaginary parts, with a warning about a cast."""
    dense, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3, 2))
    wave = nn.Parameter(torch.ones(3, 2, dtype=torch.complex64))
    dense.grad, wave.grad = torch.ones(2), torch.ones_like(wave)
    other.grad = torch.ones(3, 2).to_sparse(1)
    for odd, said in ((wave, "one of \\[3, 2\\] is torch.complex64"), (other, "dense gradients")):
        with pytest.raises(UsageError, match=said):
            Muon([{"params": [dense]}, {"params": [odd]}]).step()
    assert torch.equal(dense, torch.ones(2))


def test_complex_parameters_are_stepped_by_adamw_and_their_state_resumes() -> None:
    ours, torch_s = (nn.Parameter(torch.ones(3, 2, dtype=torch.complex64)) for _ in range(2))
    adamw = torch.optim.AdamW([torch_s], 0.1, weight_decay=0.1)
    optimizer, again = (Muon([{"params": [ours], "muon": False}], 0.1) for _ in range(2))
    for step in range(4):
        ours.grad = torch_s.grad = drawn(step, shape=(3, 2)) * (1 + 2j)
        adamw.step()  # type: ignore[no-untyped-call]
        optimizer.step()
        again.load_state_dict(optimizer.state_dict())
        optimizer, again = again, optimizer
    assert torch.equal(ours, torch_s)


def test_turns_belong_to_a_plan_that_keeps_the_momentum() -> None:
    weights, optimizer = matrices(2)
    keeper = Strategy.parse("lloyd(2)+muon(momentum=0.95) | alltoall").feedback
    assert keeper is not None
    with pytest.raises(UsageError, match="write it into the strategy"):
        optimizer._check(keeper, weights[0], optimizer.param_groups[0])


def test_kept_steps_have_only_rate_and_decay() -> None:
    model = Model()
    before, given = model.inner.weight.detach().clone(), drawn(1, shape=(16, 16))
    optimizer = Muon.of(model, lr=0.1, weight_decay=0.5, momentum_kept=True)
    model.inner.weight.grad = given
    optimizer.step()
    assert torch.allclose(model.inner.weight, before * 0.95 - 0.1 * given)
    assert not optimizer.state


@pytest.mark.parametrize(
    "options", [{"lr": -1.0}, {"momentum": 1.0}, {"betas": (0.9, 1.5)}, {"lr": float("nan")},
                {"turns": 0}, {"turns": 2.0}, {"betas": 0.9}, {"betas": (0.9,)}, {"eps": "0"},
                {"betas": ("0.9", 0.99)}, {"momentum": None}],
)  # fmt: skip
def test_numbers_out_of_their_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Muon's lr, weight_decay and eps"):
        gradwire.optim.Muon.of(Model(), **options)


def test_turns_of_the_optimizer_beside_a_plan_s_are_told_as_they_are() -> None:
    optimizer = Muon([torch.zeros(4, 4)], lr=1e-3, turns=3)
    (group,) = optimizer.param_groups
    keeper = Strategy.parse("lloyd(2)+muon(turns=3) | alltoall").feedback
    assert keeper is not None
    with pytest.raises(UsageError, match=r"Muon has turns=3\. .* strategy: muon\(turns=3\)"):
        optimizer._check(keeper, group["params"][0], group)
