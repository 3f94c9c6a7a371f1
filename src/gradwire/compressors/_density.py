"""Density, shared by topk and randk: how many of n elements are sent."""

from __future__ import annotations

import math

from gradwire.errors import StrategyError

DENSITIES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""The densities among which a plan may choose."""


def check_density(owner: str, density: object) -> None:
    """Raise StrategyError unless density is a fraction above 0 and at most 1."""
    if type(density) not in (int, float) or not 0 < density <= 1:  # type: ignore[operator]
        raise StrategyError(
            f"{owner}'s density must be the fraction of elements sent, above 0 and at most 1; got "
            f"{density!r}. Use for example {owner}(0.01)."
        )


def count_of(density: float, n: int) -> int:
    """Returns how many of n elements are sent: at least one, unless there is none."""
    return min(n, math.ceil(density * n))
