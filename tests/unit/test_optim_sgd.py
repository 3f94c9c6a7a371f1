"""gradwire.optim.SGD equals torch's SGD, whether it or the strategy keeps the momentum."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from gradwire import Plan, Strategy
from gradwire.errors import UsageError
from gradwire.optim import SGD
from gradwire.testing import Workers
from gradwire.training.session import describe

STEPS, LR = 60, 0.05


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))


def batches(world: int, step: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(step)
    return torch.randn(world, 8, 20, generator=dice), torch.randn(world, 8, 5, generator=dice)


def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (net(x) - y).square().mean()


def trained_by_torch(world: int, **options: float) -> list[Tensor]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), LR, **options)  # type: ignore[arg-type]
    for step in range(STEPS):
        x, y = batches(world, step)
        optimizer.zero_grad()
        loss(net, x.flatten(0, 1), y.flatten(0, 1)).backward()
        optimizer.step()
    return list(net.parameters())


def trained_by_plan(
    strategy: str, world: int, make: Callable[[nn.Module], torch.optim.Optimizer]
) -> list[Tensor]:
    net = model()
    named = dict(net.named_parameters())
    workers = Workers(Plan.make(describe(named), Strategy.parse(strategy)), world)
    optimizer = make(net)
    for step in range(STEPS):
        x, y = batches(world, step)
        gradients = []
        for rank in range(world):
            optimizer.zero_grad()
            loss(net, x[rank], y[rank]).backward()
            gradients.append({name: p.grad for name, p in named.items()})
        for name, average in workers.exchange(gradients).items():  # type: ignore[arg-type]
            named[name].grad = average
        optimizer.step()
    return list(net.parameters())


def far(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(one, other))


@pytest.mark.parametrize(
    ("momentum", "nesterov", "decay"),
    [c for c in product((0.0, 0.9), (False, True), (0.0, 1e-2)) if c[0] or not c[1]],
)
def test_alone_it_is_torchs_to_the_bit(momentum: float, nesterov: bool, decay: float) -> None:
    """Weights are in float32."""
    options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay}
    one, other = model(), model()
    ours = SGD(one.parameters(), LR, **options)  # type: ignore[arg-type]
    theirs = torch.optim.SGD(other.parameters(), LR, **options)  # type: ignore[arg-type]
    for step in range(STEPS):
        x, y = batches(1, step)
        for net, optimizer in ((one, ours), (other, theirs)):
            optimizer.zero_grad()
            loss(net, x[0], y[0]).backward()
            optimizer.step()
    assert far(list(one.parameters()), list(other.parameters())) == 0.0


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_at_density_one_without_mask_it_is_torchs(
    world: int, nesterov: bool, decay: float
) -> None:
    options = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": decay}
    found = trained_by_plan(
        f"dgc(1.0, nesterov={nesterov}, mask=False) | allgather", world,
        lambda net: SGD(net.parameters(), LR, momentum_kept=True, **options),  # type: ignore[arg-type]
    )  # fmt: skip
    apart = far(found, trained_by_torch(world, **options))
    assert apart <= 1e-6
    if world == 1 and not decay and not nesterov:  # where the order of operations allows
        assert apart == 0.0


def test_with_mask_nothing_has_momentum() -> None:
    """Elements that are sent in every step lose their velocity in it; vectors travel dense."""
    net = nn.Linear(6, 4, bias=False)
    twin = copy.deepcopy(net)
    workers = Workers(
        Plan.make(describe(dict(net.named_parameters())), Strategy.parse("dgc(1.0) | allgather")),
        1,
    )
    ours = SGD(net.parameters(), LR, momentum=0.9, momentum_kept=True)
    theirs = torch.optim.SGD(twin.parameters(), LR)
    for step in range(10):
        x = torch.randn(3, 6, generator=torch.Generator().manual_seed(step))
        (g,) = torch.autograd.grad(net(x).square().sum(), net.weight)
        net.weight.grad = workers.exchange([{"weight": g}])["weight"]
        twin.weight.grad = torch.autograd.grad(twin(x).square().sum(), twin.weight)[0]
        ours.step()
        theirs.step()
    assert torch.equal(net.weight, twin.weight)


def test_weight_decay_outside_the_momentum_is_another_training() -> None:
    """As a control: with λ·w added after the momentum, the weights are far from torch's."""
    options = {"momentum": 0.9, "weight_decay": 1e-2}
    found = trained_by_plan(
        "dgc(1.0, mask=False) | allgather", 1,
        lambda net: torch.optim.SGD(net.parameters(), LR, weight_decay=1e-2),
    )  # fmt: skip
    assert far(found, trained_by_torch(1, **options)) > 1e-3


def test_state_is_saved_and_goes_on() -> None:
    one, other = model(), model()
    ours = SGD(one.parameters(), LR, momentum=0.9, weight_decay=0.1, momentum_kept=True)
    for step in range(6):
        if step == 3:
            other.load_state_dict(one.state_dict())
            again = SGD(other.parameters(), LR, momentum=0.9, momentum_kept=True)
            again.load_state_dict(copy.deepcopy(ours.state_dict()))
        x, y = batches(1, step)
        for net, optimizer in ((one, ours), *(((other, again),) if step >= 3 else ())):
            optimizer.zero_grad()
            loss(net, x[0], y[0]).backward()
            optimizer.step()
    assert far(list(one.parameters()), list(other.parameters())) == 0.0


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("kept", [False, True])
def test_copies_go_on(how: Callable[[SGD], SGD], kept: bool) -> None:
    w = nn.Parameter(torch.ones(3))
    first = SGD([w], 0.1, momentum=0.9, weight_decay=0.1, momentum_kept=kept)
    w.grad = torch.ones(3)
    first.step()
    second = how(first)
    (copied,) = second.param_groups[0]["params"]
    copied.grad = torch.ones(3)
    for optimizer in (first, second):
        optimizer.step()
    assert copied is not w
    assert torch.equal(copied, w)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    ("first", "second"), [(SGD, torch.optim.SGD), (torch.optim.SGD, SGD), (SGD, SGD)]
)
def test_a_state_goes_over_from_torchs_and_to_it(
    first: Callable[..., torch.optim.Optimizer],
    second: Callable[..., torch.optim.Optimizer],
    nesterov: bool,
) -> None:
    """Momentum and settings are taken over, and training goes on to the bit as it would have."""
    one, other = model(), model()
    before = first(one.parameters(), LR, momentum=0.9, weight_decay=0.1, nesterov=nesterov)
    for step in range(6):
        if step == 3:
            other.load_state_dict(one.state_dict())
            after = second(other.parameters(), lr=1.0)
            after.load_state_dict(copy.deepcopy(before.state_dict()))
        x, y = batches(1, step)
        for net, optimizer in ((one, before), *(((other, after),) if step >= 3 else ())):
            optimizer.zero_grad()
            loss(net, x[0], y[0]).backward()
            optimizer.step()
    assert far(list(one.parameters()), list(other.parameters())) == 0.0


def test_a_state_of_complex_parameters_goes_on() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    one, other = (SGD([weight], LR, 0.9) for _ in range(2))
    weight.grad = torch.full_like(weight, 1 + 2j)
    one.step()
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.state[weight]["momentum_buffer"], weight.grad)
    real = SGD([nn.Parameter(torch.ones(3))], LR, 0.9)
    with pytest.raises(UsageError, match="must be a tensor of floating-point numbers"):
        real.load_state_dict(one.state_dict())


def test_a_state_saved_before_groups_said_so_loads() -> None:
    optimizer = SGD(model().parameters(), LR)
    state = optimizer.state_dict()
    for name in ("dampening", "maximize"):
        state["param_groups"][0].pop(name, None)
    optimizer.load_state_dict(state)
    optimizer.step()


@pytest.mark.parametrize("other", [{"dampening": 0.5}, {"maximize": True}])
def test_what_only_torchs_does_is_refused_at_a_step(other: dict[str, float]) -> None:
    """It is refused in a group or in a state, before any group's weights have moved."""
    first, second = (nn.Parameter(torch.ones(3)) for _ in range(2))
    groups = [{"params": [first]}, {"params": [second], **other}]
    theirs = torch.optim.SGD(copy.deepcopy(groups), LR, momentum=0.9)
    loaded = SGD([{"params": [first]}, {"params": [second]}], LR)
    loaded.load_state_dict(theirs.state_dict())
    ((name, value),) = other.items()
    for optimizer in (SGD(groups, LR, momentum=0.9), loaded):
        first.grad, second.grad = torch.ones(3), torch.ones(3)
        with pytest.raises(UsageError, match=rf"{name}={value}.*torch\.optim\.SGD"):
            optimizer.step()
        assert torch.equal(first, torch.ones(3))


def test_a_closure_and_frozen_parameters() -> None:
    net = model()
    next(net.parameters()).requires_grad_(False)
    optimizer = SGD(net.parameters(), LR)
    x, y = batches(1, 0)

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(net, x[0], y[0])
        value.backward()
        return value.item()

    assert optimizer.step(closure) > optimizer.step(closure)  # type: ignore[operator]


@pytest.mark.parametrize(
    "options", [
        {"lr": -1.0}, {"momentum": 1.0}, {"weight_decay": -0.1}, {"nesterov": True},
        {"lr": math.nan}, {"weight_decay": math.nan}, {"lr": "0.1"}, {"momentum": None},
        {"lr": torch.ones(2)},
    ],
)  # fmt: skip
def test_what_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="momentum"):
        SGD(model().parameters(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True}])
def test_sparse_gradients_go_without_weight_decay_and_nesterov(options: dict[str, float]) -> None:
    """They are refused before any step, and go with a plain momentum, as in torch."""
    table, other, twin = (nn.Parameter(torch.ones(5, 2)) for _ in range(3))
    table.grad = torch.ones(5, 2).to_sparse(1)
    other.grad, twin.grad = torch.ones(5, 2), torch.ones(5, 2)
    optimizer = SGD([{"params": [other]}, {"params": [table]}], LR, **options)
    with pytest.raises(UsageError, match=r"must be dense.*\[5, 2\].*sparse_coo\. Put it into"):
        optimizer.step()
    assert torch.equal(other, torch.ones(5, 2)), "nothing was stepped"
    plain, wanted = SGD([table], LR, 0.9), torch.optim.SGD([twin], LR, 0.9)
    for _ in range(3):
        plain.step()
        wanted.step()
    assert torch.equal(table, twin)
