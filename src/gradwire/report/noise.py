"""The mean time of a step, and how far noise may move it.

Consecutive steps are alike, and ranks wait for each other: neither many steps nor many ranks are
as many independent observations. So a run is cut into a few parts of equally many steps, and the
means of the parts are the observations. A recording writes rows less often as it goes on: a row
then stands for many steps, and counts as many in a part.
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
"""The parts that each of two runs must have before anything is said of their difference."""
SURE = 0.95


class Interval(NamedTuple):
    """A value, and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low <= value <= self.high


def parts(rows: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Returns the means of `PARTS` parts of equally many steps, by the part's number. rows: each a
    number of steps, and their mean value. A part that no row's middle lies in is left out."""
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
    """Returns a step's seconds in each part of a run: means over its ranks, which wait for each
    other. rows: one sequence for each rank."""
    each = [parts((row.steps, row.seconds) for row in own) for own in rows if own]
    found = sorted({part for own in each for part in own})
    return [fmean(own[part] for own in each if part in own) for part in found]


def ratio(one: Sequence[float], other: Sequence[float]) -> Interval | None:
    """Returns how many times as long one run's parts take as another's, by Welch's interval of the
    logarithms; None if there are fewer than `LEAST`, or a mean is not above 0."""
    if min(len(one), len(other)) < LEAST or not (fmean(one) > 0 and fmean(other) > 0):
        return None
    first, second = _Mean.of(one), _Mean.of(other)
    of_logs = [mean.error / mean.value for mean in (first, second)]
    error = math.hypot(*of_logs)
    freedom = _freedom(of_logs, (len(one), len(other)))
    value, by = first.value / second.value, _student(freedom) * error
    return Interval(value, value * math.exp(-by), value * math.exp(by))


def mean(values: Sequence[float]) -> Interval | None:
    """Returns the mean of values in their order, with its interval; None if there are too few."""
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
        """Returns the mean with its standard error, which is larger where neighbours are alike."""
        middle, n = fmean(values), len(values)
        apart = [x - middle for x in values]
        variance = sum(x * x for x in apart) / (n - 1)
        alike = sum(a * b for a, b in pairwise(apart)) / ((n - 1) * variance or 1.0)
        alike = min(0.9, max(0.0, alike))
        return _Mean(middle, math.sqrt(variance / n * (1 + alike) / (1 - alike)))


def _freedom(errors: Sequence[float], counts: Sequence[int]) -> float:
    """Returns the degrees of freedom, by Welch and Satterthwaite."""
    total = sum(e**2 for e in errors) ** 2
    each = sum(e**4 / (n - 1) for e, n in zip(errors, counts))
    return total / each if each else float(sum(counts) - 2)


def _student(freedom: float) -> float:
    """Returns the quantile of Student's t, by Abramowitz and Stegun 26.7.5: within 0.2 % from 5
    degrees of freedom on."""
    z = NormalDist().inv_cdf((1 + SURE) / 2)
    terms = (
        z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )  # fmt: skip
    return sum(term / freedom**i for i, term in enumerate(terms))
