"""inf and NaN: every rank sees them, no residual does, and nothing that was sent is lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import (
    attached,
    entry,
    fingerprint,
    gradients,
    loss_of,
    mean,
    residuals,
    small,
)
from torch import Tensor, nn

TOPK = "topk(0.1)+ef | allgather"


class Told(nn.Module):
    """A model whose gradients are the given tensors: two matrices and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(8, 8))
        self.b = nn.Parameter(torch.zeros(8, 8))
        self.c = nn.Parameter(torch.zeros(8))

    def forward(self, slopes: dict[str, Tensor]) -> Tensor:
        return torch.stack([(p * slopes[n]).sum() for n, p in self.named_parameters()]).sum()


def slopes(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return {
        n: torch.randn(s, generator=generator)
        for n, s in (("a", (8, 8)), ("b", (8, 8)), ("c", (8,)))
    }


def non_finite(strategy: str, where: str, value: float) -> None:
    """One bad number on rank 1: averages are NaN in that bucket and in all buckets whose entries
    go back to residuals, and residuals lose nothing."""
    model = Told()
    with attached(model, strategy, bucket_bytes=8) as handle:
        for step in range(4):
            model.zero_grad()
            model(slopes(step)).backward()
        before = residuals(handle)
        velocity = {
            n: v["velocity"].clone() for n, v in entry(handle)["state"].items() if "velocity" in v
        }
        given = slopes(4)
        bad = {n: g.clone() for n, g in given.items()}
        if dist.get_rank() == 1:
            bad[where].view(-1)[5] = value
        model.zero_grad()
        model(bad).backward()
        grads = gradients(model)
        for name, g in grads.items():
            spoiled = name == where or name in before or name in velocity
            assert (g.isnan() if spoiled else g.isfinite()).all(), name
        after = residuals(handle)
        for name, kept in before.items():
            assert after[name].isfinite().all()
            if name == where:  # as they were
                torch.testing.assert_close(after[name], kept, rtol=1e-5, atol=1e-6)
            elif "dgc" not in strategy:  # given back: all of the gradient, nothing sent
                torch.testing.assert_close(after[name], kept + given[name], rtol=1e-5, atol=1e-6)
        for name, kept in velocity.items():
            now = entry(handle)["state"][name]["velocity"]
            if name == where:
                torch.testing.assert_close(now, kept, rtol=1e-5, atol=1e-6)
            elif name in before:  # u = m·u + g, nothing masked; v = v + u
                torch.testing.assert_close(now, 0.9 * kept + given[name], rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(after[name], before[name] + now, rtol=1e-5, atol=1e-6)
        for step in range(5, 8):  # training goes on
            model.zero_grad()
            model(slopes(step)).backward()
            assert all(g.isfinite().all() for g in gradients(model).values())


@pytest.mark.once
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("strategy", [TOPK, "dgc(0.1) | allgather", "bf16+ef | allreduce"])
def test_one_bad_number(three: Ranks, strategy: str, value: float) -> None:
    for where in ("a", "c"):
        three.run(non_finite, strategy, where, value)


def stepped_all_the_same(strategy: str) -> None:
    """Bad numbers are replaced by zeros and the step is taken: no gradient counts twice."""
    model, total = Told(), torch.zeros(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with attached(model, strategy, bucket_bytes=8) as handle:
        for step in range(6):
            given = slopes(step)
            total += mean(given["b"])
            if step == 3 and dist.get_rank() == 1:
                given["a"][2, 2] = torch.inf
            optimizer.zero_grad()
            model(given).backward()
            for p in model.parameters():
                assert p.grad is not None
                p.grad.nan_to_num_(0.0, 0.0, 0.0)
            optimizer.step()
        optimizer.zero_grad()
        handle.flush()
        optimizer.step()
    torch.testing.assert_close(model.b.detach(), -total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "strategy", [TOPK, "bf16+ef | allgather", "powersgd(2)", "onebit+ef | alltoall"]
)
def test_a_spoiled_step_counts_nothing_twice(three: Ranks, strategy: str) -> None:
    three.run(stepped_all_the_same, strategy)


def without_memory(strategy: str) -> None:
    model = Told()
    with attached(model, strategy, bucket_bytes=8):
        bad = slopes(0)
        if dist.get_rank() == 2:
            bad["b"][3, 3] = -torch.inf
        model(bad).backward()
        grads = gradients(model)
        assert not grads["b"].isfinite().all()
        assert grads["a"].isfinite().all()
        assert grads["c"].isfinite().all()
        assert fingerprint(grads.values()) == fingerprint(gradients(model).values())


@pytest.mark.parametrize(
    "strategy", ["none | allreduce", "fp16 | allreduce", "topk(0.1) | allgather"]
)
def test_bad_numbers_reach_everybody_without_memory_too(three: Ranks, strategy: str) -> None:
    three.run(without_memory, strategy)


def amp() -> list[Any]:
    """With torch's own scaler all ranks skip the same steps and end equal."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
    scales = []
    with attached(model, "dgc(0.1) | allgather", scaler=scaler):
        for step in range(10):
            optimizer.zero_grad()
            loss = scaler.scale(loss_of(model, step))
            if step in (2, 7) and dist.get_rank() == step % 3:
                loss = loss * torch.inf
            before = fingerprint(model.parameters())
            loss.backward()
            scaler.step(optimizer)
            scaler.update()
            assert (fingerprint(model.parameters()) == before) == (step in (2, 7))
            scales.append(scaler.get_scale())
    return [scales, fingerprint(model.parameters())]


def test_the_gradient_scaler_skips_everywhere(three: Ranks) -> None:
    first, *others = three.run(amp)
    assert all(other == first for other in others)
