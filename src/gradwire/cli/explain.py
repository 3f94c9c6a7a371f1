"""gradwire explain: what a plan does, why, and what it gains, group by group.

gradwire explain plan.json                           as it was planned
gradwire explain plan.json --profile profile.json    as a profile says it
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.cli.arguments import add_quiet
from gradwire.cli.progress import telling
from gradwire.errors import StrategyError, UsageError
from gradwire.report.terminal import printable

if TYPE_CHECKING:
    from gradwire.plan import Plan
    from gradwire.planner.story import Explanation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("plan", type=Path, help="the plan, as `gradwire plan -o` writes it")
    anew = "predict its times from this profile (default: those saved in the plan)"
    parser.add_argument("--profile", type=Path, metavar="FILE", help=anew)
    parser.add_argument("--json", action="store_true", help="print one JSON document to stdout")
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Explains the plan; returns the exit code. Raises PlanError, and UsageError for a
    strategy."""
    with telling(arguments, "explain"):
        from gradwire.plan import Plan

        _refuse_strategy(arguments.plan)
        story = _story(Plan.load(arguments.plan), arguments.profile)
    told = story.to_json() if arguments.json else None
    print(printable(story.as_text()) if told is None else json.dumps(told, indent=2))
    return 0


def _refuse_strategy(plan: Path) -> None:
    from gradwire.strategy import Strategy

    with contextlib.suppress(OSError):  # such as a name that is too long
        if plan.exists():
            return
    try:
        first = Strategy.parse(str(plan)).compressor.name
    except StrategyError:
        return
    raise UsageError(
        f"a plan must be a file; '{plan}' is a strategy, which says how one bucket travels. Run "
        f"`gradwire available {first}` to see what it does, or `gradwire plan --profile FILE` to "
        "make a plan."
    )


def _story(plan: Plan, profile: Path | None) -> Explanation:
    from gradwire.planner.explain import saved

    if profile is None:
        return saved(plan)
    from gradwire.planner.choose import judge
    from gradwire.planner.explain import explain
    from gradwire.planner.paths import with_named
    from gradwire.planner.profile import Profile
    from gradwire.planner.story import PREDICTION

    own = with_named(Profile.load(profile), map(str, plan.strategies))
    said = plan.prediction
    budget = None if said is None else PREDICTION.take(said).error_budget
    return explain(judge(own, plan, error_budget=budget), own)
