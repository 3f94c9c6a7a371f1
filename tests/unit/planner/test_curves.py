"""Curves: values, scaling, saving and reading, and refusals."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import GradwireError, PlanError
from gradwire.planner.curves import CURVE, Curve
from gradwire.planner.fit import fit
from gradwire.schema import Broken

NUMBER = st.floats(0, 1e6)
STEPS = st.lists(st.tuples(st.floats(0.01, 1e3), st.floats(0, 1e3)), min_size=1, max_size=6)
KNEE = Curve(((10.0, 1.0), (20.0, 1.0), (30.0, 4.0)))


def drawn(steps: list[tuple[float, float]], slope: float | None = None) -> Curve:
    """A curve from its steps to the right and up."""
    points, x, y = [], 0.0, 0.0
    for right, up in steps:
        x, y = x + right, y + up
        points.append((x, y))
    return Curve(tuple(points), slope)


CURVES = st.builds(drawn, STEPS, st.floats(0, 10))


def test_affine_is_fixed_plus_per_unit() -> None:
    cost = Curve(((0.0, 1.5),), 0.25)
    assert [cost(size) for size in (0, 1, 8)] == [1.5, 1.75, 3.5]


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(0, 1.0), (10, 1.0), (15, 1.0), (20, 1.0), (25, 2.5), (30, 4.0), (40, 7.0)],
)
def test_constant_before_the_first_point_and_straight_after_the_last(
    size: float, seconds: float
) -> None:
    assert KNEE(size) == seconds


def test_one_point_is_constant_unless_a_slope_is_given() -> None:
    assert Curve(((5.0, 2.0),))(100.0) == 2.0
    assert Curve(((5.0, 2.0),), 0.5)(9.0) == 4.0


@given(CURVES, st.lists(NUMBER, min_size=2, max_size=9))
def test_no_curve_falls(curve: Curve, sizes: list[float]) -> None:
    values = [curve(size) for size in sorted(sizes)]
    assert values == sorted(values)


@given(CURVES)
def test_a_curve_goes_through_its_points(curve: Curve) -> None:
    assert all(curve(x) == y for x, y in curve.points)


@given(CURVES, st.floats(0, 10), NUMBER)
def test_scaled_curves(curve: Curve, factor: float, x: float) -> None:
    assert curve.scaled(factor)(x) == pytest.approx(factor * curve(x), rel=1e-6, abs=1e-6)
    assert Curve(((0.0, 1.0),), 0.5).scaled(2.0)(3.0) == 5.0


@given(CURVES)
def test_saved_and_read_again(curve: Curve) -> None:
    assert CURVE.read(json.loads(json.dumps(curve.to_json()))) == curve


def test_a_saved_curve_can_be_read() -> None:
    assert KNEE.to_json() == [[10.0, 1.0], [20.0, 1.0], [30.0, 4.0], [0.3]]


def test_curves_are_values() -> None:
    assert Curve(((1, 2),)) == Curve(((1.0, 2.0),), 0.0)
    assert hash(KNEE) == hash(Curve(KNEE.points))
    with pytest.raises(AttributeError):
        KNEE.slope = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("points", "slope", "rule"),
    [
        ((), None, "at least one point"),
        (((1.0, 1.0), (1.0, 2.0)), None, "ascend strictly; 1.0 follows 1.0"),
        (((2.0, 1.0), (1.0, 2.0)), None, "ascend strictly"),
        (((1.0, 2.0), (2.0, 1.0)), None, "must not fall; 1.0 s"),
        (((-1.0, 0.0),), None, "a size must be finite and not negative; got -1.0"),
        (((0.0, -1.0),), None, "a cost in seconds must be finite"),
        (((0.0, math.nan),), None, "got nan"),
        (((math.inf, 1.0),), None, "got inf"),
        (((0.0, 1.0),), -0.5, "the slope after the last point"),
        (((0.0, 1.0),), math.inf, "the slope after the last point"),
    ],
)
def test_what_is_no_curve(
    points: tuple[tuple[float, float], ...], slope: float | None, rule: str
) -> None:
    with pytest.raises(PlanError, match=rule):
        Curve(points, slope)


def test_what_is_no_factor() -> None:
    for factor in (-1.0, math.inf, math.nan):
        with pytest.raises(PlanError, match="the factor of seconds"):
            KNEE.scaled(factor)


@pytest.mark.parametrize("value", [[], [[1.0, 2.0]], [[1.0], [2.0]], 3, [[1.0, 2.0], ["x"]]])
def test_what_is_no_saved_curve(value: object) -> None:
    with pytest.raises(Broken, match=r"(is|must be) a "):
        CURVE.read(value)


def test_errors_are_gradwires() -> None:
    assert issubclass(PlanError, GradwireError)


@pytest.mark.parametrize("slope", [1e-10, 5.28e-8, 3.3e-7, 1e-6])
def test_a_line_without_noise_is_fitted_as_a_line(slope: float) -> None:
    """Rounding errors are not taken for a floor or a knee."""
    sizes = (256, 4096, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
    found = fit([(n, [6e-4 + slope * n]) for n in sizes])
    assert len(found.curve.points) == 1
    assert found(0) == pytest.approx(6e-4)
    assert found(1e7) == pytest.approx(6e-4 + slope * 1e7)
