"""The numbers on which an optimizer and the feedback that keeps its moments must agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import Any

from gradwire.strategy import Feedback


def agreeing(feedback: Feedback, group: Mapping[str, Any]) -> Feedback:
    """Returns the feedback with the numbers of an optimizer's group; defaults for missing ones.
    An eps without betas is not Adam's: torch's Muon has one of its orthogonal steps."""
    given: Any = feedback
    betas = group.get("betas") or (None, None)
    eps = None if betas[1] is None else group.get("eps")
    own = {"beta1": betas[0], "beta2": betas[1], "eps": eps}
    own |= {name: group.get(name) for name in ("momentum", "nesterov")}
    usual = {f.name: f.default for f in fields(given)}
    numbers = {k: usual[k] if v is None else v for k, v in own.items() if k in usual}
    agreed: Feedback = replace(given, **numbers)
    return agreed


def numbers_of(feedback: Feedback, group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the group's values of the feedback's moments, without those that it lacks."""
    found = {name: group[name] for name in feedback.moments() if name in group}
    return {
        name: tuple(map(float, value)) if isinstance(value, list | tuple) else value
        for name, value in found.items()
    }


def rate_of(group: Mapping[str, Any]) -> float | None:
    """Returns a group's learning rate; None if it has none, as where the optimizer finds its own
    (Adafactor)."""
    rate = group.get("lr")
    return None if rate is None else float(rate)


def plain(value: Any) -> Any:
    """Returns a real number as Python's own, as numpy's are refused where states are loaded; any
    other value as it is."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def said(numbers: Mapping[str, Any]) -> str:
    """Returns the numbers as text, written as arguments."""
    return ", ".join(f"{name}={value}" for name, value in numbers.items())
