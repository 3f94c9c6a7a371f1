"""Noise is not taken for a difference, whatever runs look like, nor a difference for noise."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from runs import step

from gradwire.report.noise import PARTS, Interval, mean, of_all, parts, ratio
from gradwire.run_folder import StepRow


def rows(seconds: list[float]) -> list[StepRow]:
    return [StepRow(**step(n, seconds=own)) for n, own in enumerate(seconds)]


def run(draw: random.Random, ranks: int, alike: float, steps: int = 240) -> list[float]:
    """The parts of a run whose ranks wait for each other; alike: correlation of adjacent steps."""
    apart, seconds = 0.0, list[float]()
    for _ in range(steps):
        apart = alike * apart + (1 - alike**2) ** 0.5 * draw.gauss(0, 0.1)
        seconds.append(1.0 + apart)
    return of_all([rows(seconds)] * ranks)


@pytest.mark.parametrize(("ranks", "alike"), [(1, 0.0), (8, 0.0), (1, 0.9)])
def test_a_job_beside_itself_is_seldom_another(ranks: int, alike: float) -> None:
    draw = random.Random(7)
    pairs = [(run(draw, ranks, alike), run(draw, ranks, alike)) for _ in range(100)]
    wrong = [found for pair in pairs if (found := ratio(*pair)) and not found.holds(1.0)]
    assert len(wrong) <= 10, "one in twenty, give or take chance"


def test_a_difference_is_seen() -> None:
    draw = random.Random(7)
    one = run(draw, 4, 0.5)
    found = ratio([1.3 * x for x in run(draw, 4, 0.5)], one)
    assert found is not None
    assert 1.2 < found.low < found.value < found.high < 1.4


def test_parts_have_as_many_steps_each() -> None:
    """Rows of one step and rows of many give the same parts."""
    values = [float(n % 7) for n in range(240)]
    single = parts((1, value) for value in values)
    many = parts((5, fmean(values[i : i + 5])) for i in range(0, 240, 5))
    assert sorted(single) == list(range(PARTS))
    assert single == pytest.approx(many)
    assert parts([(1, 3.0)]) == {PARTS // 2: 3.0}
    assert parts([]) == {}


def test_what_cannot_be_said() -> None:
    assert ratio([1.0] * 5, [1.0] * 12) is None
    assert ratio([0.0] * 12, [1.0] * 12) is None
    assert mean([1.0] * 5) is None
    assert ratio([2.0] * 12, [1.0] * 12) == Interval(2.0, 2.0, 2.0)


def test_a_mean_of_few() -> None:
    """With unlike neighbours it is Student's t of five degrees of freedom, to three digits."""
    found = mean([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    assert found is not None
    error = (6 / 5 / 6) ** 0.5
    assert found.high == pytest.approx(2.571 * error, rel=2e-3)
