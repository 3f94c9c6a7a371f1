"""1-bit Adam: AdamW while the plan is dense, then momentum over a frozen variance."""

from __future__ import annotations

import copy
from math import nan

import pytest
import torch
from torch import Tensor, nn

from gradwire import Plan, Strategy, Warmup
from gradwire.errors import UsageError
from gradwire.optim import OneBitAdam
from gradwire.strategy import StepInfo
from gradwire.testing import Workers
from gradwire.training.session import describe
from gradwire.warmup import at_density

WORLD, PLAN = 3, "onebit+shared_momentum(0.9) | alltoall"


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))


def gradients(net: nn.Module, step: int, rank: int) -> dict[str, Tensor]:
    dice = torch.Generator().manual_seed(WORLD * step + rank)
    x, y = torch.randn(16, 12, generator=dice), torch.randn(16, 3, generator=dice)
    named = dict(net.named_parameters())
    found = torch.autograd.grad((net(x) - y).square().mean(), list(named.values()))
    return dict(zip(named, found))


def trained(
    plan: str, steps: int, freeze: int, warmup: Warmup | None
) -> tuple[list[Tensor], float]:
    """Returns the weights, and the norm of the residuals."""
    net = model()
    named = dict(net.named_parameters())
    whole = Plan.make(describe(named), Strategy.parse(plan))
    optimizer = OneBitAdam(net.parameters(), 0.01, freeze_step=freeze, momentum_kept=True)
    workers = Workers(whole, WORLD)
    for step in range(steps):
        density = None if warmup is None else warmup.density(step)
        if (now := at_density(whole, density, WORLD)) != workers.plan:
            workers.adopt(now)
        for name, u in workers.exchange([gradients(net, step, r) for r in range(WORLD)]).items():
            named[name].grad = u
        optimizer.step()
    waits = sum(float(x.square().sum()) for x in workers.ledgers[0].waiting().values())
    return [p.detach() for p in net.parameters()], waits


def by_hand(steps: int, freeze: int) -> list[Tensor]:
    """AdamW of the mean gradient, whose variance is frozen at `freeze`."""
    net = model()
    named = dict(net.named_parameters())
    m = {n: torch.zeros_like(p) for n, p in named.items()}
    v = {n: torch.zeros_like(p) for n, p in named.items()}
    for step in range(1, steps + 1):
        own = [gradients(net, step - 1, rank) for rank in range(WORLD)]
        for n, p in named.items():
            g = sum(x[n] for x in own) / WORLD
            m[n] = 0.9 * m[n] + 0.1 * g
            if step <= freeze:
                v[n] = 0.999 * v[n] + 0.001 * g * g
            size = (v[n] / (1 - 0.999 ** min(step, freeze))).sqrt() + 1e-8
            p.data = p.data * (1 - 1e-4) - 0.01 * m[n] / (1 - 0.9**step) / size
    return [p.detach() for p in net.parameters()]


def far(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other))


def test_while_the_variance_is_learned_it_is_adamw() -> None:
    found, _ = trained("none+shared_momentum(0.9) | allreduce", 30, 99, None)
    net = model()
    theirs = torch.optim.AdamW(net.parameters(), 0.01)
    for step in range(30):
        own = [gradients(net, step, rank) for rank in range(WORLD)]
        for name, p in net.named_parameters():
            p.grad = sum(x[name] for x in own) / WORLD  # type: ignore[assignment]
        theirs.step()
    assert far(found, [p.detach() for p in net.parameters()]) < 1e-4  # g is a difference of u


def test_then_the_variance_stays() -> None:
    found, _ = trained("none+shared_momentum(0.9) | allreduce", 30, 10, None)
    wanted = by_hand(30, 10)
    assert far(found, wanted) < 1e-4
    assert far(found, by_hand(30, 30)) > 10 * far(found, wanted), "the freeze is seen"


def test_compressed_after_a_dense_warm_up_it_stays_near() -> None:
    """The momentum continues where the dense plan left it."""
    found, waits = trained(PLAN, 60, 20, Warmup(20, (1.0,)))
    begin, wanted = [p.detach() for p in model().parameters()], by_hand(60, 20)
    assert waits > 0
    moved = sum(float((a - b).square().sum()) for a, b in zip(wanted, begin)) ** 0.5
    apart = sum(float((a - b).square().sum()) for a, b in zip(wanted, found)) ** 0.5
    assert apart < 0.5 * moved


def test_what_is_encoded_and_kept_is_the_momentum() -> None:
    """sent + kept = m·u + (1 - m)·g + kept before, on every rank; u is the last average."""
    feedback = Strategy.parse("topk(0.1)+shared_momentum(0.8) | allgather").feedback
    assert feedback is not None
    g, u, kept = torch.randn(50), torch.randn(50), torch.randn(50)
    y, midway = feedback.before(g, {"velocity": u, "residual": kept}, StepInfo())
    torch.testing.assert_close(y, 0.8 * u + 0.2 * g + kept)
    sent = torch.where(torch.rand(50) < 0.3, y, 0.0)
    after = feedback.after(y, sent, midway)
    torch.testing.assert_close(after["residual"] + sent, y)
    mean = torch.randn(50)
    assert torch.equal(feedback.received(mean, {})["velocity"], mean)


def test_what_never_had_a_gradient_is_not_moved() -> None:
    """After the freeze all elements have signs; divided by no variance they would be huge."""
    p = nn.Parameter(torch.ones(4))
    optimizer = OneBitAdam([p], 0.1, weight_decay=0.0, freeze_step=1, momentum_kept=True)
    p.grad = torch.tensor([1.0, 1.0, 0.0, 0.0])
    optimizer.step()
    p.grad = torch.tensor([0.1, 0.1, 0.1, -0.1])
    optimizer.step()
    assert p.tolist()[2:] == [1.0, 1.0]
    assert all(x < 1.0 for x in p.tolist()[:2])


def test_a_copy_goes_on() -> None:
    w = nn.Parameter(torch.ones(3))
    first = OneBitAdam([w], 0.1, freeze_step=1, momentum_kept=True)
    w.grad = torch.ones(3)
    first.step()
    second = copy.deepcopy(first)
    (copied,) = second.param_groups[0]["params"]
    copied.grad = torch.ones(3)
    for optimizer in (first, second):
        optimizer.step()
    assert torch.equal(copied, w)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_weights_move_as_their_gradients_say(dtype: torch.dtype) -> None:
    """The squares of ordinary gradients are zeros in float16, and so was the variance."""

    def run(dtype: torch.dtype) -> Tensor:
        p = nn.Parameter(torch.zeros(100, dtype=dtype))
        optimizer, again = (
            OneBitAdam([p], 0.01, weight_decay=0.0, freeze_step=20, momentum_kept=True)
            for _ in range(2)
        )
        u = torch.zeros(100)
        for step in range(30):
            dice = torch.Generator().manual_seed(step)
            u.lerp_(1e-3 * torch.rand(100, generator=dice), 0.1)
            p.grad = u.to(dtype)
            optimizer.step()
            again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer, again = again, optimizer
        return p.detach().float()

    assert torch.allclose(run(dtype), run(torch.float32), rtol=0.05)


def test_state_goes_on() -> None:
    def run(stop: int) -> Tensor:
        p = nn.Parameter(torch.ones(5))
        optimizer = OneBitAdam([p], 0.1, freeze_step=3, momentum_kept=True)
        for step in range(6):
            if step == stop:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = OneBitAdam([p], 0.1, freeze_step=3, momentum_kept=True)
                optimizer.load_state_dict(saved)
            p.grad = torch.randn(5, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        return p.detach()

    assert all(torch.equal(run(stop), run(99)) for stop in (1, 3, 5))


def test_other_plans_are_refused() -> None:
    p = nn.Parameter(torch.ones(5))
    p.grad = torch.ones(5)
    with pytest.raises(UsageError, match=r"shared_momentum\(0.9\)"):
        OneBitAdam([p], 0.1, freeze_step=3).step()
    for options in (
        {"freeze_step": 0}, {"freeze_step": 1, "lr": -1.0}, {"freeze_step": 0.2 * 1000},
        {"freeze_step": 1, "momentum_kept": False}, {"freeze_step": 1, "lr": nan},
        {"freeze_step": 1, "eps": nan}, {"freeze_step": 1, "weight_decay": nan},
        {"freeze_step": 1, "betas": 0.9}, {"freeze_step": 1, "lr": "0.1"},
    ):  # fmt: skip
        with pytest.raises(UsageError, match="got"):
            OneBitAdam([p], **options)  # type: ignore[arg-type]


# -- what waits of it ----------------------------------------------------------------------------

TRAVEL = [f"{how}+shared_momentum(0.9) | {by}" for how, by in (
    ("onebit", "alltoall"), ("onebit", "allgather"), ("topk(0.1)", "allgather"),
    ("topk(0.1)", "gtopk"),
)]  # fmt: skip


def warmed(plan: str, steps: int = 12) -> Workers:
    """Workers after a dense warm-up, on the plan itself, which has made no step yet."""
    net = model()
    whole = Plan.make(describe(dict(net.named_parameters())), Strategy.parse(plan))
    workers = Workers(at_density(whole, 1.0, WORLD), WORLD)
    for step in range(steps):
        workers.exchange([gradients(net, step, r) for r in range(WORLD)])
    workers.adopt(whole)
    return workers


def mean_waiting(workers: Workers) -> dict[str, Tensor]:
    waiting = [ledger.waiting() for ledger in workers.ledgers]
    return {name: sum(x[name] for x in waiting) / WORLD for name in waiting[0]}  # type: ignore[misc]


@pytest.mark.parametrize("plan", TRAVEL)
def test_nothing_is_lost_on_the_way(plan: str) -> None:
    """u plus the residuals is m·u + (1 - m)·g plus the residuals before, owners' included."""
    net, workers = model(), warmed(plan)
    u, waited = None, None
    for step in range(30, 36):
        own = [gradients(net, step, r) for r in range(WORLD)]
        mean = {n: sum(x[n] for x in own) / WORLD for n in own[0]}
        new = {n: x.clone() for n, x in workers.exchange(own).items()}
        waits = mean_waiting(workers)
        if u is not None:
            for name, x in waits.items():
                wanted = 0.9 * u[name] + 0.1 * mean[name]
                wanted = wanted.reshape(-1) + waited[name]  # type: ignore[index]
                torch.testing.assert_close(new[name].reshape(-1) + x, wanted, rtol=1e-4, atol=1e-6)
        u, waited = new, waits
    assert any(float(x.abs().max()) > 0 for x in waits.values())


@pytest.mark.parametrize("plan", TRAVEL[:3])
def test_what_waits_is_neither_lost_nor_doubled_when_the_plan_changes(plan: str) -> None:
    net, workers = model(), warmed(plan)
    for step in range(30, 33):
        workers.exchange([gradients(net, step, r) for r in range(WORLD)])
    before = mean_waiting(workers)
    other = plan.replace("onebit", "int8").replace("topk(0.1)", "topk(0.3)")
    workers.adopt(Plan.make(describe(dict(net.named_parameters())), Strategy.parse(other)))
    after = mean_waiting(workers)
    assert float(before["0.weight"].abs().max()) > 0
    for name, x in before.items():
        torch.testing.assert_close(after[name].reshape(-1), x.reshape(-1))
    assert not any(ledger.leftovers for ledger in workers.ledgers), "gradients count otherwise"


@pytest.mark.parametrize("plan", TRAVEL)
def test_it_follows_the_scale_of_the_loss(plan: str) -> None:
    """From some step on all is four times as large: the same bits, with exponents 2 higher."""

    def last(factor: float) -> Tensor:
        net, workers = model(), warmed(plan)
        for step in range(30, 36):
            scale = factor if step > 32 else 1.0
            if step == 33:
                for ledger in workers.ledgers:
                    ledger.scale(factor)
            own = [gradients(net, step, r) for r in range(WORLD)]
            found = workers.exchange([{n: scale * x for n, x in mine.items()} for mine in own])
        return found["0.weight"].clone()

    assert torch.equal(last(4.0), 4.0 * last(1.0))
