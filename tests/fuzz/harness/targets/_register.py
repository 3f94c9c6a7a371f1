"""Registers targets: a function that draws the arguments of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.calls import Same, Target, everything
from harness.draws import Draw

TARGETS: list[Target] = []
Drawing = Callable[[Draw], dict[str, object]]


def target(
    do: Callable[..., object], *, name: str = "", same: Same | None = everything,
    weight: int = 4, spoiled: float = 0.6,
) -> Callable[[Drawing], Drawing]:  # fmt: skip
    """Decorates the function that draws the arguments of `do`, by name."""
    own = name or f"{do.__module__.removeprefix('gradwire.')}.{do.__name__}"

    def register(draw: Drawing) -> Drawing:
        TARGETS.append(Target(own, do, draw, same, weight, spoiled))
        return draw

    return register


def status() -> torch.Tensor:
    """A status word that is not raised."""
    return torch.zeros(1, dtype=torch.int64)


def unless_raised(given: dict[str, Any], none: object) -> object:
    """All tensors that were written, or, if they are worthless, only the raised status."""
    written = everything(given, None)
    return given["status"] if given["status"].any() else written


def all_unless_raised(given: dict[str, Any], found: object) -> object:
    """The same for segments, without journals and found hints, which differ from the twins'."""
    if given["status"].any():
        return given["status"]
    values = [value for segment in given["segments"] for value in segment]
    flat = [x for value in values for x in (value if isinstance(value, tuple) else (value,))]
    return [x for x in flat if isinstance(x, torch.Tensor)]
