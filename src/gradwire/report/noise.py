"""How long steps take in the mean, and how far noise may move that.

Steps that follow each other are alike, and ranks wait for each other: neither many steps nor many
ranks are as many observations. So a run is cut into a few parts of equally many steps, and the
means of these are what varies. A recording that has slowed down has rows which stand for many
steps; in parts they weigh as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import NormalDist, fmean
from typing import NamedTuple

from gradwire.run_folder import StepRow

PARTS = 12
LEAST = 6
"""Parts of each of two runs, below which nothing is said of their difference."""
SURE = 0.95


class Interval(NamedTuple):
    """A value, and what noise allows, in 95 of 100 cases."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether it may be this."""
        return self.low <= value <= self.high


def parts(rows: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Of steps and their mean value, row by row: means of `PARTS` parts of equally many steps, by
    their number. A part that no row's middle lies in is left out."""
    rows = list(rows)
    total, before = sum(steps for steps, _ in rows), 0
    sums: dict[int, tuple[int, float]] = {}
    for steps, value in rows:
        part = min(PARTS - 1, int(PARTS * (before + steps / 2) / total))
        many, sum_of = sums.get(part, (0, 0.0))
        sums[part] = many + steps, sum_of + steps * value
        before += steps
    return {part: sum_of / many for part, (many, sum_of) in sums.items()}


def of_all(rows: Iterable[Sequence[StepRow]]) -> list[float]:
    """Seconds of a step in each part of a run: means over its ranks, which wait for each other.
    rows: of each rank."""
    each = [parts((row.steps, row.seconds) for row in own) for own in rows if own]
    found = sorted({part for own in each for part in own})
    return [fmean(own[part] for own in each if part in own) for part in found]


def ratio(one: Sequence[float], other: Sequence[float]) -> Interval | None:
    """How many times as long one run's parts take as another's; None where there are too few, or
    that cannot be said. Welch's interval, of the logarithms."""
    if min(len(one), len(other)) < LEAST or not (fmean(one) > 0 and fmean(other) > 0):
        return None
    first, second = _Mean.of(one), _Mean.of(other)
    of_logs = [mean.error / mean.value for mean in (first, second)]
    error = math.hypot(*of_logs)
    freedom = _freedom(of_logs, (len(one), len(other)))
    value, by = first.value / second.value, _student(freedom) * error
    return Interval(value, value * math.exp(-by), value * math.exp(by))


def mean(values: Sequence[float]) -> Interval | None:
    """The mean of values in their order; None where there are too few."""
    if len(values) < LEAST:
        return None
    found = _Mean.of(values)
    by = _student(len(values) - 1) * found.error
    return Interval(found.value, found.value - by, found.value + by)


class _Mean(NamedTuple):
    value: float
    error: float

    @staticmethod
    def of(values: Sequence[float]) -> _Mean:
        """With its standard error, larger where neighbours are alike."""
        middle, n = fmean(values), len(values)
        apart = [x - middle for x in values]
        variance = sum(x * x for x in apart) / (n - 1)
        alike = sum(a * b for a, b in pairwise(apart)) / ((n - 1) * variance or 1.0)
        alike = min(0.9, max(0.0, alike))
        return _Mean(middle, math.sqrt(variance / n * (1 + alike) / (1 - alike)))


def _freedom(errors: Sequence[float], counts: Sequence[int]) -> float:
    """Welch and Satterthwaite's."""
    total = sum(e**2 for e in errors) ** 2
    each = sum(e**4 / (n - 1) for e, n in zip(errors, counts))
    return total / each if each else float(sum(counts) - 2)


def _student(freedom: float) -> float:
    """The quantile of Student's t; by Abramowitz and Stegun 26.7.5, within 0.2 % from 5 on."""
    z = NormalDist().inv_cdf((1 + SURE) / 2)
    terms = (
        z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )  # fmt: skip
    return sum(term / freedom**i for i, term in enumerate(terms))
