"""The best groups and options for one link: the search of `gradwire.planner.joint`.

1. Even cuts, of one option each, are a first plan.
2. Among many tensors a search that may cut at 48 stops alone finds a better one.
3. Weights of paths are learned (`link_bounds_twin.Paths`): a bound, and plans on the way.
4. Labels (clocks of all lanes) go from stop to stop by every group and option. Dropped are those
   that another replaces, those whose lower bound (`link_bounds_twin.Bounds`) does not beat the
   best plan, and, where too many are left, those near another: the least bound of these is what
   is proved. 3 and 4 are repeated, 4, 16, … times wider, up to max_labels, until nothing is
   dropped so.

The twin, `one_link_twin.plan_twin`, does the same in plain Python. The extension keeps the costs
of all groups, 24 bytes for each option and each range of tensors that a group may hold: 36 MB for
1,000 tensors and three options.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from gradwire.errors import KernelError
from gradwire.kernels.lanes import CPU, NONE, Clocks, Problem
from gradwire.kernels.native import core_for
from gradwire.kernels.one_link_twin import plan_twin
from gradwire.kernels.schedule import MOST
from gradwire.kernels.tensors import INDEX_LIMIT, pointer, real

_MOST_COSTS = 1 << 29
"""Of ranges of tensors, times options: 24 bytes for each, or half of them where any range goes."""


class LinkPlan(NamedTuple):
    """ends, options: of each group. seconds: its time. lower_bound: no plan is faster. labels:
    how many were kept."""

    ends: list[int]
    options: list[int]
    seconds: float
    lower_bound: float
    labels: int


def plan_link(problem: Problem, tolerance: float, max_labels: int) -> LinkPlan:
    """The best plan that max_labels labels a stop find, and a bound on the time of every plan.

    tolerance: a plan may take so much longer than the best, as a part; max_labels: 1 or more.
    Raises KernelError.
    """
    _check(problem, tolerance, max_labels)
    found = core_for()
    if found is None:
        return LinkPlan(*plan_twin(problem, tolerance, max_labels))
    ready, position = (
        torch.tensor(x, dtype=torch.float64) for x in (problem.ready, problem.position)
    )
    curves = [rows for option in problem.options for rows in option[1:]]
    rows = torch.tensor([row for curve in curves for row in curve], dtype=torch.float64)
    options = [(o.lane, len(o.encode), len(o.send), len(o.decode)) for o in problem.options]
    return LinkPlan(
        *found[0].plan_link(
            pointer(ready), pointer(position), problem.n, pointer(rows), options,
            (min(problem.max_span, problem.n), min(problem.max_groups, problem.n)),
            real(tolerance), max_labels,
        )
    )  # fmt: skip


def plan_seconds(problem: Problem, ends: Sequence[int], options: Sequence[int]) -> float:
    """When a plan ends, decodes included. ends, options: of each group; nothing is checked."""
    clocks = Clocks()
    for first, end, option in zip((0, *ends), ends, options):
        clocks = clocks.after(problem.group(first, end, option))
    return clocks.link


def _check(p: Problem, tolerance: float, max_labels: int) -> None:
    if not 0 < p.n <= INDEX_LIMIT or len(p.position) != p.n + 1:
        raise KernelError(
            f"ready has an entry for each tensor and position one more, not {p.n} and "
            f"{len(p.position)}; pass sums of sizes from 0"
        )
    ready, position = (
        x[0] >= 0 and all(b >= a for a, b in pairwise(x)) for x in (p.ready, p.position)
    )
    if not (ready and position and real(p.ready[-1]) + real(p.position[-1]) < math.inf):
        raise KernelError(
            "ready and position are finite, not negative and nowhere falling, but these are not; "
            "sort the tensors by ready time and sum their sizes"
        )
    if not p.options or not all(_is_option(*option) for option in p.options):
        raise KernelError(
            f"an option has lane {NONE} to {CPU} and three curves of one row at least, finite and "
            "not negative, in the order of sizes, and there is one at least, not "
            f"{p.options}; ask planner.joint"
        )
    longest = max(_longest(curve, p.position[-1]) for o in p.options for curve in o[1:])
    if not max(longest, p.ready[-1]) <= MOST:
        raise KernelError(
            f"seconds are {MOST:g} at most, for all tensors together too, not "
            f"{max(longest, p.ready[-1]):g}; correct the curves"
        )
    _check_counts(p, max_labels)
    if not 0 <= real(tolerance) < math.inf:
        raise KernelError(f"tolerance is finite and not negative, not {tolerance}; pass 0.0")


def _check_counts(p: Problem, max_labels: int) -> None:
    counts = p.max_span, p.max_groups, max_labels
    whole = all(isinstance(count, int) and 1 <= count < 1 << 63 for count in counts)
    if not whole or p.max_span * p.max_groups < p.n:
        raise KernelError(
            "max_span, max_groups and max_labels are at least 1 and groups can hold all tensors, "
            f"not {p.max_span}, {p.max_groups} and {max_labels} for {p.n}; raise them"
        )
    costs = p.n * min(p.n, p.max_span) * len(p.options)
    if costs > _MOST_COSTS:
        raise KernelError(
            f"tensors, times those of a group, times options, are {_MOST_COSTS} at most, not "
            f"{costs}; lower max_span"
        )


def _longest(curve: Sequence[tuple[float, float, float]], size: float) -> float:
    """No size up to this one takes longer."""
    return max(seconds + size * slope for _, seconds, slope in curve)


def _is_option(lane: int, *curves: Sequence[tuple[float, float, float]]) -> bool:
    rows = [row for curve in curves for row in curve]
    return (
        isinstance(lane, int) and NONE <= lane <= CPU and all(curves)
        and all(len(row) == 3 and all(0 <= real(x) < math.inf for x in row) for row in rows)
        and all(a[0] <= b[0] for curve in curves for a, b in pairwise(curve))
    )  # fmt: skip
