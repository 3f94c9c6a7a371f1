"""The spraying bound, reached with few cuts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from demands import FABRICS, SIZE, demands, groups, permutation
from hypothesis import given
from hypothesis import strategies as st

from gradwire.network import Fabric, Flows, Link, Routes, fat_tree, leaf_spine, route


def fullest(fabric: Fabric, flows: Flows) -> tuple[int, int]:
    """The most flows that a leaf sends or receives, and how many leaves have so many on a side."""
    ends = [fabric.leaf_of[end] for end in (flows.src, flows.dst)]
    far = ends[0] != ends[1]
    counts = np.concatenate([np.bincount(end[far], minlength=fabric.leaves) for end in ends])
    most = int(counts.max())
    sides = [int((c == most).sum()) for c in np.split(counts, 2)]
    return most, max(sides)


def check(routes: Routes, flows: Flows) -> None:
    fabric = routes.fabric
    most, leaves = fullest(fabric, flows)
    s = len(fabric.uplinks)
    rest = most % s
    assert routes.max_load == Fraction(int(flows.bytes[0]) * most, s)
    assert routes.splits >= rest * leaves, "each fullest leaf has to cut so many"
    least = min(Fraction(p.bytes) for p in routes.assignments)
    assert least >= Fraction(int(flows.bytes[0]) * math.gcd(rest or s, s), s)


@pytest.mark.parametrize("fabric", [f for f in FABRICS if not f.cores])
def test_the_fullest_link_has_its_share_and_no_more(fabric: Fabric) -> None:
    for flows in demands(fabric):
        check(route(flows, fabric, "min_split", 1), flows)


@given(st.integers(2, 6), st.integers(1, 6), st.integers(1, 9), st.integers(0, 999), st.booleans())
def test_for_any_leaf_spine(leaves: int, hosts: int, spines: int, seed: int, all: bool) -> None:
    fabric = leaf_spine(leaves, hosts, spines)
    flows = groups(fabric, 3, seed) if all and fabric.hosts >= 3 else permutation(fabric, seed)
    if (fabric.leaf_of[flows.src] != fabric.leaf_of[flows.dst]).any():
        check(route(flows, fabric, "min_split", seed), flows)


@pytest.mark.parametrize(("rest", "ways"), [(5, 16), (8, 16), (3, 7), (6, 9), (1, 4)])
def test_flows_of_one_leaf_are_cut_in_as_few_pieces_as_can_be(rest: int, ways: int) -> None:
    """They are cut into r + s - gcd(r, s) pieces instead of r * s / gcd(r, s)."""
    n = ways + rest
    flows = Flows(np.arange(n), np.arange(n) + n, SIZE)
    routes = route(flows, leaf_spine(2, n, ways), "min_split")
    assert routes.splits == rest
    assert routes.pieces == ways + rest + ways - math.gcd(rest, ways)


@pytest.mark.parametrize(
    ("hosts", "leaves", "spines", "most"), [(16, 16, 12, 400), (12, 8, 5, 120)]
)
def test_cuts_far_fewer_than_each_host_alone(
    hosts: int, leaves: int, spines: int, most: int
) -> None:
    fabric = leaf_spine(leaves, hosts, spines)
    flows = permutation(fabric, 4)
    few, many = (route(flows, fabric, scheme) for scheme in ("min_split", "ethereal"))
    assert few.pieces <= most
    assert many.pieces >= 3.9 * few.pieces
    assert few.max_load <= many.max_load


def test_uplinks_of_unequal_rates_have_what_they_are_worth() -> None:
    fabric = leaf_spine(2, 6, 3)
    fast = fabric.with_rates({
        link: 200 * 10**9 for link in fabric.links if "spine0" in link
    })  # fmt: skip
    hosts = np.arange(6)
    loads = route(Flows(hosts, hosts + 6, SIZE), fast, "min_split").link_bytes()
    assert [loads[Link("leaf0", f"spine{j}")] for j in range(3)] == [
        3 * SIZE,
        1.5 * SIZE,
        1.5 * SIZE,
    ]
    whole = route(Flows(hosts, hosts + 6, SIZE), fast, "coloured").link_bytes()
    assert [whole[Link("leaf0", f"spine{j}")] // SIZE for j in range(3)] in (
        [4, 1, 1],
        [3, 1, 2],
        [3, 2, 1],
        [2, 2, 2],
    )


def test_between_pods_whole_and_cut_flows_have_their_shares() -> None:
    """Each link to a core has its equal share of its switch's flows, and at most one flow more."""
    fabric = fat_tree(3, 2, 4, 3, 2)
    for flows in demands(fabric):
        routes = route(flows, fabric, "min_split", 3)
        pods = [fabric.pod_of[fabric.leaf_of[end]] for end in (flows.src, flows.dst)]
        far = pods[0] != pods[1]
        most = max(int(np.bincount(pod[far]).max()) for pod in pods)
        per_switch = Fraction(most * SIZE, 3)
        low = 2 * fabric.leaves * 3
        on_cores = [Fraction(int(n), routes.loads.unit) for n in routes.loads.amount[low:]]
        assert max(on_cores) <= per_switch / 2 + SIZE
