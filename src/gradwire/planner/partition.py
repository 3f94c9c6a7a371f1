"""MergeComp's searches for the tensors to merge, on measured iterations, as published.

A partition is given by its cuts, the ends of its groups, of which the last is the number of
tensors: [1, 3, 5] stands for tensors 0, 1–2 and 3–4. Source: Wang, Wu and Ng 2021, "MergeComp",
and the schedulers published with it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TypeAlias

from gradwire.errors import PlanError

Measure: TypeAlias = Callable[[tuple[int, ...]], float]
"""Maps cuts to the seconds of an iteration."""


def bisection(measure: Measure, count: int) -> tuple[int, dict[int, float]]:
    """MergeComp's search for two groups: returns the number of tensors in the first, and the
    seconds of all probes, by that number.

    It compares the times at `mid` and `mid + 2` tensors; the search goes to the right if the
    first is slower, else to the left: about 2·log₂ count measurements. The result is the fastest
    split that was measured; with noise, or more than one valley, it need not be the best. Raises
    PlanError if count is below 2.
    """
    if count < 2:
        raise PlanError(f"two groups need at least two tensors; got {count}. Do not cut.")
    return _bisected(lambda split: measure((split, count)), 1, count - 1)


def _bisected(
    measure: Callable[[int], float], low: int, high: int
) -> tuple[int, dict[int, float]]:
    """Bisects between low and high, both included; of equally fast splits returns the one
    measured first."""
    probes: dict[int, float] = {}

    def at(split: int) -> float:
        if split not in probes:
            probes[split] = measure(split)
        return probes[split]

    last = high
    while low < high:
        mid = (low + high) // 2
        if at(mid) > at(min(mid + 2, last)):
            low = mid + 1
        else:
            high = mid
    at(low)
    return min(probes, key=probes.__getitem__), probes


def heuristic(
    measure: Measure, count: int, max_groups: int, threshold: float = 0.05
) -> tuple[list[int], float]:
    """MergeComp's search for several groups: returns the best cuts measured, and their seconds.

    For 2, 3, … max_groups groups it tries all cuts but the last, each with a bisection of the
    last: O(count^(groups - 2) · log count) measurements. It ends when one more group gains less
    than the share `threshold`. Raises PlanError if a number is out of range.
    """
    if count < 1 or max_groups < 1 or not 0 <= threshold < 1:
        raise PlanError(
            "count and max_groups must be at least 1, and threshold from 0 to below 1; got "
            f"{count}, {max_groups} and {threshold}. Pass others."
        )
    cuts, time = [count], measure((count,))
    for groups in range(2, min(max_groups, count) + 1):
        found, taken = _best_of(measure, count, groups)
        gained = time - taken
        if taken < time:
            cuts, time = found, taken
        if gained < threshold * (time + gained):
            break
    return cuts, time


def _best_of(measure: Measure, count: int, groups: int) -> tuple[list[int], float]:
    """Tries all cuts but the last, which is bisected."""
    best_cuts, best_time = [count], float("inf")
    for fixed in combinations(range(1, count - 1), groups - 2):
        split, probes = _bisected(
            lambda last, fixed=fixed: measure((*fixed, last, count)),  # type: ignore[misc]
            fixed[-1] + 1 if fixed else 1,
            count - 1,
        )
        if probes[split] < best_time:
            best_cuts, best_time = [*fixed, split, count], probes[split]
    return best_cuts, best_time
