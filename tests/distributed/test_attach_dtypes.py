"""float64 travels whole or not at all; complex gradients never do."""

from __future__ import annotations

import math
import os
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, from_all, gradients, loss_of, raised, small
from small import local_gradients as local
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import PlanError
from gradwire.tuning import profile_only

TOPK = "topk(0.1)+ef | allgather"


def no_dtype_for_it() -> None:
    """Such a dtype is refused when attaching, not in the middle of the first step."""
    double = nn.Linear(2, 2).double()
    for plan in (TOPK, "fp16 | allreduce", "none | alltoall", "none+ef | allgather"):
        text = raised(lambda p=plan: gradwire.attach(double, p, timeout_seconds=9.0), PlanError)
        assert "weight" in text
        assert "float64 must be sent uncompressed" in text
    assert "'weight' is float64" in raised(lambda: gradwire.attach(double, "auto"))
    with patch.dict(os.environ, profile_only.asked("never.json")):
        assert "'weight' is float64" in raised(lambda: gradwire.attach(double, "none | allreduce"))
    text = raised(lambda: gradwire.attach(nn.Linear(2, 2, dtype=torch.complex64), TOPK))
    assert "'weight' is torch.complex64" in text


def test_a_dtype_that_cannot_travel_is_refused_at_once(three: Ranks) -> None:
    three.run(no_dtype_for_it)


def double(strategy: str, ddp: bool, **options: Any) -> None:
    """float64 averages are as exact as float64, beside parameters in fp32; NaN where a rank had
    NaN."""
    model = small().double()
    model.two.float()
    model.forward = lambda x: model.two(  # type: ignore[method-assign]
        torch.tanh(model.one(model.norm(model.conv(x.double()).flatten(1)))).float()
    )
    module = DistributedDataParallel(model) if ddp else model
    mine = local(model)
    with attached(module, strategy, lanes=2, bucket_bytes=900, **options) as handle:
        loss_of(module).backward()
        found = gradients(model)
        for name, g in mine.items():
            wanted = sum(from_all(g)) / dist.get_world_size()  # type: ignore[operator]
            digits = 1e-14 if g.dtype == torch.float64 else 1e-6
            torch.testing.assert_close(found[name], wanted, rtol=digits, atol=digits, msg=name)
        model.zero_grad()
        handle.flush()  # no residual is left
        assert not any(g.any() for g in gradients(model).values())
        model.zero_grad()
        (loss_of(module) * (math.nan if dist.get_rank() == 1 else 1.0)).backward()
        assert all(g.isnan().all() for g in gradients(model).values())


@pytest.mark.parametrize("ddp", [False, True])
def test_float64_travels_whole(three: Ranks, ddp: bool) -> None:
    three.run(double, "none | allreduce", ddp)
    three.run(double, "none | allgather", ddp)


def beside_others() -> None:
    double("topk(1.0)+ef | allgather", False, exclude=["conv.*", "norm.*", "one.*"])


def test_float64_beside_what_is_compressed(three: Ranks) -> None:
    three.run(beside_others)
