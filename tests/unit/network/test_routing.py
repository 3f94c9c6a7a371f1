"""Every scheme keeps the bytes, uses working paths, and has exactly the loads of theory."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from demands import FABRICS, SIZE, demands, groups, permutation
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import NetworkError
from gradwire.network import Flows, Link, Routes, fat_tree, leaf_spine
from gradwire.network.fabric import BELOW, EVERY, NO_LINK, Fabric
from gradwire.network.routing import MEMBERS, Coloured, Ecmp, EcmpK, Ethereal, MpRdma, Spray
from gradwire.network.routing.scheme import Scheme

NEEDED = {EcmpK: (3,), MpRdma: (4,)}
EVERY_SCHEME = [
    *(member(*NEEDED.get(member, ())) for member in MEMBERS),
    Ethereal(whole_bytes=True), Ecmp(polarized=True), Spray("random"), Spray("rotating", 1000),
]  # fmt: skip


def spraying(routes: Routes) -> dict[Link, int | Fraction]:
    return Spray().route(routes.fabric, routes.flows, 0).link_bytes()


@pytest.mark.once
@pytest.mark.parametrize("scheme", EVERY_SCHEME, ids=str)
@pytest.mark.parametrize("fabric", FABRICS)
def test_all_bytes_travel_once_by_paths_that_work(scheme: Scheme, fabric: Fabric) -> None:
    broken = fabric.without(Link("leaf0", fabric.links[0].target), fabric.links[-1].source)
    for network in (fabric, broken):
        for flows in demands(fabric):
            routes = scheme.route(network, flows, 7)
            sent = [Fraction(0)] * len(flows)
            for piece in routes.assignments:
                sent[piece.flow] += Fraction(piece.bytes)
                assert piece.bytes > 0
            assert sent == flows.bytes.tolist()
            leaf_of = network.leaf_of
            stays = leaf_of[flows.src] == leaf_of[flows.dst]
            assert ((routes.path == BELOW) == stays[routes.flow]).all()
            idle = np.array([load == 0 for load in routes.link_bytes().values()])
            assert idle[network.rates == 0].all(), "nothing over what failed"


@pytest.mark.parametrize("fabric", FABRICS)
def test_ethereal_loads_every_link_as_spraying_does(fabric: Fabric) -> None:
    for flows in demands(fabric):
        routes = Ethereal().route(fabric, flows, 3)
        assert routes.link_bytes() == spraying(routes)


@given(st.integers(1, 40), st.integers(1, 17), st.integers(1, 10_000))
def test_ethereal_cuts_the_remainder_into_equal_pieces(n: int, spines: int, bytes: int) -> None:
    """n flows go from one host to one leaf."""
    fabric = leaf_spine(2, max(n, 2), spines)
    flows = Flows([0] * n, np.arange(n) + max(n, 2), bytes)
    routes = Ethereal().route(fabric, flows, 5)
    rest = n % spines
    assert routes.splits == (rest if spines // math.gcd(rest, spines) > 1 else 0)
    assert routes.pieces == n - rest + rest * spines // math.gcd(rest, spines)
    assert set(routes.link_bytes().values()) <= {0, Fraction(n * bytes, spines)}


@given(st.integers(1, 40), st.integers(1, 17), st.integers(1, 10_000))
def test_whole_bytes_differ_by_less_than_a_byte_a_piece(n: int, spines: int, bytes: int) -> None:
    fabric = leaf_spine(2, max(n, 2), spines)
    flows = Flows([0] * n, np.arange(n) + max(n, 2), bytes)
    exact, whole = (Ethereal(w).route(fabric, flows, 5).link_bytes() for w in (False, True))
    assert all(isinstance(x, int) for x in whole.values())
    assert sum(whole.values()) == sum(exact.values())
    for link, load in exact.items():
        assert abs(whole[link] - load) < n * spines


@pytest.mark.parametrize("fabric", FABRICS)
def test_coloured_loads_are_the_least_that_whole_flows_can_have(fabric: Fabric) -> None:
    for flows in demands(fabric):
        routes = Coloured().route(fabric, flows, 3)
        assert routes.splits == 0
        leaf_of = fabric.leaf_of
        crossing = leaf_of[flows.src] != leaf_of[flows.dst]
        ends = [np.bincount(leaf_of[e[crossing]]) for e in (flows.src, flows.dst)]
        least = (
            -(-int(np.max(ends[0])) // len(fabric.uplinks)),
            -(-int(np.max(ends[1])) // len(fabric.uplinks)),
        )
        on_leaves = routes.loads.amount[: 2 * fabric.leaves * len(fabric.uplinks)]
        assert on_leaves.max() == max(least) * SIZE
        if not fabric.cores:
            assert routes.max_load == max(least) * SIZE


def test_a_ring_over_leaves_needs_no_cut_where_a_host_would_cut_all() -> None:
    """16 leaves of 16 hosts and 16 spines, with the permutation of the published comparison."""
    fabric = leaf_spine(16, 16, 16)
    flows = permutation(fabric, 0)
    coloured, ethereal = (s.route(fabric, flows, 0) for s in (Coloured(), Ethereal()))
    assert coloured.max_load == SIZE
    assert coloured.splits == 0
    assert ethereal.splits == coloured.pieces
    assert ethereal.pieces == 16 * coloured.pieces


def test_spraying_is_as_fast_as_each_path() -> None:
    slow = Link("leaf0", "spine1")
    fabric = leaf_spine(2, 1, 3, host_gbps=100).with_rates({slow: 50 * 10**9})
    loads = Spray().route(fabric, Flows([0], [1], 1000), 0).link_bytes()
    assert [loads[Link("leaf0", f"spine{j}")] for j in range(3)] == [400, 200, 400]


def test_loads_beyond_64_bits_are_exact() -> None:
    fabric = leaf_spine(2, 2, 7)
    flows = Flows([0, 1], [2, 3], 2**61)
    loads = Spray().route(fabric, flows, 0).link_bytes()
    assert set(loads.values()) == {0, Fraction(2**62, 7)}


def test_seconds_are_of_the_link_that_is_done_last() -> None:
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    routes = Coloured().route(fabric, Flows([0, 1], [2, 3], 10**9), 0)
    assert routes.fabric_seconds == pytest.approx(1.0)


@pytest.mark.parametrize("scheme", EVERY_SCHEME, ids=str)
def test_the_same_seed_gives_the_same_routes(scheme: Scheme) -> None:
    fabric = leaf_spine(4, 4, 4)
    flows = groups(fabric, 4, 1)
    one, other = (scheme.route(fabric, flows, 9) for _ in range(2))
    assert one.assignments == other.assignments


def test_ecmp_draws_every_path_equally_often() -> None:
    fabric = leaf_spine(2, 4096, 4).without(Link("spine2", "leaf1"))
    flows = Flows(np.arange(4096), np.arange(4096) + 4096, 1)
    counts = np.bincount(Ecmp().route(fabric, flows, 1).path, minlength=4)
    assert counts[2] == 0
    assert np.abs(counts[[0, 1, 3]] - 4096 / 3).max() < 5 * math.sqrt(4096 / 3)


@pytest.mark.parametrize("scheme", [Coloured(), Ethereal()], ids=str)
def test_flows_of_several_sizes_are_refused(scheme: Scheme) -> None:
    fabric = leaf_spine(2, 2, 3)
    flows = Flows([0, 0], [2, 3], [10, 20])
    with pytest.raises(NetworkError, match="got 10 bytes from 0 to 2 and 20 from 0 to 3"):
        scheme.route(fabric, flows, 0)


def test_a_flow_below_a_leaf_loads_no_link() -> None:
    fabric = leaf_spine(2, 2, 2)
    for scheme in EVERY_SCHEME:
        routes = scheme.route(fabric, Flows([0], [1], 10), 0)
        assert routes.max_load == 0
        assert routes.pieces == routes.splits == 0
        assert routes.fabric_seconds == 0.0


def test_hops_of_pieces_are_links() -> None:
    fabric = fat_tree(2, 2, 2, 2, 2)
    routes = Ecmp().route(fabric, permutation(fabric, 4), 0)
    hops = fabric.hops(np.array([0]), np.array([3]), np.array([3]))
    assert (hops != NO_LINK).all()
    assert EVERY not in routes.path
