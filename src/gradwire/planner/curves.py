"""Cost curves: seconds against a size.

    seconds                       ╱  the last slope goes on
       │               ╱─────────╱
       │              ╱
       │─────────────╱               before the first point: its value
       └─────────────┴─────┴────── size

What a size counts (elements, bytes) is the caller's choice.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TypeAlias

from gradwire.errors import PlanError
from gradwire.kernels.tensors import real
from gradwire.schema import List, Made, Number, broken

Row: TypeAlias = tuple[float, float, float]
"""A point of a curve, and the slope after it: size, seconds, seconds per unit of size."""
_size_of = itemgetter(0)


@dataclass(frozen=True)
class Curve:
    """Seconds against a size: continuous, piecewise linear, nowhere falling.

    points: (size, seconds) each, sizes ascending; one at least. slope: seconds per unit of size
    after the last point; None: as between the last two points, or 0.0 after a single one.
    rows: each point with the slope that follows it. Raises PlanError where a value is negative or
    not finite, or an order is broken.
    """

    points: tuple[tuple[float, float], ...]
    slope: float | None = None
    rows: tuple[Row, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", tuple((real(x), real(y)) for x, y in self.points))
        _check_points(self.points)
        slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(self.points)]
        for slope in slopes:
            _check_value("a slope", slope)
        last = self.slope if self.slope is not None else [0.0, *slopes][-1]
        _check_value("the slope after the last point", last)
        rows = tuple((x, y, s) for (x, y), s in zip(self.points, (*slopes, last)))
        object.__setattr__(self, "slope", last)
        object.__setattr__(self, "rows", rows)

    def __call__(self, size: float) -> float:
        """Returns the seconds for a size; at size 0, an affine curve gives its fixed part."""
        at = bisect_right(self.rows, size, key=_size_of) - 1
        if at < 0:
            return self.points[0][1]
        x, y, slope = self.rows[at]
        value = y + (size - x) * slope
        return value if at + 1 == len(self.rows) else min(value, self.rows[at + 1][1])

    def scaled(self, factor: float) -> Curve:
        """Returns factor · self."""
        _check_value("the factor of seconds", factor)
        points = tuple((x, y * factor) for x, y in self.points)
        return Curve(points, self.rows[-1][2] * factor)

    def to_json(self) -> list[list[float]]:
        """Returns [[size, seconds], …, [slope]], for json.dumps."""
        return [*([x, y] for x, y in self.points), [self.rows[-1][2]]]


def rising(sizes: Sequence[float], seconds: Sequence[float]) -> Curve:
    """Returns a curve through these points, each raised to the one before it if it is lower.
    Raises PlanError as `Curve` does."""
    return Curve(tuple(zip(sizes, accumulate(seconds, max))))


def _curve(rows: Sequence[Sequence[float]]) -> Curve:
    *points, slope = rows
    if len(slope) != 1 or any(len(point) != 2 for point in points):
        raise broken("must be a list of [size, seconds] that ends with [slope]", rows)
    return Curve(tuple((size, seconds) for size, seconds in points), slope[0])


CURVE = Made(List(List(Number(least=0)), least=2), _curve)
"""The schema of what `to_json` writes."""


def _check_points(points: Sequence[tuple[float, float]]) -> None:
    if not points:
        raise PlanError("a curve needs at least one point; got none. Pass (size, seconds).")
    for x, y in points:
        _check_value("a size", x)
        _check_value("a cost in seconds", y)
    for (x0, y0), (x1, y1) in pairwise(points):
        if not x1 > x0:
            raise PlanError(
                f"the sizes of a curve's points must ascend strictly; {x1} follows {x0}. Sort "
                "them and merge equal ones."
            )
        if y1 < y0:
            raise PlanError(
                f"a curve must not fall; {y1} s at size {x1} follow {y0} s at size {x0}. Fit it "
                "monotonically, or raise the later point."
            )


def _check_value(name: str, value: float) -> None:
    if not 0 <= real(value) < math.inf:
        raise PlanError(f"{name} must be finite and not negative; got {value}. Correct it.")
