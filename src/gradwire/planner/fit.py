"""Fits a cost curve through noisy measurements, and says how far off it is.

    seconds = max(floor, α + β·size + β'·max(0, size - knee))

The floor is what the smallest messages cost whatever their size; the knee is where a cache ends,
or where a backend changes its algorithm. Measurements are weighted by how accurate they are, so
large messages bind the curve and small ones have their mean. If the formula misses by more than
repeated measurements differ, it is wrong, and the curve is linear from size to size instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import NamedTuple

import torch

from gradwire.errors import PlanError
from gradwire.planner.curves import CURVE, Curve
from gradwire.schema import Number, Table

_WORTH = 0.9  # a floor or a knee must leave at most this much of the misfit
_ROUNDING = 1e-7  # below this, a misfit is rounding, and needs no floor or knee
_LEAST_DOUBT = 0.03  # relative to the seconds: few repetitions may agree by chance
_MISFIT = 1.5  # times the doubt: a right formula is off by less on average


@dataclass(frozen=True)
class Fit:
    """A curve; error: its mean distance from the measurements, relative to these.

    spread: of repeated measurements, the median over sizes of half their interquartile range over
    their median, which no curve can explain.
    """

    curve: Curve
    error: float = 0.0
    spread: float = 0.0

    def __call__(self, size: float) -> float:
        return self.curve(size)

    def to_json(self) -> dict[str, object]:
        """Returns plain values."""
        return {"curve": self.curve.to_json(), "error": self.error, "spread": self.spread}


FIT = Table({"curve": CURVE, "error": Number(least=0), "spread": Number(least=0)}, make=Fit)
"""The schema of what `to_json` writes."""


class _Point(NamedTuple):
    """The median of measurements; doubt: the relative error that it may have."""

    size: float
    seconds: float
    doubt: float


def fit(measured: Sequence[tuple[float, Sequence[float]]]) -> Fit:
    """Fits the curve of least squares through the medians, weighted by how accurate each is.

    measured: sizes, ascending, each with its repeated seconds. Errors are relative: a millisecond
    matters for messages that take one, and not for those that take a second. A floor and a knee
    are used if they explain a tenth of the misfit or more. If the misfit is more than one and a
    half times the doubt, the curve goes from median to median instead.
    Raises PlanError if there are no measurements, or a time is not positive and finite.
    """
    points = _points([(float(size), seconds) for size, seconds in measured if seconds])
    good = all(
        math.isfinite(p.size) and math.isfinite(p.seconds) and p.seconds > 0 for p in points
    )
    if not points or not good or any(a.size >= b.size for a, b in pairwise(points)):
        raise PlanError(
            "a fit needs positive seconds, measured at ascending sizes; got "
            f"{[p[:2] for p in points[:4]]}. Measure again."
        )
    best = _candidate(points, 0, None)
    least = _misfit(best, points)
    for knee, first in _shapes(points):
        curve = _candidate(points, first, knee)
        misfit = _misfit(curve, points)
        if misfit < _WORTH * least and least > _ROUNDING:
            best, least = curve, misfit
    if least > _MISFIT and len(points) > 1:
        best = _through(points)
    error = mean(abs(best(p.size) - p.seconds) / p.seconds for p in points)
    return Fit(best, error, median(_spread(seconds) for _, seconds in measured if seconds))


def _points(measured: Sequence[tuple[float, Sequence[float]]]) -> list[_Point]:
    """Returns the medians with their doubts. A doubt is at least the usual spread in seconds, as
    few repetitions may agree by chance."""
    middles = [median(seconds) for _, seconds in measured]
    spreads = [_spread(seconds) if y > 0 else 0.0 for y, (_, seconds) in zip(middles, measured)]
    usual = median(spread * y for spread, y in zip(spreads, middles)) if middles else 0.0
    return [
        _Point(x, y, max(_LEAST_DOUBT, spread, usual / y if y > 0 else 0.0))
        for (x, _), y, spread in zip(measured, middles, spreads)
    ]


def _shapes(points: Sequence[_Point]) -> Iterator[tuple[float | None, int]]:
    """Yields knees to try, and how many of the smallest sizes to put on the floor: the fewer
    points, the fewer parameters."""
    inner = [p.size for p in points[1:-1]] if len(points) >= 4 else []
    for first in range(max(1, len(points) - 2)):
        for knee in (None, *inner):
            if knee is None or sum(x > points[first].size for x in (knee, *inner)) > 1:
                yield knee, first


def _candidate(points: Sequence[_Point], first: int, knee: float | None) -> Curve:
    """Returns the best line, with a knee, through the points from `first` on; the mean of the
    points before is its floor."""
    floor = _level(points[:first]) if first else 0.0
    a, b, more = _least_squares(points[first:], knee)
    bends = sorted({0.0, *((knee,) if knee is not None else ())})

    def line(x: float) -> float:
        return a + b * x + (more * max(0.0, x - knee) if knee is not None else 0.0)

    if floor > line(0.0):  # where the line leaves the floor
        bends += [x for x in _crossings(floor, a, b, more, knee) if x > 0]
    made, least = list[tuple[float, float]](), 0.0
    for x in sorted(set(bends)):
        least = max(least, floor, line(x))
        made.append((x, least))
    return Curve(tuple(made), max(0.0, b + (more if knee is not None else 0.0)))


def _through(points: Sequence[_Point]) -> Curve:
    """Returns a curve from point to point. Sizes that cost less than smaller ones share a mean
    with these; beyond the last of them, the curve goes on as it rose to it."""
    pools = list[list[_Point]]()
    for point in points:
        pools.append([point])
        while len(pools) > 1 and _level(pools[-1]) < _level(pools[-2]):
            last = pools.pop()
            pools[-1] += last
    slope = None
    if len(pools) > 1:
        before, last = pools[-2:]
        slope = (_level(last) - _level(before)) / (last[-1].size - before[-1].size)
    return Curve(tuple((p.size, _level(pool)) for pool in pools for p in pool), slope)


def _level(pool: Sequence[_Point]) -> float:
    """Returns the mean of the points, weighted by their doubts."""
    weights = [p.doubt**-2 for p in pool]
    return sum(w * p.seconds for w, p in zip(weights, pool)) / sum(weights)


def _crossings(floor: float, a: float, b: float, more: float, knee: float | None) -> list[float]:
    found = [(floor - a) / b] if b > 0 else []
    if knee is not None and b + more > 0:
        found.append((floor - a + more * knee) / (b + more))
    return found


def _least_squares(points: Sequence[_Point], knee: float | None) -> tuple[float, float, float]:
    """Returns α, β and β' of the least squares, limited so that the curve falls nowhere."""
    columns = min(len(points), 2 if knee is None else 3)
    rows = [[1.0, p.size, max(0.0, p.size - (knee or 0.0))][:columns] for p in points]
    system = torch.tensor(rows, dtype=torch.float64)
    doubts = torch.tensor([[p.doubt] for p in points], dtype=torch.float64)
    seconds = torch.tensor([[p.seconds] for p in points], dtype=torch.float64)
    scale = system.abs().amax(0).clamp_min(1e-300)  # else sizes dwarf the column of ones
    solved = torch.linalg.lstsq(system / scale / (seconds * doubts), 1.0 / doubts).solution
    a, b, more = [*(solved.flatten() / scale).tolist(), 0.0, 0.0][:3]
    if a < 0.0 or b < 0.0:  # level, or through the origin: whichever is nearer
        rates = [p.seconds / p.size for p in points if p.size > 0]
        level = (median(p.seconds for p in points), 0.0)
        lines = [level, *([(0.0, median(rates))] if rates and b > 0.0 else [])]
        a, b = min(lines, key=lambda ab: sum(_off(ab[0] + ab[1] * p.size, p) for p in points))
        more = 0.0
    return a, b, max(more, -b)


def _misfit(curve: Curve, points: Sequence[_Point]) -> float:
    return mean(_off(curve(p.size), p) for p in points)


def _off(seconds: float, point: _Point) -> float:
    """Returns the distance from the point as a multiple of its doubt."""
    return abs(seconds - point.seconds) / (point.seconds * point.doubt)


def _spread(seconds: Sequence[float]) -> float:
    ordered = sorted(seconds)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 2 / median(ordered)
