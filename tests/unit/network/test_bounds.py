"""Bounds: which limit binds, and that spraying reaches it if all links are equal."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradwire.network.bounds import bounds
from gradwire.network.builders import fat_tree, leaf_spine
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routing import Spray
from gradwire.network.routing.route import route
from gradwire.network.simulate import simulate


def test_an_ordered_ring_is_bound_by_hosts() -> None:
    """One flow of each leaf crosses to another leaf, over 16 uplinks."""
    fabric, hosts = leaf_spine(16, 16, 16, host_gbps=8), np.arange(256)
    found = bounds(Flows(hosts, (hosts + 1) % 256, 10**9), fabric)
    assert found.host_seconds == pytest.approx(1.0)
    assert found.fabric_seconds == pytest.approx(1 / 16)
    assert (found.binding, found.seconds) == ("host", found.host_seconds)


def test_oversubscription_lets_the_fabric_bind() -> None:
    fabric, hosts = leaf_spine(4, 8, 4, host_gbps=8, oversubscription=2), np.arange(32)
    found = bounds(Flows(hosts, (hosts + 8) % 32, 10**9), fabric)
    assert found.fabric_seconds == pytest.approx(2.0)
    assert found.binding == "fabric"


def test_flows_that_start_late_end_late() -> None:
    """A second of what starts at once, and, from second 5 on, two more at one port."""
    fabric = leaf_spine(3, 1, 1, host_gbps=8, fabric_gbps=16)
    start = [0, 5 * 10**9, 5 * 10**9, 0]
    flows = Flows([0, 0, 1, 1], [1, 2, 2, 0], 10**9, [0, 0, 0, 1], start)
    assert bounds(flows, fabric).host_seconds == pytest.approx(2 + 1)
    found = bounds(flows, fabric, starts=True)
    assert found.host_seconds == pytest.approx(5 + 2 + 1)
    assert found.fabric_seconds == pytest.approx(5 + 1 + 0.5)
    assert found.seconds == pytest.approx(simulate(route(flows, fabric), "flow"))
    early = Flows(flows.src, flows.dst, flows.bytes, flows.step)
    assert bounds(early, fabric, starts=True) == bounds(flows, fabric)


@pytest.mark.parametrize("fabric", [leaf_spine(4, 4, 3), fat_tree(3, 2, 4, 2, 2)])
def test_spraying_reaches_the_bound_of_the_fabric(fabric: Fabric) -> None:
    hosts = np.random.default_rng(1).permutation(fabric.hosts)
    flows = Flows(hosts, np.roll(hosts, 1), 10**6)
    routes = Spray().route(fabric, flows, 0)
    assert bounds(flows, fabric).fabric_seconds == pytest.approx(routes.fabric_seconds)


def test_steps_are_one_after_the_other() -> None:
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    one = bounds(Flows([0, 1], [2, 3], 10**9), fabric)
    two = bounds(Flows([0, 1], [2, 3], 10**9, [0, 7]), fabric)
    assert one.host_seconds == pytest.approx(1.0)
    assert two.seconds == pytest.approx(2.0)


def test_incast_is_bound_by_who_receives() -> None:
    found = bounds(Flows([0, 1, 2], [3, 3, 3], 10**9), leaf_spine(2, 2, 2, host_gbps=8))
    assert found.host_seconds == pytest.approx(3.0)


def test_flows_are_given_as_for_route() -> None:
    fabric, rows = leaf_spine(2, 2, 2), [(0, 2, 1000), (1, 3, 500)]
    assert bounds(rows, fabric) == bounds(Flows.of(rows), fabric)


def test_no_flows_take_no_time() -> None:
    found = bounds(Flows.of([]), leaf_spine(2, 2, 2))
    assert (found.binding, found.seconds) == ("nothing", 0.0)


def test_where_nothing_passes_there_is_no_end() -> None:
    fabric = leaf_spine(2, 1, 1).without("spine0")
    assert math.isinf(bounds(Flows([0], [1], 1), fabric).fabric_seconds)
