"""The numbers that an optimizer and a feedback which keeps its moments must both have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from gradwire.strategy import Feedback


def agreeing(feedback: Feedback, group: Mapping[str, Any]) -> Feedback:
    """The same, by the numbers of an optimizer's group; where that has none, by the usual ones."""
    given: Any = feedback
    betas = group.get("betas") or (None, None)
    own = {"beta1": betas[0], "beta2": betas[1], "eps": group.get("eps")}
    own |= {name: group.get(name) for name in ("momentum", "nesterov")}
    usual = {f.name: f.default for f in fields(given)}
    numbers = {k: usual[k] if v is None else v for k, v in own.items() if k in usual}
    agreed: Feedback = replace(given, **numbers)
    return agreed


def numbers_of(feedback: Feedback, group: Mapping[str, Any]) -> dict[str, Any]:
    """What the feedback keeps, as the group has it; without what the group has not."""
    found = {name: group[name] for name in feedback.moments() if name in group}
    return {
        name: tuple(map(float, value)) if isinstance(value, list | tuple) else value
        for name, value in found.items()
    }


def said(numbers: Mapping[str, Any]) -> str:
    """Write them as arguments are written."""
    return ", ".join(f"{name}={value}" for name, value in numbers.items())
