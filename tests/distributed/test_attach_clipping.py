"""Local clipping of an attached model, by this step's norm or the one before."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import (
    attached,
    entry,
    fingerprint,
    from_all,
    gradients,
    local_gradients,
    loss_of,
    small,
    train,
)

DGC = "dgc(0.1) | allgather"


def norm_of(values: Any) -> float:
    return math.sqrt(sum(float(x.double().square().sum()) for x in values))


def clipped(limit: float) -> None:
    """Dense averages are those of gradients times min(1, √N·c / the norm of the step before)."""
    model, world, before = small(), dist.get_world_size(), None
    with attached(model, "none | allreduce", clip_norm=limit, clip_overlap=True) as handle:
        for step in range(4):
            local = local_gradients(model, step)
            norm = norm_of(local.values())
            known = norm if before is None else before  # the first step waits for all gradients
            scale = min(1.0, limit * math.sqrt(world) / known)
            assert (scale < 1) == (limit < 1)
            model.zero_grad()
            loss_of(model, step).backward()
            for name, found in gradients(model).items():
                wanted = sum(from_all(local[name] * scale)) / world
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
            before = norm
        own: Any = entry(handle)["gradient_norm"]
        assert own == pytest.approx(before, rel=1e-5)


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_clipping_by_the_step_before(three: Ranks, limit: float) -> None:
    three.run(clipped, limit)


def clipped_beside(plan: str, several: bool) -> None:
    """Each rank's gradient is scaled by min(1, limit / its norm)."""
    model, norm = small(), 0.05
    with attached(model, plan, clip_norm=norm, optimizer="adamw") as handle:
        for step in range(2):
            limit = norm * math.sqrt(dist.get_world_size()) if several else norm
            model.zero_grad()
            loss_of(model, step).backward()
            wanted = min(1.0, limit / norm_of(local_gradients(model, step).values()))
            assert wanted < 1.0
            assert handle._session.clip_scale == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("plan", "several"), [("int8+ef | allgather", True), ("none+adam | allgather", False)]
)
def test_the_limit_is_the_average_s_where_ranks_divide_by_their_own_lengths(
    three: Ranks, plan: str, several: bool
) -> None:
    three.run(clipped_beside, plan, several)


def bad_norm() -> tuple[bool, bool]:
    """inf is not remembered as the norm of the step before."""
    model = small()
    with attached(model, DGC, clip_norm=1e-3, clip_overlap=True) as handle:
        train(model, range(1))
        before = entry(handle)["gradient_norm"]
        bad = loss_of(model, 1) * (math.inf if dist.get_rank() == 1 else 1.0)
        model.zero_grad()
        bad.backward()
        return entry(handle)["gradient_norm"] == before, dist.get_rank() == 1


def test_a_bad_norm_is_not_remembered(three: Ranks) -> None:
    assert all(same == is_bad for same, is_bad in three.run(bad_norm))


def norm_of_nothing() -> tuple[float, float]:
    """One rank has no batch in a step; then all ranks have a gradient far above the limit."""
    model = small()
    with attached(model, "none | allreduce", clip_norm=1e-3, clip_overlap=True) as handle:
        loss_of(model).backward()
        before = entry(handle)["gradient_norm"]
        model.zero_grad()
        if dist.get_rank() == 1:
            handle.synchronize()
        else:
            loss_of(model, 1).backward()
        seen = entry(handle)["gradient_norm"]
        model.zero_grad()
        loss_of(model, 2).backward()
        same = seen == before
        return float(same == (dist.get_rank() == 1)), float(norm_of(gradients(model).values()))


def test_the_norm_of_no_gradient_is_not_remembered(three: Ranks) -> None:
    for right, norm in three.run(norm_of_nothing):
        assert right
        assert norm < 1e-2


def clipped_again() -> bool:
    """A state from before the first step has no norm: after loading it, the same steps follow."""
    model = small()
    with attached(model, DGC, clip_norm=0.05, clip_overlap=True) as handle:
        first = copy.deepcopy((model.state_dict(), handle.state_dict()))
        train(model, range(3))
        wanted = fingerprint(model.parameters())
        model.load_state_dict(first[0])
        handle.load_state_dict(first[1])
        train(model, range(3))
        return fingerprint(model.parameters()) == wanted


def test_going_back_to_before_the_first_norm(three: Ranks) -> None:
    assert all(three.run(clipped_again))


def spike(plan: str) -> float:
    """The norm of the average where rank 1's gradient is finite, and its square is not."""
    model = small()
    with attached(model, plan, clip_norm=0.05):
        (loss_of(model) * (1e22 if dist.get_rank() == 1 else 1.0)).backward()
        return norm_of(gradients(model).values())


@pytest.mark.parametrize("plan", ["none | allreduce", "int8+ef | allgather"])
def test_a_norm_whose_square_overflows_is_clipped(three: Ranks, plan: str) -> None:
    assert all(0.0 < norm < 1.01 * 0.05 * math.sqrt(3) for norm in three.run(spike, plan))
