"""Gates that need no training: what must hold for a method's state, whatever it is trained on.

Each gives a method random gradients and returns how far off it is: a relative error, which must be
below TOLERANCE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from exchange import Exchange
from methods import Method
from task import Settings, dice
from torch import Tensor, nn

TOLERANCE = 1e-5
WORKERS, STEPS = 4, 30
PLAIN = Settings(rate=0.1, schedule=lambda part: 1.0)


def model() -> nn.Module:
    """Returns a model of two matrices and two vectors, with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 20))


def gradients(network: nn.Module, step: int, scale: float = 1.0) -> list[dict[str, Tensor]]:
    """Returns the gradients of all workers: they share a direction, and each has noise of its
    own."""
    generator = dice("oracle", step)
    shapes = {name: p.shape for name, p in network.named_parameters()}
    common = {n: torch.randn(s, generator=dice("oracle", n)) for n, s in shapes.items()}
    return [
        {n: scale * (common[n] + torch.randn(s, generator=generator)) for n, s in shapes.items()}
        for _ in range(WORKERS)
    ]


def conservation(method: Method, density: float = 0.05) -> float:
    """Checks that nothing is lost: what was given, minus averages and residuals.

    Σ residuals + workers · Σ averages = Σ gradients, for error feedback without momentum.
    """
    network = model()
    exchange = _exchange(network, method, PLAIN, density)
    given = {n: torch.zeros(p.shape, dtype=torch.float64) for n, p in network.named_parameters()}
    accounted = {name: x.clone() for name, x in given.items()}
    for step in range(STEPS):
        drawn = gradients(network, step)
        for name, total in given.items():
            total += sum(mine[name].double() for mine in drawn)
        for name, average in exchange(drawn).items():
            accounted[name] += WORKERS * average.double()
    for ledger in exchange.workers.ledgers:
        for name, waiting in ledger.waiting().items():
            unit = getattr(exchange.workers, "unit", 1.0)
            accounted[name] += waiting.view_as(accounted[name]).double() / unit
    return _apart(accounted.values(), given.values())


def same_as_sgd(method: Method) -> float:
    """Checks that at density 1 without masking, momentum correction is torch.optim.SGD, with
    weight decay too."""
    settings = replace(PLAIN, momentum=0.9, weight_decay=0.01)
    ours, theirs = model(), model()
    exchange = _exchange(ours, replace(method, densities=()), settings, density=1.0)
    optimizer = method.make_optimizer(ours, settings, STEPS)
    dense = torch.optim.SGD(theirs.parameters(), settings.rate, 0.9, weight_decay=0.01)
    for step in range(STEPS):
        drawn = gradients(ours, step, 0.1)
        for name, p in theirs.named_parameters():
            p.grad = torch.stack([mine[name] for mine in drawn]).mean(0)
        averages = exchange(drawn)
        for name, p in ours.named_parameters():
            p.grad = averages[name]
        optimizer.step()
        dense.step()
    return _apart(
        [p.detach() for p in ours.parameters()], [p.detach() for p in theirs.parameters()]
    )


def _exchange(network: nn.Module, method: Method, settings: Settings, density: float) -> Exchange:
    return Exchange(
        network, method, settings, workers=WORKERS, steps=STEPS, density=density, seed=0
    )


def _apart(found: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Returns the largest relative error of a parameter; inf if a number is not finite."""
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(found, expected)]
    return max(e if e == e else float("inf") for e in errors)
