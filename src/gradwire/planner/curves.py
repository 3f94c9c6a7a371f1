"""Costs: seconds against a size.

    seconds                       ╱  the last slope goes on
       │               ╱─────────╱
       │              ╱
       │─────────────╱               before the first point: its value
       └─────────────┴─────┴────── size

What a size counts (elements, bytes) is the caller's choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from gradwire.errors import PlanError
from gradwire.kernels.lanes import Row, value_of
from gradwire.kernels.tensors import real
from gradwire.schema import List, Made, Number, broken


@dataclass(frozen=True)
class Curve:
    """Seconds against a size: continuous, piecewise linear, nowhere falling.

    points: (size, seconds) each, sizes ascending; one at least. slope: seconds per unit of size
    after the last point; None: as between the last two points, or 0.0 after a single one.
    Raises PlanError where a value is negative or not finite, or an order is broken.
    """

    points: tuple[tuple[float, float], ...]
    slope: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", tuple((real(x), real(y)) for x, y in self.points))
        _check_points(self.points)
        if self.slope is None:
            object.__setattr__(self, "slope", _last_slope(self.points))
        *slopes, last = (slope for *_, slope in self.rows)
        for slope in slopes:
            _check_value("a slope", slope)
        _check_value("the slope after the last point", last)

    @staticmethod
    def affine(fixed: float, per_unit: float) -> Curve:
        """fixed + per_unit · size seconds."""
        return Curve(((0.0, fixed),), per_unit)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Each point with the slope that follows it."""
        assert self.slope is not None
        pairs = pairwise(self.points)
        slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairs]
        return tuple((x, y, s) for (x, y), s in zip(self.points, (*slopes, self.slope)))

    def __call__(self, size: float) -> float:
        """Seconds for a size; size 0 of an affine curve costs its fixed part."""
        return value_of(self.rows, size)

    def __add__(self, other: Curve) -> Curve:
        """One cost after the other, of the same size."""
        sizes = sorted({x for x, _ in (*self.points, *other.points)})
        points = tuple((x, self(x) + other(x)) for x in sizes)
        return Curve(points, self.rows[-1][2] + other.rows[-1][2])

    def scaled(self, size_factor: float = 1.0, seconds_factor: float = 1.0) -> Curve:
        """seconds_factor · self(size_factor · size): of bytes, say, in terms of elements."""
        if not (math.isfinite(size_factor) and size_factor > 0):
            raise PlanError(
                f"sizes are scaled by a positive number, not {size_factor}; pass one, such as 4.0 "
                "for the bytes of an fp32 element"
            )
        _check_value("the factor of seconds", seconds_factor)
        points = tuple((x / size_factor, y * seconds_factor) for x, y in self.points)
        return Curve(points, self.rows[-1][2] * size_factor * seconds_factor)

    def to_json(self) -> list[list[float]]:
        """[[size, seconds], …, [slope]], for json.dumps."""
        return [*([x, y] for x, y in self.points), [self.rows[-1][2]]]


def _curve(rows: Sequence[Sequence[float]]) -> Curve:
    *points, slope = rows
    if len(slope) != 1 or any(len(point) != 2 for point in points):
        raise broken("is a list of [size, seconds] and at the end [slope]", rows)
    return Curve(tuple((size, seconds) for size, seconds in points), slope[0])


CURVE = Made(List(List(Number(least=0)), least=2), _curve)
"""In a document: what `to_json` wrote."""

Cost: TypeAlias = Curve | tuple[float, float]
"""A curve, or (fixed, per_unit): fixed + per_unit · size seconds."""


def curve_of(name: str, cost: Cost) -> Curve:
    """A cost as a curve; PlanError, naming it, where it is none."""
    if isinstance(cost, Curve):
        return cost
    try:
        fixed, per_unit = cost
        return Curve.affine(fixed, per_unit)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"{name} is a Curve or a pair (fixed seconds, seconds per unit), both finite and not "
            f"negative, not {cost!r}; pass one"
        ) from error


def _last_slope(points: Sequence[tuple[float, float]]) -> float:
    if len(points) == 1:
        return 0.0
    (x0, y0), (x1, y1) = points[-2:]
    return (y1 - y0) / (x1 - x0)


def _check_points(points: Sequence[tuple[float, float]]) -> None:
    if not points:
        raise PlanError("a curve has one point at least, but there is none; pass (size, seconds)")
    for x, y in points:
        _check_value("a size", x)
        _check_value("a cost in seconds", y)
    for (x0, y0), (x1, y1) in pairwise(points):
        if not x1 > x0:
            raise PlanError(
                f"the sizes of a curve's points ascend strictly, but {x1} follows {x0}; sort them "
                "and merge equal ones"
            )
        if y1 < y0:
            raise PlanError(
                f"a curve does not fall, but {y1} s at {x1} follow {y0} s at {x0}; fit it "
                "monotonically, or raise the later point"
            )


def _check_value(name: str, value: float) -> None:
    if not 0 <= real(value) < math.inf:
        raise PlanError(f"{name} is finite and not negative, not {value}; correct it")


def check_schedule(ready: Iterable[float], sizes: Iterable[float]) -> None:
    """PlanError unless these are the tensors of one backward pass, in its order."""
    times, counts = list(ready), list(sizes)
    if not times or len(times) != len(counts):
        raise PlanError(
            "each tensor has a ready time and a size, and there is one at least, but there are "
            f"{len(times)} and {len(counts)}; pass lists of equal length"
        )
    for value in times:
        _check_value("a ready time in seconds", value)
    for value in counts:
        _check_value("a tensor's size", value)
    for j, (before, after) in enumerate(pairwise(times), 1):
        if after < before:
            raise PlanError(
                f"tensors come in the order of backward, but tensor {j} is ready at {after} s, "
                f"after one at {before} s; sort them by ready time"
            )


FREE = Curve.affine(0.0, 0.0)
"""Costs nothing."""
