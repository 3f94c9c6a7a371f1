"""adam and server_adam: Adam's arithmetic, the noise factor, and AdamW that has no moments."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from own_steps import by_lockstep
from torch import Tensor, nn

import gradwire.optim
from gradwire import Plan, Strategy, beside, lockstep
from gradwire.buckets import Parameter
from gradwire.errors import StrategyError
from gradwire.feedback import ServerAdam
from gradwire.runtime.ledger import Ledger
from gradwire.runtime.own_view import OwnView, _chunks
from gradwire.testing import Workers
from gradwire.training.session import describe
from gradwire.training.state import _fill

BETAS = 0.9, 0.99
ADAM = f"adam(beta1={BETAS[0]}, beta2={BETAS[1]})"


def drawn(*facts: int, n: int = 3000) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(hash(facts) % 2**31))


def by_torch(gradients: list[Tensor], rate: float = 1.0, **options: Any) -> Tensor:
    """The weights to which torch's AdamW goes from zero, without weight decay."""
    p = nn.Parameter(torch.zeros_like(gradients[0]))
    optimizer = torch.optim.AdamW([p], rate, weight_decay=0.0, **options)
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.0, 0.0)])
def test_server_adam_is_torch_s_of_the_mean(betas: tuple[float, float]) -> None:
    gradients = [[drawn(step, rank) for rank in range(3)] for step in range(20)]
    text = f"none+server_adam(beta1={betas[0]}, beta2={betas[1]}) | allreduce"
    found, _ = by_lockstep(text, gradients)
    wanted = by_torch([torch.stack(own).mean(0) for own in gradients], betas=betas)
    assert torch.allclose(found, wanted, atol=2e-5)


def test_equal_gradients_give_adam_s_step() -> None:
    """Without noise the factor is 1."""
    gradients = [[drawn(step)] * 4 for step in range(12)]
    found, states = by_lockstep(f"none+{ADAM} | allgather", gradients)
    wanted = by_torch([own[0] for own in gradients], betas=BETAS)
    assert torch.allclose(found, wanted, atol=2e-5)
    assert float(states[0]["noise"][2]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("world", [2, 4, 9])
def test_pure_noise_is_made_good(world: int) -> None:
    gradients = [[drawn(step, rank) for rank in range(world)] for step in range(41)]
    _, states = by_lockstep(f"none+{ADAM} | allgather", gradients)
    factors = [float(state["noise"][2]) for state in states]
    assert len(set(factors)) == 1
    assert factors[0] == pytest.approx(world**0.5, rel=0.25)


def test_what_is_half_noise_is_made_good_by_half() -> None:
    """κ² is E|w|² over |mean w|²: 2 over 1 + 1/4, with signal 1 and noise 1."""
    gradients = [[drawn(99) + drawn(step, rank) for rank in range(4)] for step in range(61)]
    _, states = by_lockstep(f"none+{ADAM} | allgather", gradients)
    assert float(states[0]["noise"][2]) == pytest.approx((2 / 1.25) ** 0.5, rel=0.15)


def test_opposite_gradients_are_made_good_by_the_most_that_noise_can_be() -> None:
    gradients = [[sign * drawn(step) for sign in (1.0, -1.0)] for step in range(3)]
    _, states = by_lockstep(f"none+{ADAM} | allgather", gradients)
    assert float(states[0]["noise"][2]) == pytest.approx(2**0.5)


@pytest.mark.parametrize("strategy", [f"none+{ADAM} | allgather", "none+muon | allgather"])
def test_noise_is_measured_anew_at_once(strategy: str) -> None:
    """A state that another number of ranks has saved has none: until the next tenth step all
    would be taken for signal, and steps be half as long."""
    gradients = [[drawn(step, r, n=1024).view(32, 32) for r in range(4)] for step in range(13)]
    _, states = by_lockstep(strategy, gradients[:12])
    for state in states:
        del state["noise"]
    lockstep(strategy, gradients[12], step=12, state=states)
    assert len({float(state["noise"][2]) for state in states}) == 1
    assert float(states[0]["noise"][2]) == pytest.approx(2.0, rel=0.25)


@pytest.mark.parametrize("strategy", [f"lloyd(2)+{ADAM} | allgather", "lloyd(2)+muon | allgather"])
def test_moments_without_a_residual_are_gone_on_from(strategy: str) -> None:
    """A rank that came gets another's moments, and nothing that waits."""
    gradients = [[drawn(step, r, n=1024).view(32, 32) for r in range(2)] for step in range(6)]
    _, states = by_lockstep(strategy, gradients[:5])
    kept = {k: v.clone() for k, v in states[1].items() if k.startswith(("exp_avg", "steps"))}
    states[1] = {key: x.clone() for key, x in kept.items()}
    del states[0]["noise"]
    lockstep(strategy, gradients[5], step=5, state=states)
    weight = 0.95 if "muon" in strategy else BETAS[0]
    expected = weight * kept["exp_avg"] + (1 - weight) * gradients[5][1]
    torch.testing.assert_close(states[1]["exp_avg"], expected)
    assert "steps" not in kept or float(states[1]["steps"]) == 6.0


def test_noise_is_measured_where_all_elements_are_of_one_size() -> None:
    """The other half is a thousand times as large, without noise: it would hide this one's."""
    large = 1000 * drawn(99, n=1500)
    gradients = [
        [torch.cat([large, drawn(step, rank, n=1500)]) for rank in range(4)] for step in range(61)
    ]
    _, states = by_lockstep(f"none+{ADAM} | allgather", gradients)
    assert float(states[0]["noise"][2]) == pytest.approx((2 / 1.25) ** 0.5, rel=0.15)


def test_what_is_not_sent_waits_in_steps() -> None:
    """The steps that arrived, plus the residuals, are all steps that were made."""
    gradients = [[drawn(step, rank) for rank in range(2)] for step in range(15)]
    exact, _ = by_lockstep(f"none+{ADAM} | allgather", gradients)
    found, states = by_lockstep(f"lloyd(2, turns=2)+{ADAM} | allgather", gradients)
    waits = torch.stack([state["residual"] for state in states]).mean(0)
    assert waits.abs().max() > 0.1
    assert torch.allclose(found - waits, exact, atol=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_leaves_moments_and_factor_alone(bad: float) -> None:
    states: list[dict[str, Tensor]] = [{} for _ in range(2)]
    for step in range(10):
        lockstep(f"lloyd(1)+{ADAM} | alltoall", [drawn(step, r) for r in range(2)], step=step,
                 state=states)  # fmt: skip
    before = copy.deepcopy(states)
    spoiled = [drawn(10, 0), drawn(10, 1)]
    spoiled[1][7] = bad
    results, _ = lockstep(f"lloyd(1)+{ADAM} | alltoall", spoiled, step=10, state=states)
    assert all(x.isnan().all() for x in results)
    for old, new in zip(before, states):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[key], new[key]) for key in old)


@pytest.mark.parametrize("larger", [1e2, 1e4, 1e7])
@pytest.mark.parametrize("left", ["int8", "topk(0.2)"])
def test_after_a_spoiled_step_no_step_is_longer_than_any_of_adam_s(
    left: str, larger: float
) -> None:
    """A gradient that is far larger than all before leaves nothing of a second moment but its own
    rounding, which may be 0: a step was divided by eps then."""
    plan = Plan.make([Parameter("w", (60, 50))], f"{left}+{ADAM} | allgather")
    workers, taken = Workers(plan, 2), 20

    def own(step: int, scale: float) -> list[dict[str, Tensor]]:
        return [{"w": scale * drawn(step, rank).view(60, 50)} for rank in range(2)]

    def kept() -> list[dict[str, Tensor]]:
        return [{k: v.clone() for k, v in one.memory["w"].items()} for one in workers.ledgers]

    for step in range(taken):
        workers.exchange(own(step, 1e-3))
    before, spoiled = kept(), own(taken, 1e-3 * larger)
    spoiled[1]["w"][3, 3] = torch.inf
    workers.exchange(spoiled)
    for old, new in zip(before, kept()):
        m, q = new["exp_avg"], new["exp_avg_sq"]
        longest = 0.1 / (0.01 * (1 - 0.9**2 / 0.99)) ** 0.5
        assert bool((m.abs() <= 1.001 * longest * q.sqrt()).all())
        if larger == 1e2:
            assert torch.allclose(old["exp_avg"], m, rtol=1e-2, atol=1e-7)
            assert torch.allclose(old["exp_avg_sq"], q, rtol=1e-2, atol=1e-9)
    before = kept()
    averages = workers.exchange(own(taken + 1, 1e-3))
    most = max(float(state["noise"][2]) for state in before) * longest / (1 - 0.9**taken)
    waited = max(float(state["residual"].abs().max()) for state in before)
    assert float(averages["w"].abs().max()) <= most + waited


def test_what_a_skipped_step_sent_waits() -> None:
    """If one of two buckets is spoiled, what the other sent is put back into its residual."""
    named = {"a": nn.Parameter(torch.zeros(600, 1)), "b": nn.Parameter(torch.zeros(700, 1))}
    plan = Plan.make(
        describe(named), Strategy.parse(f"lloyd(1)+{ADAM} | allgather"), buckets=[["a"], ["b"]]
    )
    workers = Workers(plan, 2)
    own = [{n: drawn(0, r, n=p.numel()).view_as(p) for n, p in named.items()} for r in range(2)]
    own[0]["b"][5] = float("nan")
    averages = workers.exchange(own)
    assert all(x.isnan().all() for x in averages.values())
    for rank, ledger in enumerate(workers.ledgers):
        assert "exp_avg" not in ledger.memory["b"]
        wanted = -by_torch([drawn(0, rank, n=600)], betas=BETAS)
        factor = float(ledger.memory["a"]["noise"][2])
        assert torch.allclose(ledger.memory["a"]["residual"], wanted * factor, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("adam(beta1=1.0)", "adam's beta1 must be at least 0 and below 1; got 1.0"),
        ("adam(beta2=-0.1)", "adam's beta2 must be at least 0"),
        ("server_adam(eps=0)", "server_adam's eps must be at least 1.2e-38"),
        ("server_adam(eps=1e-50)", "server_adam's eps must be at least 1.2e-38"),  # 0 in float32
        ("adam(local=1)", "adam's local must be True or False; got 1"),
    ],
)
def test_parameters_are_looked_at(text: str, said: str) -> None:
    with pytest.raises(StrategyError, match=said.replace("(", r"\(")):
        Strategy.parse(f"lloyd(1)+{text} | allgather")


# -- the optimizer ---------------------------------------------------------------------------


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 2))


MADE: tuple[Callable[[Any], torch.optim.Optimizer], ...] = (
    torch.optim.AdamW, gradwire.optim.AdamW
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.3}, {"amsgrad": True}, {"maximize": True}, {"foreach": False},
     {"betas": (0.5, 0.7), "eps": 1e-3}, {"lr": torch.tensor(0.1), "foreach": False}],
    ids=str,
)  # fmt: skip
def test_not_attached_it_is_torch_s_to_the_bit(options: dict[str, Any]) -> None:
    models = net(), net()
    for model, kind in zip(models, MADE):
        optimizer = kind(model.parameters(), **{"lr": 1e-2, **options})  # type: ignore[call-arg]
        for step in range(5):
            optimizer.zero_grad()
            model(drawn(step, n=21).view(3, 7)).square().mean().backward()
            optimizer.step()
    for one, other in zip(*(model.parameters() for model in models)):
        assert torch.equal(one, other)


def test_states_of_torch_s_load_and_go_on() -> None:
    one, other = net(), net()
    theirs = torch.optim.AdamW(one.parameters(), 1e-2)
    for step in range(3):
        theirs.zero_grad()
        one(drawn(step, n=21).view(3, 7)).square().mean().backward()
        theirs.step()
    other.load_state_dict(one.state_dict())
    ours = gradwire.optim.AdamW(other.parameters(), 1e-2)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    for model, optimizer in ((one, theirs), (other, ours)):
        optimizer.zero_grad()
        model(drawn(9, n=21).view(3, 7)).square().mean().backward()
        optimizer.step()
    assert all(map(torch.equal, one.parameters(), other.parameters()))


def test_steps_are_applied_as_they_are() -> None:
    p = nn.Parameter(torch.ones(4))
    optimizer = gradwire.optim.AdamW([p], 0.1, weight_decay=0.5, moments_kept=True)
    p.grad = torch.full((4,), 2.0)
    optimizer.step()
    assert torch.allclose(p, torch.full((4,), 1 - 0.05 - 0.2))
    assert p.grad is not None
    assert not optimizer.state
    assert not copy.deepcopy(optimizer).state


def test_a_step_that_torch_refuses_changes_no_kept_parameter() -> None:
    kept, table = nn.Parameter(torch.ones(4)), nn.Embedding(5, 2, sparse=True)
    optimizer = gradwire.optim.AdamW([kept, *table.parameters()], 0.1)
    kept.grad = torch.ones(4)
    table(torch.tensor([1, 3])).sum().backward()
    with (
        patch.object(optimizer, "_is_kept", lambda p, _: p is kept),
        pytest.raises(RuntimeError, match="sparse gradients"),
    ):
        optimizer.step()
    assert torch.equal(kept, torch.ones(4))
    assert torch.equal(kept.grad, torch.ones(4))


# -- the own view ----------------------------------------------------------------------------


def waiting(named: dict[str, nn.Parameter], text: str) -> Ledger:
    """The ledger of one of two workers, after exchanges of random gradients."""
    workers = Workers(Plan.make(describe(named), Strategy.parse(text)), 2)
    for step in range(3):
        workers.exchange([
            {n: drawn(3, r, step, n=p.numel()).view_as(p).to(p.dtype) for n, p in named.items()}
            for r in range(2)
        ])  # fmt: skip
    return workers.ledgers[0]


def test_the_own_view_is_left_to_the_bit() -> None:
    named = {"w": nn.Parameter(drawn(1).view(60, 50)), "b": nn.Parameter(drawn(2, n=9))}
    x = {name: p.detach().clone() for name, p in named.items()}
    ledger = waiting(named, f"lloyd(1)+{ADAM} | allgather")
    view, rates, residual = OwnView(), {"w": 0.01, "b": 0.01}, ledger.memory["w"]["residual"]
    waits, written = residual.clone(), named["w"]._version
    assert waits.count_nonzero() > 2000
    view.enter(named, ledger, rates)
    moved = torch.sub(x["w"], waits.view(60, 50), alpha=0.01)
    assert torch.equal(named["w"], moved)
    assert torch.equal(residual.view(60, 50), x["w"]), "no other memory is taken"
    assert torch.equal(named["b"], x["b"]), "what travels dense leaves nothing"
    view.enter(named, ledger, rates)
    torch.testing.assert_close(named["w"].data, moved, atol=2**-22, rtol=0)  # once, not twice
    view.leave(named)
    assert not view.entered
    assert torch.equal(named["w"], x["w"])
    # Half of the last digit of a weight below 4, in the unit of the residual; twice.
    torch.testing.assert_close(residual, waits, atol=2 * 2**-23 / 0.01, rtol=1e-6)
    assert named["w"]._version == written, "autograd sees nothing of it"


def test_what_is_sent_leaves_the_own_view_alone() -> None:
    named = {name: nn.Parameter(drawn(1).view(60, 50)) for name in ("v", "w")}
    x = named["w"].detach().clone()
    ledger, view = waiting(named, f"lloyd(1)+{ADAM} | allgather"), OwnView()
    view.enter(named, ledger, {"v": 0.01, "w": 0.01})
    moved = named["v"].detach().clone()
    view.leave({"w": named["w"]}, ["w", "b"])
    assert torch.equal(named["w"], x)
    assert torch.equal(named["v"], moved)
    assert not torch.equal(moved, x)


def test_what_waits_can_be_changed_amid_the_own_view() -> None:
    named = {"w": nn.Parameter(drawn(1).view(60, 50))}
    x, view = named["w"].detach().clone(), OwnView()
    ledger = waiting(named, f"lloyd(1)+{ADAM} | allgather")
    waits = ledger.memory["w"]["residual"].clone()
    view.enter(named, ledger, {"w": 0.01})
    moved = named["w"].detach().clone()
    view.uncover(named)
    assert torch.equal(named["w"], moved)
    torch.testing.assert_close(ledger.memory["w"]["residual"], waits, atol=3e-5, rtol=1e-6)
    ledger.memory["w"]["residual"].zero_()
    view.uncover(named)
    assert not ledger.memory["w"]["residual"].any()
    view.leave(named)
    assert torch.equal(named["w"], x)
    assert not ledger.memory["w"]["residual"].any()


def test_what_waits_is_seen_amid_the_own_view() -> None:
    """The residual is read amid the own view, not written: another thread may read it, too."""
    named = {"w": nn.Parameter(drawn(1).view(60, 50))}
    x, view = named["w"].detach().clone(), OwnView()
    ledger = waiting(named, f"lloyd(1)+{ADAM} | allgather")
    residual = ledger.memory["w"]["residual"]
    waits = residual.clone()
    assert view.waiting("w", named["w"].detach(), residual) is residual
    view.enter(named, ledger, {"w": 0.01})
    moved = named["w"].detach().clone()
    seen = view.waiting("w", named["w"].detach(), residual)
    torch.testing.assert_close(seen, waits, atol=3e-5, rtol=1e-6)
    assert torch.equal(residual.view(60, 50), x)
    assert torch.equal(named["w"], moved)


class Stopped(Exception):
    pass


def stopped_at(line: int, work: Callable[[], None]) -> bool:
    """Whether the own view began so many lines, so that the exception ended the work."""
    left = [line]

    def trace(frame: Any, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith("own_view.py"):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                raise Stopped
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Stopped:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_device_is_asked_for_few_operations() -> None:
    """On a processor, as many elements are moved at a time as fit its cache."""
    for device, parts in (("cpu", 16), ("meta", 1)):
        weights, other = torch.empty(2, 1 << 20, device=device).unbind()
        assert len(list(_chunks(weights, other))) == parts


@pytest.mark.parametrize("when", ["enter", "enter, uncover", "uncover", "leave"])
def test_weights_survive_an_exception_anywhere_in_a_swap(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception, as from the keyboard, may come in any line, of the first chunk or another; a
    script that saves a state then uncovers the residuals."""
    monkeypatch.setattr("gradwire.runtime.own_view.CHUNK", 1000)
    named = {"w": nn.Parameter(drawn(1).view(60, 50)), "v": nn.Parameter(drawn(2).view(60, 50))}
    x = {name: p.detach().clone() for name, p in named.items()}
    ledger, rates = waiting(named, f"lloyd(1)+{ADAM} | allgather"), {"w": 0.01, "v": 0.01}
    waits = {name: ledger.memory[name]["residual"].clone() for name in named}
    line, stopped = 0, True
    while stopped:
        line, view = line + 1, OwnView()
        enter = partial(view.enter, named, ledger, rates)
        if not when.startswith("enter"):
            enter()
        works = {"leave": partial(view.leave, named), "uncover": partial(view.uncover, named)}
        stopped = stopped_at(line, works.get(when, enter))
        if when == "enter, uncover":
            view.uncover(named)
        else:
            view.leave(named)
        for name in named:
            residual = ledger.memory[name]["residual"]
            torch.testing.assert_close(residual, waits[name], atol=1e-4, rtol=1e-5)
        view.leave(named)
        for name, p in named.items():
            assert torch.equal(p, x[name]), line
    assert line > 60


@pytest.mark.parametrize("kind", ["bfloat16", "transposed", "bfloat16 transposed"])
def test_the_own_view_of_other_weights(kind: str) -> None:
    one = drawn(1).view(50, 60)
    one = one.bfloat16() if "bfloat16" in kind else one
    one = one.t() if "transposed" in kind else one
    named = {"w": nn.Parameter(one)}
    x, view = named["w"].detach().clone(), OwnView()
    ledger = waiting(named, f"lloyd(1)+{ADAM} | allgather")
    waits = ledger.memory["w"]["residual"].clone()
    for _ in range(2):
        view.enter(named, ledger, {"w": 0.01})
        moved = torch.sub(x, waits.view(x.shape).to(x.dtype), alpha=0.01)
        torch.testing.assert_close(named["w"].data, moved, atol=1e-6, rtol=0)
        assert not torch.equal(named["w"], x)
        view.leave(named)
        assert torch.equal(named["w"], x)
        torch.testing.assert_close(ledger.memory["w"]["residual"], waits, atol=5e-5, rtol=1e-6)


def test_without_local_nothing_moves() -> None:
    named = {"w": nn.Parameter(drawn(1).view(60, 50))}
    text = "lloyd(1)+adam(local=False) | allgather"
    workers = Workers(Plan.make(describe(named), Strategy.parse(text)), 2)
    workers.exchange([{"w": drawn(3, r).view(60, 50)} for r in range(2)])
    before = named["w"].detach().clone()
    OwnView().enter(named, workers.ledgers[0], {"w": 0.01})
    assert torch.equal(named["w"], before)


def test_what_travels_dense_has_the_same_moments() -> None:
    strategy = Strategy.parse("lloyd(1)+adam(beta1=0.8, beta2=0.9, eps=1e-6) | alltoall")
    assert beside.dense(strategy).feedback == ServerAdam(0.8, 0.9, 1e-6)


def test_an_optimizer_of_another_rule_is_refused() -> None:
    assert gradwire.sound("none+server_adam | allreduce", "adamw").kind == "sound"
    for optimizer in ("sgd", "muon"):
        assert gradwire.sound(f"lloyd(1)+{ADAM} | alltoall", optimizer).kind == "unsound"


def test_numbers_of_a_state_that_is_loaded_stay_on_the_host() -> None:
    """On a device the host would have to wait for each parameter's numbers."""
    plan = Plan.make([Parameter("w", (2, 2))], f"lloyd(1)+{ADAM} | alltoall")
    ledger = Ledger(plan, 0, 1, device="meta")
    saved = {"steps": torch.ones(1), "noise": torch.ones(3), "residual": torch.ones(4)}
    _fill(ledger, {"state": {"w": saved}})
    found = {name: x.device.type for name, x in ledger.memory["w"].items()}
    assert found == {"steps": "cpu", "noise": "cpu", "residual": "meta"}
