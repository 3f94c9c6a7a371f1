"""Checks that all ranks agree before anything is exchanged; errors name ranks that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from gradwire.errors import PlanError
from gradwire.layout.message import WIRE_VERSION
from gradwire.plan import Plan
from gradwire.runtime.process_groups import differing
from gradwire.runtime.torch_dist import Performer

T = TypeVar("T")


def same_plan(
    group: dist.ProcessGroup, device: torch.device, settings: str, make: Callable[[], Plan]
) -> Plan:
    """Returns the plan that `make` makes; raises PlanError unless it and the settings are the same
    on every rank. Collective."""
    return same_everywhere(
        group, device, make, lambda plan: f"{_in_short(plan)} {settings}",
        "all ranks must attach the same plan to the same model",
        "Pass the same plan, and build the same model, on every rank.",
    )  # fmt: skip


def same_everywhere(
    group: dist.ProcessGroup, device: torch.device, make: Callable[[], T],
    told: Callable[[T], str], rule: str, instead: str,
) -> T:  # fmt: skip
    """Returns the result of `make`, if `told` gives the same text for it on all ranks; otherwise
    raises PlanError with the rule. An error of `make` on one rank is a PlanError on the others.
    Collective."""
    try:
        made = make()
    except Exception as problem:  # whatever it is, the other ranks must not wait for this one
        differing(f"! {problem}", group, device)
        raise
    mine = told(made)
    wrong = differing(mine, group, device)
    if wrong:
        begin = min(_shown_from(mine, text) for text in wrong.values())
        names = dist.get_process_group_ranks(group)
        facts = "; ".join(
            f"rank {names[r]}: {_shown(text, begin)}" for r, text in list(wrong.items())[:4]
        )
        own = f"rank {names[dist.get_rank(group)]} has {_shown(mine, begin)}"
        raise PlanError(f"{rule}; {own}, but {facts}. {instead}")
    return made


_SHOWN = 200
"""The most characters of a text that an error shows."""


def _shown_from(mine: str, other: str) -> int:
    """Returns where to begin to show two texts, so that where they differ can be seen."""
    pairs = enumerate(zip(mine, other))
    same = next((i for i, (own, its) in pairs if own != its), min(len(mine), len(other)))
    return 0 if same < _SHOWN // 2 else same - _SHOWN // 4


def _shown(text: str, begin: int) -> str:
    return ("…" if begin else "") + text[begin : begin + _SHOWN]


def on_all(circle: Performer, make: Callable[[], T], rule: str) -> T:
    """Returns the result of `make`; an error of it on any rank of the circle is one on all: a
    PlanError with the rule on the others. Collective over the circle."""
    return same_everywhere(
        circle.group, circle.device, make, lambda _: "done", rule, "See what these say."
    )


def _in_short(plan: Plan) -> str:
    """A text that identifies a plan, beginning with what a reader may know of the model."""
    parameters = [p for bucket in plan.buckets for p in bucket.parameters]
    elements = sum(p.elements for p in parameters)
    return (
        f"{len(parameters)} parameters of {elements:,} elements in {len(plan.buckets)} buckets, "
        f"'{plan.main_strategy}' (plan {plan.digest():x}, messages of version {WIRE_VERSION})"
    )
