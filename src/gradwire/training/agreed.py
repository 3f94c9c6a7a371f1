"""What all ranks must have alike before anything is exchanged, and who says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from gradwire.errors import PlanError
from gradwire.layout.message import WIRE_VERSION
from gradwire.plan import Plan
from gradwire.runtime.process_groups import differing

T = TypeVar("T")


def same_plan(
    group: dist.ProcessGroup, device: torch.device, settings: str, make: Callable[[], Plan]
) -> Plan:
    """What `make` makes, if it is the same on every rank, and so are the settings."""
    return same_everywhere(
        group, device, make, lambda plan: f"{_in_short(plan)} {settings}",
        "all ranks attach the same plan to the same model",
        "Pass the same plan, and build the same model, everywhere.",
    )  # fmt: skip


def same_everywhere(
    group: dist.ProcessGroup, device: torch.device, make: Callable[[], T],
    told: Callable[[T], str], rule: str, instead: str,
) -> T:  # fmt: skip
    """What `make` makes, if all ranks tell the same of it; PlanError by the rule, if not; its own
    error, where it raises one, and a PlanError on the others. Collective."""
    try:
        made = make()
    except Exception as problem:  # whatever it is, the others must not wait for us
        differing(f"! {problem}", group, device)
        raise
    mine = told(made)
    wrong = differing(mine, group, device)
    if wrong:
        facts = "; ".join(f"rank {rank}: {text[:200]}" for rank, text in list(wrong.items())[:4])
        raise PlanError(
            f"{rule}; rank {dist.get_rank(group)} has {mine[:200]}, but {facts}. {instead}"
        )
    return made


def _in_short(plan: Plan) -> str:
    """What tells it from another: first what a reader may know of the model."""
    parameters = [p for bucket in plan.buckets for p in bucket.parameters]
    elements = sum(p.elements for p in parameters)
    return (
        f"{len(parameters)} parameters of {elements:,} elements in {len(plan.buckets)} buckets, "
        f"'{plan.main_strategy}' (plan {plan.digest():x}, messages of version {WIRE_VERSION})"
    )
