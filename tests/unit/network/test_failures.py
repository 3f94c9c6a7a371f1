"""The cost of failures: the sweep against one failure at a time, and known results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from demands import FABRICS, SIZE, groups, permutation
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import NetworkError
from gradwire.extension import VARIABLE
from gradwire.network import (
    Fabric,
    Flows,
    Link,
    Routes,
    bounds,
    dual_plane,
    fat_tree,
    leaf_spine,
    route,
)
from gradwire.network.engines.flow import transfers_of
from gradwire.network.engines.packet import send
from gradwire.network.failures import cables, sweep, switches
from gradwire.network.native import core

NATIVE = pytest.mark.skipif(core() is None, reason="needs the extension")


@NATIVE
@given(
    st.sampled_from([*FABRICS, dual_plane(3, 4, 2), dual_plane(2, 6, 1, fabric_gbps=400)]),
    st.integers(0, 99), st.sampled_from(["coloured", "wrap", "ecmp"]), st.booleans(),
)  # fmt: skip
def test_the_sweep_is_one_by_one(fabric: Fabric, seed: int, scheme: str, pairs: bool) -> None:
    routes = route(groups(fabric, 3, seed), fabric, scheme, seed)
    what = cables(fabric)
    if pairs:
        what = [(*a, *b) for a, b in zip(what, what[3:])]
    fast = sweep(routes, what, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "twin")
        slow = sweep(routes, what, seed)
    assert fast.seconds == pytest.approx(slow.seconds)
    assert fast.moved.tolist() == slow.moved.tolist()


def test_every_cable_has_two_ways() -> None:
    for fabric in FABRICS:
        found = cables(fabric)
        assert sorted(link for pair in found for link in pair) == sorted(fabric.links)
        assert all(a[:2] == b[:2][::-1] and a.number == b.number for a, b in found)
    assert len(switches(leaf_spine(4, 4, 3))) == 3
    whole = leaf_spine(2, 2, 4)
    rest = whole.without(*[link for link in whole.links if {"spine0", "spine1"} & {*link[:2]}])
    assert {link[:2] for pair in cables(rest) for link in pair} == {
        ends for leaf in ("leaf0", "leaf1") for spine in ("spine2", "spine3")
        for ends in ((leaf, spine), (spine, leaf))
    }  # fmt: skip
    assert [own[0].target for own in switches(rest)] == ["spine2", "spine3"]
    one_way = whole.without(whole.links[0])
    assert len(cables(one_way)) == len(cables(whole))
    assert len(switches(fat_tree(2, 2, 2, 2, 3))) == 2 * 2 + 2 * 3


def test_a_lost_uplink_costs_its_leaf_a_share() -> None:
    """Each leaf has 4 flows on 4 uplinks, so one link carries two when one uplink is lost."""
    fabric = leaf_spine(4, 4, 4)
    hosts = np.arange(16)
    routes = route(Flows(hosts, (hosts + 4) % 16, SIZE), fabric)
    found = sweep(routes)
    assert found.before == pytest.approx(SIZE * 8 / 100e9)
    assert found.seconds == pytest.approx([2 * found.before] * 16)
    assert found.moved.tolist() == [2] * 16, "one up, one down"


def test_a_lost_spine_is_shared_by_the_others() -> None:
    fabric = leaf_spine(4, 8, 4, fabric_gbps=100)
    found = sweep(route(permutation(fabric, 2), fabric), switches(fabric))
    assert (found.moved > 0).all()
    assert (found.seconds >= found.before).all()
    for what, seconds in zip(found.what, found.seconds):
        broken = fabric.without(*what)
        assert seconds >= bounds(permutation(fabric, 2), broken).fabric_seconds * (1 - 1e-9)


def test_links_of_hosts_count_before_and_after() -> None:
    """A host's port of 100 Gbit/s is the slowest, whatever fails between switches."""
    fabric = leaf_spine(2, 2, 2, host_gbps=100, fabric_gbps=400)
    found = sweep(route([(0, 2, SIZE), (0, 1, SIZE)], fabric))
    assert found.before == pytest.approx(2 * SIZE * 8 / 100e9)
    assert found.seconds == pytest.approx([found.before] * 4)


@pytest.mark.parametrize("engine", ["", "twin"])
def test_without_a_plane_hosts_have_the_other_port(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes below the leaf still takes both."""
    monkeypatch.setenv(VARIABLE, engine)
    fabric = dual_plane(2, 2, 1, host_gbps=100, fabric_gbps=400)
    routes = route([(0, 2, SIZE), (0, 2, SIZE), (0, 1, SIZE)], fabric)
    found = sweep(routes, switches(fabric))
    port = SIZE * 8 / fabric.host_up[0, 0]
    assert found.before == pytest.approx(1.5 * port) == routes.seconds
    assert found.seconds == pytest.approx([2.5 * port] * 2)
    assert found.moved.tolist() == [1, 1]


def test_what_has_no_other_path_never_ends() -> None:
    fabric = leaf_spine(2, 2, 1)
    found = sweep(route([(0, 2, 10)], fabric))
    assert np.isinf(found.seconds).all()
    idle = sweep(route([(0, 1, 10)], fabric))
    assert idle.seconds.tolist() == [idle.before] * 2
    assert idle.moved.tolist() == [0, 0]


def test_a_link_that_fails_is_empty_however_large_the_amounts() -> None:
    """Floating-point sums of these leave a rest when what was added is subtracted again."""
    sizes = np.random.default_rng(0).integers(2**52, 2**55, 18)
    fabric = leaf_spine(2, 3, 2)
    routes = route(Flows([0, 1, 2] * 6, [3, 4, 5] * 6, sizes), fabric, "lpt")
    found = sweep(routes)
    assert found.seconds == pytest.approx([int(sizes.sum()) * 8 / 100e9] * 4, rel=1e-9)
    assert found.moved.min() > 0


def test_what_cannot_be_swept_is_refused() -> None:
    fabric = leaf_spine(2, 2, 2)
    with pytest.raises(NetworkError, match="got 2 steps"):
        sweep(route([(0, 2, 1, 0), (0, 2, 1, 1)], fabric))
    with pytest.raises(NetworkError, match="got sprayed packets"):
        sweep(route([(0, 2, 1)], fabric, "spray"))
    with pytest.raises(NetworkError, match="must be one of the topology; got"):
        sweep(route([(0, 2, 1)], fabric), [(Link("leaf0", "spine7"),)])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"path": np.array([2])}, "paths of this topology .* piece 0 takes 2"),
        ({"path": np.array([-1])}, "below one leaf none, -1; piece 0 takes -1"),
        ({"path": np.array([1 << 62])}, "paths of this topology"),
        ({"path": np.array([-3])}, "paths of pieces .* number 0 is -3"),
        ({"path": np.zeros(2, np.int64)}, "the same length; got 1 of flow, 2 of path"),
        ({"flow": np.array([1])}, "flows of pieces .* number 0 is 1"),
        ({"amount": np.array([-1])}, "amounts of pieces .* number 0 is -1"),
        ({"unit": 0}, "unit is a whole number of at least 1"),
        ({"flows": Flows([0], [1], [10])}, "below one leaf none, -1; piece 0 takes 0"),
        ({"flows": Flows([0], [9], [10])}, "numbered from 0 to 3; got a flow with host 9"),
    ],
)
@pytest.mark.parametrize("read", [sweep, send, transfers_of])
def test_pieces_of_another_topology_are_refused(
    read: Callable[[Routes], object], changes: dict[str, Any], said: str
) -> None:
    """Such a path would be read outside of the links' columns."""
    routes = route([(0, 2, 10)], leaf_spine(2, 2, 2))
    with pytest.raises(NetworkError, match=said):
        read(replace(routes, **changes))


@pytest.mark.parametrize("read", [send, transfers_of])
def test_sprayed_packets_without_a_path_are_refused(read: Callable[[Routes], object]) -> None:
    fabric = leaf_spine(2, 1, 1)
    routes = route([(0, 1, 10)], fabric, "spray")
    with pytest.raises(NetworkError, match="0 and 1 have none"):
        read(replace(routes, fabric=fabric.without("spine0")))
