"""Fabrics: their links, their paths, and failures."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gradwire.errors import NetworkError
from gradwire.network.builders import dual_plane, fat_tree, leaf_spine, rail_optimized
from gradwire.network.fabric import NO_LINK, Fabric, Link


def walk(fabric: Fabric, source: int, target: int, path: int) -> list[Link]:
    hops = fabric.hops(np.array([source]), np.array([target]), np.array([path]))[0]
    order = hops[[0, 2, 3, 1]]  # up, to the core, from the core, down
    return [fabric.links[i] for i in order if i != NO_LINK]


def test_hosts_are_numbered_leaf_by_leaf() -> None:
    assert leaf_spine(3, 2, 4).leaf_of.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "fabric", [leaf_spine(3, 2, 4), leaf_spine(2, 2, 2, parallel=3), fat_tree(3, 2, 2, 2, 3)]
)
def test_every_path_is_a_walk_from_leaf_to_leaf(fabric: Fabric) -> None:
    assert len(set(fabric.links)) == len(fabric.links) == len(fabric.rates)
    for a in range(fabric.leaves):
        for b in set(range(fabric.leaves)) - {a}:
            far = fabric.pod_of[a] != fabric.pod_of[b]
            paths = len(fabric.uplinks) * (fabric.cores if far else 1)
            walks = [walk(fabric, a, b, path) for path in range(paths)]
            assert len({tuple(w) for w in walks}) == paths
            for links in walks:
                assert len(links) == (4 if far else 2)
                assert links[0].source == f"leaf{a}"
                assert links[-1].target == f"leaf{b}"
                assert all(x.target == y.source for x, y in pairwise(links))


def test_links_of_a_leaf_spine_by_name() -> None:
    assert leaf_spine(1, 1, 2, parallel=2).links == (
        Link("leaf0", "spine0", 0), Link("leaf0", "spine0", 1),
        Link("leaf0", "spine1", 0), Link("leaf0", "spine1", 1),
        Link("spine0", "leaf0", 0), Link("spine0", "leaf0", 1),
        Link("spine1", "leaf0", 0), Link("spine1", "leaf0", 1),
    )  # fmt: skip


def test_a_core_has_a_link_to_the_same_switch_of_every_pod() -> None:
    fabric = fat_tree(2, 1, 1, 2, 2)
    assert Link("pod0.switch1", "core2") in fabric.links
    assert Link("core3", "pod1.switch1") in fabric.links
    assert walk(fabric, 0, 1, 3) == [
        Link("leaf0", "pod0.switch1"), Link("pod0.switch1", "core3"),
        Link("core3", "pod1.switch1"), Link("pod1.switch1", "leaf1"),
    ]  # fmt: skip


def test_rates_of_tiers() -> None:
    fabric = fat_tree(2, 2, 4, 2, 2, host_gbps=100, fabric_gbps=200, core_gbps=400)
    assert set(fabric.up.ravel()) == set(fabric.down.ravel()) == {200 * 10**9}
    assert set(fabric.core_up.ravel()) == set(fabric.core_down.ravel()) == {400 * 10**9}
    assert set(fabric.host_up.ravel()) == {100 * 10**9}


def test_oversubscription_decides_the_rate_of_uplinks() -> None:
    fabric = leaf_spine(2, 8, 4, host_gbps=100, parallel=2, oversubscription=2)
    assert fabric.up.sum(1).tolist() == [8 * 100 * 10**9 // 2] * 2


def test_what_failed_has_no_rate_and_is_on_no_usable_path() -> None:
    fabric = leaf_spine(2, 2, 3).without(Link("leaf0", "spine1"))
    rates = fabric.path_rates(np.array([0, 1]), np.array([1, 0]))
    assert (rates > 0).tolist() == [[True, False, True], [True, True, True]]
    spine = leaf_spine(2, 2, 3).without("spine2")
    assert spine.usable_paths(np.array([0, 1, 0]), np.array([1, 0, 1])).tolist() == [2, 2, 2]


def test_a_core_that_failed_leaves_the_other_paths_between_pods() -> None:
    fabric = fat_tree(2, 2, 2, 2, 3).without("core4")
    assert fabric.usable_paths(np.array([0, 0]), np.array([1, 2])).tolist() == [2, 5]


def test_other_rates_of_some_links() -> None:
    slow = Link("spine0", "leaf1")
    fabric = leaf_spine(2, 1, 2).with_rates({slow: 5})
    assert fabric.path_rates(np.array([0]), np.array([1])).tolist() == [[5, 100 * 10**9]]
    assert leaf_spine(2, 1, 2).rates.min() == 100 * 10**9, "the other is as it was"


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (lambda: leaf_spine(0, 2, 2), "leaves is a whole number of at least 1; got 0"),
        (lambda: leaf_spine(2, 2.5, 2), "hosts is a whole number of at least 1; got 2.5"),
        (lambda: leaf_spine(2, 2, 2, host_gbps=0), "host_gbps must be above 0 and finite.* got 0"),
        (lambda: leaf_spine(2, 2, 2, fabric_gbps=-1), "fabric_gbps must be above 0.* got -1"),
        (lambda: leaf_spine(2, 2, 2, oversubscription=0), "oversubscription must be above 0"),
        (
            lambda: leaf_spine(2, 2, 2, fabric_gbps=1, oversubscription=2),
            "fabric_gbps or oversubscription",
        ),
        (lambda: fat_tree(2, 2, 2, 2, 0), "cores is a whole number of at least 1; got 0"),
        (lambda: leaf_spine(2, 2, 2).without("spine7"), "got 'spine7'. Name an existing one"),
        (lambda: leaf_spine(2, 2, 2).without(Link("a", "b")), "a link or a switch"),
        (lambda: leaf_spine(2, 2, 2).with_rates({Link("a", "b"): 1}), "must be one of the"),
        (lambda: leaf_spine(2, 2, 2).with_rates({Link("leaf0", "spine1"): 10**30}), "up to 1e.18"),
        (
            lambda: leaf_spine(2, 2, 2).with_rates({Link("leaf0", "spine1"): float("nan")}),
            "must be a whole number of bits per second, .* with nan",
        ),
    ],
)
def test_what_no_fabric_can_be(build: Any, rule: str) -> None:
    with pytest.raises(NetworkError, match=rule):
        build()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"leaf_of": np.array([0, 0, 1, 2])}, "leaf_of of a fabric .* 0 to 1; number 3 is 2"),
        ({"leaf_of": np.array([0, 0, 1])}, "got 3 of leaf_of, 4 of host_up"),
        ({"pod_of": np.array([0, -1])}, "pod_of of a fabric .* number 1 is -1"),
        ({"pod_of": np.zeros(0, np.int64)}, "leaves is a whole number of at least 1"),
        ({"pod_of": np.array([0, 1]), "cores": 2}, "there are 24 links and 8 rates"),
        ({"plane_of": np.array([0, 10**9])}, "plane_of of a fabric .* 0 to 0; number 1 is 1000"),
        ({"plane_of": np.array([0])}, "got 2 of uplinks, 1 of plane_of"),
        ({"cores": -1}, "cores is a whole number of at least 0; got -1"),
        ({"rates": np.full(8, -1)}, "rates of a fabric .* number 0 is -1"),
        ({"rates": np.full(8, np.nan)}, "rates of a fabric must be one row .*; got float64"),
        ({"rates": np.ones(7, np.int64)}, "there are 8 links and 7 rates"),
        ({"host_up": np.ones((4, 2), np.int64)}, "the same up as down; got shapes"),
    ],
)
def test_columns_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        replace(leaf_spine(2, 2, 2), **changes)


@pytest.mark.parametrize("leaves", [9, 1 << 16])
def test_pairs_are_counted_once_in_order(leaves: int) -> None:
    """Pairs are found without memory of the order of the squared number of leaves."""
    source, target = np.array([7, 0, 7, 3, 0]), np.array([1, 8, 1, 2, 2])
    (a, b), which = leaf_spine(leaves, 1, 1).pairs(source, target)
    assert (a.tolist(), b.tolist()) == ([0, 0, 3, 7], [2, 8, 2, 1])
    assert which.tolist() == [3, 1, 3, 2, 0]


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: leaf_spine(1 << 28, 1, 1), "links of a fabric"),
        (lambda: leaf_spine(1 << 12, 1, 1 << 20), "links of a fabric"),
        (lambda: leaf_spine(2, 1, 1, parallel=1 << 24), "uplinks of a leaf"),
        (lambda: leaf_spine(2, 1, 1 << 64), "spines"),
        (lambda: leaf_spine(2, 1 << 1100, 2, oversubscription=2), "hosts"),
        (lambda: fat_tree(1 << 64, 1, 1, 1, 1), "pods"),
        (lambda: dual_plane(2, 2, 2, planes=1 << 1100), "planes"),
        (lambda: rail_optimized(1, 1 << 64, 1, 1), "machines"),
    ],
)
def test_a_fabric_has_so_many_links_at_most(build: Any, what: str) -> None:
    """The error comes before anything of that size is made."""
    with pytest.raises(NetworkError, match=f"^{what} is a whole number of at most"):
        build()
