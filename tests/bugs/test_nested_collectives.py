"""Collectives of two rounds, over many buckets, with a rank that is late.

The natural way to write one in a DDP hook, `all_reduce(...).get_future().then(second_round)`,
hangs on Gloo as soon as there are several buckets, and PyTorch's own PowerSGD with it: callbacks
run in different orders on different ranks, so that rank A's second move for bucket 1 meets rank
B's for bucket 0. torchrec #4149 and sglang #38268 are incidents of the same kind. A generator of
moves on a lane cannot do that.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire import Strategy
from gradwire.compressors import Identity
from gradwire.moves import AllGather, AllReduce, Move
from gradwire.strategy import Collective, Context
from gradwire.testing import Jitter, inject


@dataclass(frozen=True)
class TwoRounds(Collective):
    """Takes the sum, then the largest of what every rank holds as its sum: the same, if the second
    round had the right partner.
    """

    name: ClassVar[str] = "two_rounds"
    needs: ClassVar[tuple[str, ...]] = ("sums",)

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        total = (yield AllReduce(ctx.numbers())).clone()
        everybodys = yield AllGather(total)
        assert all(torch.equal(part, total) for part in everybodys), "met the wrong partner"
        ctx.divide(everybodys.max(dim=0).values)


def two_rounds(ddp: bool, lanes: int, steps: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(10)])
    reference = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(10)])
    reference.load_state_dict(model.state_dict())
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.02) if ddp else model
    strategy = Strategy(Identity(), TwoRounds())
    with attached(wrapped, strategy, lanes=lanes, bucket_bytes=64 * 64 * 4) as handle:
        assert len(handle.plan.buckets) == 10
        inject(handle._session.conductor, Jitter(0.01, 0.3, seed=3), rank=1)
        for step in range(steps):
            generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
            x = torch.randn(2, 64, generator=generator)
            wrapped.zero_grad()
            wrapped(x).square().sum().backward()
            for p, wanted in zip(model.parameters(), expected(reference, step)):
                assert p.grad is not None
                torch.testing.assert_close(p.grad, wanted, rtol=1e-4, atol=1e-6)


def expected(model: nn.Module, step: int) -> list[Tensor]:
    totals = [torch.zeros_like(p) for p in model.parameters()]
    for rank in range(dist.get_world_size()):
        generator = torch.Generator().manual_seed(10 * step + rank)
        loss = model(torch.randn(2, 64, generator=generator)).square().sum()
        for total, g in zip(totals, torch.autograd.grad(loss, list(model.parameters()))):
            total += g
    return [total / dist.get_world_size() for total in totals]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("ddp", [False, True], ids=["plain", "ddp"])
def test_two_dependent_rounds_over_many_buckets(three: Ranks, ddp: bool, lanes: int) -> None:
    three.run(two_rounds, ddp, lanes, 30)
