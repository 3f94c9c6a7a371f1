"""The plan that `attach` was asked for: a strategy's, one that is given, or that of a file."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer

from gradwire.buckets import Parameter
from gradwire.errors import PlanError, UsageError
from gradwire.plan import Plan
from gradwire.strategy import Strategy
from gradwire.training.recommend import advise
from gradwire.training.session import Settings
from gradwire.warmup import at_density


def asked_plan(
    asked: str | Strategy | Plan | Path, parameters: Sequence[Parameter], settings: Settings,
    group: dist.ProcessGroup, *, dense: Sequence[str], everywhere: Collection[str],
    **grouping: Any,
) -> Plan:  # fmt: skip
    """Returns the requested plan. grouping: as in `Plan.make`; everywhere: as in `Plan.of_parts`.
    Raises PlanError if it does not fit, UsageError if it is unsound and strict is set."""
    plan = _asked(asked, parameters, dense, everywhere, grouping)
    if settings.warmup is not None:
        for density in settings.warmup.densities:
            at_density(plan, density, group.size())
    if settings.optimizer is not None:
        advise(
            plan.strategies, settings.optimizer, group.size(), strict=settings.strict,
            warmup=settings.warmup, quiet=group.rank() > 0,
        )  # fmt: skip
    return plan


def _asked(
    asked: str | Strategy | Plan | Path, parameters: Sequence[Parameter], dense: Sequence[str],
    everywhere: Collection[str], grouping: Mapping[str, Any],
) -> Plan:  # fmt: skip
    if isinstance(asked, str) and "|" not in asked and _names_file(asked):
        asked = Path(asked)
    if isinstance(asked, Path):
        asked = Plan.load(asked)
    if isinstance(asked, Plan):
        if dense:
            raise PlanError(
                "a Plan already decides how each parameter is sent, so exclude= cannot be added; "
                f"got it for {', '.join(dense[:5])}. Leave exclude out, or attach a strategy."
            )
        if grouping["buckets"] is not None:
            raise PlanError(
                "a Plan already has its buckets, so buckets= cannot be added; got "
                f"{grouping['buckets']!r:.80}. Leave buckets out, or attach a strategy."
            )
        if everywhere:
            asked = asked.of_parts(parameters, everywhere)
        asked.check(parameters)
        return asked
    if isinstance(asked, str) and asked.strip().lower() == "auto":
        raise UsageError(
            f"a plan that is found on the running job must be written 'auto'; got '{asked}'. Pass "
            'plan="auto".'
        )
    strategy: object = Strategy.parse(asked) if isinstance(asked, str) else asked
    if not isinstance(strategy, Strategy):
        own = isinstance(strategy, Optimizer)
        raise UsageError(
            "a plan must be a strategy's text, a Strategy, a Plan or a plan file's path; got "
            f"{f'{type(strategy).__name__}(…)' if own else repr(strategy)}. Use for example "
            f"'topk(0.01)+ef | allgather'{', and pass the optimizer as optimizer=' * own}."
        )
    return Plan.make(parameters, strategy, dense=dense, **grouping)


def _names_file(text: str) -> bool:
    return text.endswith(".json") or os.path.isfile(text)
