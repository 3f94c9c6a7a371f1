"""Fits of synthetic curves: which are found again, and which inputs are refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from gradwire.errors import PlanError
from gradwire.planner.fit import FIT, fit
from gradwire.schema import Broken

SIZES = (256, 4096, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)


def measured(
    cost: Callable[[float], float], sizes: Sequence[int] = SIZES, noise: float = 0.0, runs: int = 5
) -> list[tuple[int, list[float]]]:
    dice = random.Random(0)
    return [(n, [cost(n) * (1 + noise * dice.uniform(-1, 1)) for _ in range(runs)]) for n in sizes]


def test_a_line_is_found_exactly() -> None:
    found = fit(measured(lambda n: 1e-3 + 2e-9 * n))
    assert found.error < 1e-9
    assert found(0) == pytest.approx(1e-3)
    assert found(1e6) == pytest.approx(3e-3)
    assert found.curve.slope == pytest.approx(2e-9)


def test_a_floor_is_found() -> None:
    found = fit(measured(lambda n: max(1e-3, 1e-5 + 2e-9 * n)))
    assert found(100) == pytest.approx(1e-3)
    assert found(1e7) == pytest.approx(2e-2, rel=0.01)
    assert found.error < 0.01


def test_a_knee_is_found() -> None:
    found = fit(measured(lambda n: 1e-4 + 1e-9 * n + 3e-9 * max(0, n - 1_048_576)))
    assert found.error < 1e-6
    assert found.curve.slope == pytest.approx(4e-9)


def test_noise_is_spread_and_not_error() -> None:
    found = fit(measured(lambda n: 1e-3 + 2e-9 * n, noise=0.2, runs=25))
    assert 0.02 < found.spread < 0.2
    assert found(4e6) == pytest.approx(9e-3, rel=0.1)


def test_an_outlier_among_the_runs_does_not_count() -> None:
    runs = [(n, [1e-3, 1e-3, 1e-3, 1e-3, 9.0]) for n in SIZES]
    assert fit(runs)(1e6) == pytest.approx(1e-3, rel=1e-6)


def test_what_no_formula_explains_is_followed_from_size_to_size() -> None:
    stairs = {
        256: 1e-3,
        4096: 5e-3,
        65_536: 5.1e-3,
        262_144: 3e-2,
        1_048_576: 3.1e-2,
        4_194_304: 2,
    }
    found = fit([(n, [y] * 5) for n, y in stairs.items()])
    assert [found(n) for n in stairs] == pytest.approx(list(stairs.values()))
    assert found.error < 1e-9
    assert found(8e6) > 2.0


def test_sizes_that_cost_less_than_smaller_ones_share_their_mean() -> None:
    taken = {256: 4e-3, 4096: 2e-3, 65_536: 3e-3, 262_144: 1e-2, 1_048_576: 8e-2}
    found = fit([(n, [y] * 5) for n, y in taken.items()])
    assert [found(n) for n in (0, 256, 4096, 65_536)] == pytest.approx([3e-3] * 4)
    assert found(262_144) == pytest.approx(1e-2)


def test_beyond_sizes_that_share_a_mean_a_curve_goes_on_rising() -> None:
    """Else a model ten times as large would cost no more than the largest bucket measured."""
    sizes, seconds = (1e6, 4e6, 16e6, 32e6), (0.1, 0.3, 1.6, 1.5)
    found = fit([(n, [y] * 3) for n, y in zip(sizes, seconds)])
    assert found(16e6) == found(32e6) == pytest.approx(1.55)
    assert found(320e6) == pytest.approx(1.55 + (1.55 - 0.3) / 28e6 * 288e6)
    level = fit([(n, [y] * 3) for n, y in zip(sizes, (1.2, 0.8, 1.1, 0.9))])
    assert level(320e6) == pytest.approx(1.0)


def test_where_measurements_differ_more_than_the_formula_misses_it_stands() -> None:
    found = fit([(n, [y * f for f in (0.7, 0.8, 1.0, 1.2, 1.3)]) for n, y in zip(
        SIZES, (1.1e-3, 0.9e-3, 1.1e-3, 1.5e-3, 3.3e-3, 9e-3, 36e-3)
    )])  # fmt: skip
    assert found.error > 0.03
    assert len(found.curve.points) <= 3


def test_repetitions_that_agree_by_chance_do_not_bind_the_curve() -> None:
    noise = (0.6, 0.8, 1.0, 1.2, 1.4)
    sizes = {256: 0.9e-3, 4096: 1.6e-3, 65_536: 1.1e-3, 262_144: 0.8e-3, 1_048_576: 1.1e-3}
    found = fit([(n, [y] * 5 if n == 4096 else [y * f for f in noise]) for n, y in sizes.items()])
    assert found(256) == pytest.approx(1.1e-3, rel=0.1)
    assert found(1e6) == pytest.approx(1.1e-3, rel=0.1)


def test_what_is_known_well_binds_the_curve() -> None:
    """Small messages vary between runs and among each other; large ones do neither."""
    noise = (0.6, 0.8, 1.0, 1.2, 1.4)
    small = [(n, [y * f for f in noise]) for n, y in ((256, 1.3e-3), (4096, 0.7e-3))]
    large = [(n, [3e-8 * n] * 5) for n in (262_144, 1_048_576, 4_194_304)]
    found = fit([*small, (65_536, [2.2e-3 * f for f in noise]), *large])
    assert found(256) == found(4096) == pytest.approx(1e-3, rel=0.01)
    for n, (seconds, *_) in large:
        assert found(n) == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_sizes_have_a_curve(count: int) -> None:
    found = fit(measured(lambda n: 1e-3 + 2e-9 * n, SIZES[:count]))
    for n in SIZES[:count]:
        assert found(n) == pytest.approx(1e-3 + 2e-9 * n, rel=0.01)


def test_no_fit_falls_or_is_negative() -> None:
    found = fit([(256, [5e-3]), (4096, [1e-3]), (65_536, [4e-3]), (262_144, [1e-3])])
    values = [found(n) for n in (0, 1, 256, 4096, 1e5, 1e6, 1e8)]
    assert all(a <= b + 1e-12 for a, b in pairwise(values))
    assert min(values) >= 0


@pytest.mark.parametrize(
    "points", [[], [(1, [])], [(1, [0.0])], [(1, [float("nan")])], [(2, [1.0]), (1, [1.0])]]
)
def test_what_cannot_be_fitted_is_refused(points: list[tuple[int, list[float]]]) -> None:
    with pytest.raises(PlanError, match="Measure again"):
        fit(points)


def test_a_fit_survives_its_file() -> None:
    found = fit(measured(lambda n: max(1e-3, 2e-9 * n), noise=0.1))
    assert FIT.read(found.to_json()) == found
    with pytest.raises(Broken, match="no 'error'"):
        FIT.read({"curve": [[0, 1], [0]]})
