"""The conductor under stress: thousands of steps, many buckets, ranks out of phase.

Every gradient says which step, bucket and rank it belongs to, and all sums are exact, so a single
pair of mismatched moves would show as a wrong number.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached
from torch import nn

from gradwire import Plan, Strategy
from gradwire.buckets import Bucket
from gradwire.testing import Jitter, inject
from gradwire.training.session import describe

BUCKETS = 16


class Tiny(nn.Module):
    """Sixteen parameters whose gradients are the given numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(2, 3)) for _ in range(BUCKETS))

    def forward(self, slopes: list[float], order: list[int]) -> torch.Tensor:
        terms = [(self.weights[i] * slopes[i]).sum() for i in order]
        return torch.stack(terms).sum()


def plan_of(model: nn.Module, lanes: int) -> Plan:
    """One bucket per parameter; with and without a header, with and without memory."""
    kinds = [
        Strategy.parse(s)
        for s in ("none | allreduce", "topk(1.0)+ef | allgather", "none | allgather")
    ]
    described = describe(dict(model.named_parameters()))
    buckets = tuple(Bucket((p,)) for p in reversed(described))
    return Plan(buckets, tuple(kinds[i % 3] for i in range(BUCKETS)), lanes)


def stress(lanes: int, steps: int) -> float:
    """Trains while a fault delays one rank's moves. Returns how many averages were wrong."""
    rank, dice = dist.get_rank(), random.Random(dist.get_rank())
    model, wrong = Tiny(), 0
    order = list(range(BUCKETS))
    with attached(model, plan_of(model, lanes), lanes=lanes, timeout_seconds=20.0) as handle:
        inject(handle, Jitter(0.002, 0.02, seed=5), rank=1)
        for step in range(steps):
            base = (step % 1000) * 48
            dice.shuffle(order)  # the buckets become ready in another order on every rank
            slopes = [float(base + 3 * i + rank) for i in range(BUCKETS)]
            model.zero_grad()
            model(slopes, order).backward()
            found = torch.stack([p.grad for p in model.weights])  # type: ignore[arg-type, misc]
            wanted = base + 3.0 * torch.arange(BUCKETS) + 1
            wrong += int((found != wanted.view(-1, 1, 1)).sum())
        assert handle.stats()["steps"] == steps
    return wrong


@pytest.mark.full
@pytest.mark.timeout(600)  # attach's own timeout finds a mismatch
@pytest.mark.parametrize("lanes", [1, 3])
def test_two_thousand_steps_without_a_mismatch(three: Ranks, lanes: int) -> None:
    assert three.run(stress, lanes, 2000, timeout_seconds=560) == [0, 0, 0]


def more_lanes_than_buckets() -> int:
    return stress(2 * BUCKETS + 1, 5)


def test_more_lanes_than_buckets(three: Ranks) -> None:
    assert three.run(more_lanes_than_buckets) == [0, 0, 0]
