"""MergeComp's search for two groups, on measured iterations, as it was published.

A partition is given by its cuts, the ends of its groups, the number of tensors included: [1, 3, 5]
are tensors 0, 1–2 and 3–4. Source: Wang, Wu and Ng 2021, "MergeComp", and the schedulers published
with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from gradwire.errors import PlanError

Measure: TypeAlias = Callable[[tuple[int, ...]], float]
"""Cuts to the seconds of an iteration."""


def bisection(measure: Measure, count: int) -> tuple[int, dict[int, float]]:
    """The tensors of the first group, and all probes' seconds.

    The times at `mid` and `mid + 2` tensors are compared; the search goes to the right if the
    first is slower, else to the left: about 2·log₂ count measurements. The result is the fastest
    split that was measured, of equals the one that was measured first, and the number is the key
    of its probe; with noise, or more than one valley, it need not be the best. Raises PlanError
    where count is below 2.
    """
    if count < 2:
        raise PlanError(f"two groups take two tensors at least, not {count}; do not cut")
    probes: dict[int, float] = {}

    def at(split: int) -> float:
        if split not in probes:
            probes[split] = measure((split, count))
        return probes[split]

    low, high = 1, count - 1
    last = high
    while low < high:
        mid = (low + high) // 2
        if at(mid) > at(min(mid + 2, last)):
            low = mid + 1
        else:
            high = mid
    at(low)
    return min(probes, key=probes.__getitem__), probes
