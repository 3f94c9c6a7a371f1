"""Fits: a cost curve through noisy measurements, and how far off it is.

    seconds = max(floor, α + β·size + β'·max(0, size - knee))

The floor is what the smallest messages cost whatever their size; the knee is where a cache ends,
or where a backend changes its algorithm. Where that misses by more than repeated measurements
differ, it is not the truth: then the curve goes straight from size to size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

import torch

from gradwire.errors import PlanError
from gradwire.planner.curves import Curve

_WORTH = 0.9  # a floor or a knee must take away this much of the error
_ROUNDING = 1e-9  # an error that is nothing but rounding needs no explanation
_MISFIT = 0.03  # an error that changes no plan


@dataclass(frozen=True)
class Fit:
    """A curve; error: its mean distance from what was measured, over what was measured.

    spread: of repeated measurements, the median over sizes of half their interquartile range over
    their median: what no curve can explain.
    """

    curve: Curve
    error: float = 0.0
    spread: float = 0.0

    def __call__(self, size: float) -> float:
        return self.curve(size)

    def to_json(self) -> dict[str, object]:
        return {"curve": self.curve.to_json(), "error": self.error, "spread": self.spread}

    @staticmethod
    def from_json(value: dict[str, object]) -> Fit:
        """What `to_json` wrote. PlanError where that cannot be."""
        try:
            curve = Curve.from_json(value["curve"])  # type: ignore[arg-type]
            return Fit(curve, number(value["error"], "error"), number(value["spread"], "spread"))
        except PlanError:
            raise
        except (KeyError, TypeError, ValueError, ArithmeticError) as problem:
            raise PlanError(
                f"a saved fit has a curve, an error and a spread; got {value!r}. Profile again."
            ) from problem


def number(value: object, name: str, most: float = math.inf) -> float:
    """From a saved profile, if it is finite and neither negative nor too large; else PlanError."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 <= value <= most:  # type: ignore[arg-type,operator]
        upto = f" to {most:g}" if math.isfinite(most) else " or more"
        raise PlanError(
            f"in a profile {name} is a finite number, 0{upto}; got {value!r}. Profile again."
        )
    return float(value)  # type: ignore[arg-type]


def fit(measured: Sequence[tuple[float, Sequence[float]]]) -> Fit:
    """The curve of least relative error through the medians.

    measured: sizes, ascending, each with its repeated seconds. Errors count relative to what was
    measured, so that a millisecond matters where messages take one, and not where they take a
    second. A floor and a knee are taken where they explain a tenth of the error or more. An error
    beyond the spread is the formula's, and the curve goes from median to median instead.
    Raises PlanError if there is nothing, or a time is not positive and finite.
    """
    points = [(float(size), median(seconds)) for size, seconds in measured if seconds]
    good = all(math.isfinite(x) and math.isfinite(y) and y > 0 for x, y in points)
    if not points or not good or any(a[0] >= b[0] for a, b in pairwise(points)):
        raise PlanError(
            "a fit needs measured seconds, positive, at ascending sizes; got "
            f"{points[:4]}. Measure again."
        )
    best = _candidate(points, 0, None)
    best_error = _error(best, points)
    for knee, first in _shapes(points):
        curve = _candidate(points, first, knee)
        error = _error(curve, points)
        if error < _WORTH * best_error and best_error > _ROUNDING:
            best, best_error = curve, error
    spread = median(_spread(seconds) for _, seconds in measured if seconds)
    if best_error > max(spread, _MISFIT) and len(points) > 1:
        best = _through(points)
        best_error = _error(best, points)
    return Fit(best, best_error, spread)


def _shapes(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float | None, int]]:
    """Knees, and how many of the smallest sizes lie on the floor: few points, few parameters."""
    inner = [x for x, _ in points[1:-1]] if len(points) >= 4 else []
    for first in range(max(1, len(points) - 2)):
        for knee in (None, *inner):
            if knee is None or sum(x > points[first][0] for x in (knee, *inner)) > 1:
                yield knee, first


def _candidate(points: Sequence[tuple[float, float]], first: int, knee: float | None) -> Curve:
    """The best line, with a knee, through the points from `first` on, and not below the others."""
    floor = mean(y for _, y in points[:first]) if first else 0.0
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


def _through(points: Sequence[tuple[float, float]]) -> Curve:
    """From point to point. Sizes that cost less than smaller ones have their mean with these."""
    pools = list[list[tuple[float, float]]]()
    for point in points:
        pools.append([point])
        while len(pools) > 1 and _level(pools[-1]) < _level(pools[-2]):
            last = pools.pop()
            pools[-1] += last
    return Curve(tuple((x, _level(pool)) for pool in pools for x, _ in pool))


def _level(pool: Sequence[tuple[float, float]]) -> float:
    return mean(y for _, y in pool)


def _crossings(floor: float, a: float, b: float, more: float, knee: float | None) -> list[float]:
    found = [(floor - a) / b] if b > 0 else []
    if knee is not None and b + more > 0:
        found.append((floor - a + more * knee) / (b + more))
    return found


def _least_squares(
    points: Sequence[tuple[float, float]], knee: float | None
) -> tuple[float, float, float]:
    """α, β and β' of the least relative squares; none makes the curve fall."""
    columns = min(len(points), 2 if knee is None else 3)
    rows = [[1.0, x, max(0.0, x - (knee or 0.0))][:columns] for x, _ in points]
    seconds = torch.tensor([[y] for _, y in points], dtype=torch.float64)
    system = torch.tensor(rows, dtype=torch.float64)
    scale = system.abs().amax(0).clamp_min(1e-300)  # sizes would drown the ones
    solved = torch.linalg.lstsq(system / scale / seconds, torch.ones_like(seconds)).solution
    a, b, more = [*(solved.flatten() / scale).tolist(), 0.0, 0.0][:3]
    if a < 0.0 or b < 0.0:  # level, or through the origin: whichever is nearer
        rates = [y / x for x, y in points if x > 0]
        level = (median(y for _, y in points), 0.0)
        lines = [level, *([(0.0, median(rates))] if rates and b > 0.0 else [])]
        a, b = min(lines, key=lambda ab: sum(abs(ab[0] + ab[1] * x - y) / y for x, y in points))
        more = 0.0
    return a, b, max(more, -b)


def _error(curve: Curve, points: Sequence[tuple[float, float]]) -> float:
    return mean(abs(curve(x) - y) / y for x, y in points)


def _spread(seconds: Sequence[float]) -> float:
    ordered = sorted(seconds)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 2 / median(ordered)
