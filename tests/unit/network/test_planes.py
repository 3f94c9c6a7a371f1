"""Rails, and hosts with ports on several planes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from demands import SIZE, groups, permutation

from gradwire.errors import NetworkError
from gradwire.network import Flows, dual_plane, leaf_spine, rail_optimized, route
from gradwire.network.simulate import simulate


def test_cards_of_one_number_share_a_leaf() -> None:
    fabric = rail_optimized(2, 4, 8, 8)
    assert (fabric.hosts, fabric.leaves) == (64, 16)
    for machine in range(8):
        own = fabric.leaf_of[machine * 8 : machine * 8 + 8]
        assert own.tolist() == [machine // 4 * 8 + rail for rail in range(8)]
    same_rail = route(Flows([0], [8], 10), fabric)
    assert same_rail.pieces == 0, "below one leaf"


def test_rails_are_as_fast_as_a_leaf_spine_of_their_size() -> None:
    fabric = rail_optimized(2, 4, 8, 8)
    hosts = np.arange(64)
    routes = route(Flows(hosts, (hosts + 32) % 64, SIZE), fabric)
    assert routes.max_load == SIZE, "4 flows of a leaf, 8 uplinks"


def test_a_host_has_a_port_on_each_plane() -> None:
    fabric = dual_plane(4, 4, 4, host_gbps=200)
    assert fabric.host_up.tolist() == [[100 * 10**9] * 2] * 16
    assert fabric.plane_of.tolist() == [0] * 4 + [1] * 4
    assert fabric.links[4].target == "plane1.spine0"


@pytest.mark.parametrize("scheme", ["min_split", "wrap", "spray", "ethereal"])
def test_both_ports_are_used_evenly(scheme: str) -> None:
    fabric = dual_plane(4, 4, 4, host_gbps=200)
    flows = permutation(fabric, 1)
    assert simulate(route(flows, fabric, scheme)) == pytest.approx(SIZE * 8 / 200e9)


def test_whole_flows_alternate_between_ports() -> None:
    fabric = dual_plane(4, 4, 4, host_gbps=200)
    routes = route(groups(fabric, 5, 1), fabric, "coloured")
    far = routes.path >= 0
    plane = fabric.plane_of[routes.path[far]]
    sent = np.zeros((16, 2), np.int64)
    np.add.at(sent, (routes.flows.src[routes.flow[far]], plane), 1)
    assert np.abs(sent[:, 0] - sent[:, 1]).max() <= 1


def test_one_flow_of_a_host_by_one_port_takes_twice_as_long() -> None:
    fabric = dual_plane(2, 1, 2, host_gbps=200)
    whole, cut = (route([(0, 1, SIZE)], fabric, scheme) for scheme in ("coloured", "min_split"))
    assert simulate(whole) == pytest.approx(2 * simulate(cut))
    assert {Fraction(p.bytes) for p in cut.assignments} <= {Fraction(SIZE, 2), Fraction(SIZE, 4)}


def test_static_seconds_are_of_the_slowest_link_of_all() -> None:
    fabric = leaf_spine(2, 2, 4, host_gbps=8)
    assert simulate(route([(0, 1, 10**9)], fabric)) == pytest.approx(1.0), "below a leaf"
    assert simulate(route([(0, 2, 10**9), (1, 2, 10**9)], fabric)) == pytest.approx(2.0)
    assert simulate(route([(0, 2, 10**9, 0), (1, 2, 10**9, 1)], fabric)) == pytest.approx(2.0)
    with pytest.raises(NetworkError, match=r"one of .static.*got 'fast'"):
        simulate(route([(0, 1, 1)], fabric), "fast")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"planes": 0}, {"host_gbps": -1.0}, {"spines": 0}])
def test_planes_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(NetworkError, match=next(iter(wrong))):
        dual_plane(**{"leaves": 2, "hosts": 2, "spines": 2, **wrong})  # type: ignore[arg-type]
    if "planes" not in wrong:
        with pytest.raises(NetworkError, match=next(iter(wrong))):
            rail_optimized(**{"groups": 2, "machines": 2, "rails": 2, "spines": 2, **wrong})  # type: ignore[arg-type]
