"""Amounts are exact, however fine their parts; an adversarial review found these cases."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire.errors import NetworkError
from gradwire.network import Fabric, Flows, Link, bounds, dual_plane, leaf_spine, route, simulate
from gradwire.network.advice import advise
from gradwire.network.amounts import as_bytes, numbers, parts_of, reduced, scaled, shrunk
from gradwire.network.failures import sweep
from gradwire.network.placement import Placement
from gradwire.network.samples import samples

WHOLE = st.integers(-(2**70), 2**70)


@given(st.lists(WHOLE, min_size=1, max_size=9), st.integers(1, 2**70))
def test_products_are_exact(values: list[int], factor: int) -> None:
    assert scaled(numbers(values), factor).tolist() == [v * factor for v in values]
    found, unit = reduced(numbers([v * factor for v in values]), factor)
    assert [Fraction(v, unit) for v in found.tolist()] == values
    close = as_bytes(numbers(values), factor)
    assert close.tolist() == [v / factor for v in values]


@given(st.lists(st.integers(0, 2**80), min_size=1, max_size=9), st.integers(1, 2**70))
@example([1], 1 << 62)  # less than a byte in all
def test_what_is_shrunk_is_nearly_the_same(values: list[int], unit: int) -> None:
    found, finer = shrunk(numbers(values), unit)
    assert found.dtype == np.int64
    off = sum(values) / unit / 2**50
    assert found / finer == pytest.approx([v / unit for v in values], rel=1e-9, abs=off)
    exact, finer = shrunk(numbers(values), unit, 53)
    assert exact.sum() < 2**53
    assert exact / finer == pytest.approx([v / unit for v in values], rel=1e-9, abs=off)


def test_parts_of_large_units() -> None:
    unit = 2**80 * 15
    assert parts_of(unit, np.array([3, 5, 3])).tolist() == [unit // 3, unit // 5, unit // 3]


def is_sound(flows: Flows, fabric: Fabric, scheme: str) -> None:
    routes = route(flows, fabric, scheme, 1)
    sums = np.zeros(len(flows), object)
    np.add.at(sums, routes.flow, routes.amount.astype(object))
    assert (sums == flows.bytes.astype(object) * routes.unit).all()
    assert (routes.amount > 0).all()
    least = bounds(flows, fabric).seconds
    for engine in ("static", "flow", "packet"):
        assert simulate(routes, engine) >= least * (1 - 1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("bytes", [10**6, 92158])
def test_optimal_shares_of_planes(bytes: int) -> None:
    four = Flows(np.arange(4), np.arange(4) + 4, bytes)
    is_sound(four, dual_plane(2, 4, 4, planes=3), "optimal")
    broken = dual_plane(4, 2, 2).without(Link("leaf1", "plane0.spine0"))
    eight = Flows(np.arange(8), (np.arange(8) + 2) % 8, bytes)
    is_sound(eight, broken, "optimal")
    assert np.isfinite(sweep(route(eight, broken, "optimal")).seconds).any()


@pytest.mark.parametrize("scheme", ["ethereal", "wrap", "min_split", "optimal", "spray"])
def test_as_many_different_numbers_of_paths_as_leaves(scheme: str) -> None:
    fabric = leaf_spine(16, 4, 32)
    fabric = fabric.without(*(
        Link(f"leaf{leaf}", f"spine{j}") for leaf in range(16) for j in range(leaf)
    ))  # fmt: skip
    pairs = [(i, (i + 4 * k) % 64, 10**5) for k in (1, 3, 5, 7, 9) for i in range(64)]
    is_sound(Flows(*zip(*pairs)), fabric, scheme)


@pytest.mark.parametrize("scheme", ["wrap", "wrap(5)", "spray", "optimal"])
def test_nothing_is_lost_where_leaves_send_more_than_64_bits_count(scheme: str) -> None:
    flows = Flows([0, 1, 0], [2, 3, 3], [2**62, 2**62 + 7, 2**63 - 1])
    routes = route(flows, leaf_spine(2, 2, 3), scheme)
    sums = np.zeros(len(flows), object)
    np.add.at(sums, routes.flow, routes.amount.astype(object))
    assert (sums == flows.bytes.astype(object) * routes.unit).all()
    assert float(routes.max_load) == pytest.approx(2**64 / 3, rel=1e-5)
    assert simulate(routes) == pytest.approx(2**62 * 3 * 8 / 100e9)


@pytest.mark.parametrize("scheme", ["wrap", "spray"])
def test_as_many_different_rates_as_links(scheme: str) -> None:
    fabric = leaf_spine(12, 4, 4)
    mbps = np.random.default_rng(3).integers(50_000, 400_000, len(fabric.links)).tolist()
    fabric = fabric.with_rates({link: own * 10**6 for link, own in zip(fabric.links, mbps)})
    source = np.arange(48).repeat(3)
    flows = Flows(source, (source + np.tile([5, 17, 29], 48)) % 48, 10**5)
    is_sound(flows, fabric, scheme)


def test_a_least_piece_where_a_plane_has_no_path() -> None:
    fabric = dual_plane(4, 3, 1, planes=3).with_rates({
        Link("plane1.spine0", "leaf2"): 70 * 10**9, Link("leaf3", "plane2.spine0"): 25 * 10**9,
        Link("leaf1", "plane1.spine0"): 0, Link("plane2.spine0", "leaf1"): 0,
    })  # fmt: skip
    routes = route([(8, 3, 7), (3, 8, 10**6)], fabric, "wrap(least=1000)")
    assert {p.bytes for p in routes.assignments if p.flow == 0} == {7}


@pytest.mark.parametrize("scheme", ["wrap", "wrap(least=1000)", "optimal"])
def test_planes_of_many_different_rates_and_none(scheme: str) -> None:
    fabric = dual_plane(3, 2, 3, planes=3).with_rates({
        Link("leaf2", "plane2.spine1"): 0, Link("leaf0", "plane2.spine2"): 0,
        Link("plane0.spine0", "leaf1"): 25 * 10**9, Link("plane2.spine1", "leaf1"): 25 * 10**9,
    })  # fmt: skip
    pairs = [(a, b) for a in range(6) for b in range(6) if a != b]
    sizes = np.random.default_rng(2).integers(1, 100_000, len(pairs))
    is_sound(Flows(*zip(*pairs), sizes), fabric, scheme)
    assert route([], fabric, scheme).pieces == route([(0, 1, 5)], fabric, scheme).pieces == 0


def test_steps_are_bound_one_by_one() -> None:
    """A host binds the first step, the fabric the second: hashes are no faster than the bound."""
    fabric = leaf_spine(2, 4, 4).without("spine0")
    flows = Flows([0, 0, 0, 0, 1, 2, 3], [1, 2, 3, 4, 5, 6, 7], 10**7, [0] * 3 + [1] * 4)
    advice = advise(flows, fabric)
    assert min(row.seconds for row in advice.rows) >= advice.bounds.seconds * (1 - 1e-9)
    least = samples(flows, fabric, "ecmp", 10, hosts=True)
    assert (least >= advice.bounds.seconds * (1 - 1e-9)).all()


def test_many_bytes_do_not_come_round() -> None:
    flows = Flows([0, 0], [2, 3], 2**62)
    assert bounds(flows, leaf_spine(2, 2, 2)).host_seconds == pytest.approx(2**63 * 8 / 100e9)


FABRIC = leaf_spine(2, 2, 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: route([(0, 2, 1)], FABRIC, seed=-1), "seed is a whole number of at least 0"),
        (lambda: samples([(0, 2, 1)], FABRIC, seed=-1), "seed is a whole number of at least 0"),
        (lambda: Placement.shuffled(4, -1), "seed is a whole number of at least 0"),
        (lambda: Placement.shuffled(4, 1, 0), "ranks of a machine is a whole number of at"),
        (lambda: Placement.in_order(4, 0), "ranks of a machine is a whole number of at least 1"),
        (lambda: simulate(route([(0, 2, 1)], FABRIC), "packet", seed=-1), "seed is a"),
        (lambda: bounds(Flows([0], [99], 1), FABRIC), "got a flow with host 99"),
        (lambda: route([(0, 1)], FABRIC), "a flow must be source, destination, bytes"),  # type: ignore[list-item]
        (lambda: Flows([[1], [2, 3]], [1], [1]), "one row of whole numbers"),  # type: ignore[list-item]
        (lambda: Flows([0], [1], np.array([2**63], np.uint64)), f"to {2**63 - 1}; number 0 is"),
        (lambda: leaf_spine(2, 2, 2, host_gbps=1e12), "1 bit to 1 Ebit per second"),
        (lambda: leaf_spine(2, 2, 2, host_gbps=1e-12), "1 bit to 1 Ebit per second"),
        (lambda: leaf_spine(2, 2, 2, host_gbps=1e300), "1 bit to 1 Ebit per second"),
        (lambda: leaf_spine(2, 2, 2, host_gbps=10**400), "above 0 and finite"),
        (lambda: leaf_spine(2, 2, 2, oversubscription=10**400), "above 0 and finite"),
        (lambda: dual_plane(2, 2, 2, host_gbps="x"), "host_gbps must be above 0"),  # type: ignore[arg-type]
        (lambda: FABRIC.with_rates({FABRIC.links[0]: 1.5}), "whole number of bits per second"),  # type: ignore[dict-item]
    ],
)  # fmt: skip
def test_what_cannot_be_is_told(wrong: object, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        wrong()  # type: ignore[operator]
