"""`gradwire.ddp_kwargs`: DDP's own buckets become the plan's, from the second iteration on."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import UsageError
from gradwire.training.session import describe


def layout() -> tuple[list[list[str]], list[list[str]]]:
    model = nn.Sequential(*[nn.Linear(10 + i, 11 + i) for i in range(8)])
    names = {id(p): name for name, p in model.named_parameters()}
    parameters = describe(dict(model.named_parameters()))
    strategy = gradwire.Strategy.parse("none | allreduce")
    plan = gradwire.Plan.make(parameters, strategy, bucket_bytes=1500)
    ddp = DistributedDataParallel(model, **gradwire.ddp_kwargs(plan))
    seen: list[list[str]] = []

    def hook(state: Any, bucket: Any) -> Any:
        seen.append([names[id(p)] for p in bucket.parameters()])
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__.clear()  # DDP refuses annotations that are strings
    ddp.register_comm_hook(None, hook)
    for _ in range(2):
        seen.clear()
        ddp(torch.randn(2, 10)).sum().backward()
    return seen, [list(bucket.names) for bucket in plan.buckets]


@pytest.mark.skipif(
    "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel).parameters,
    reason="this torch's DDP has no bucket_cap_mb_list (2.13 has)",
)
def test_ddp_cuts_where_the_plan_does(three: Ranks) -> None:
    for seen, planned in three.run(layout):
        assert len(planned) > 3
        assert seen == planned


def test_a_text_is_no_plan() -> None:
    with pytest.raises(UsageError, match=r"takes a Plan; got .none . allreduce."):
        gradwire.ddp_kwargs("none | allreduce")  # type: ignore[arg-type]
