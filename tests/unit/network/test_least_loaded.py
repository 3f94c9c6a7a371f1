"""Each piece takes the least loaded path: the kernel, its twin, and the schemes that use them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from demands import FABRICS, SIZE, groups, permutation, unequal
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import NetworkError
from gradwire.network import Fabric, Flows, Link, leaf_spine, route
from gradwire.network.least_loaded import least_loaded, least_loaded_twin
from gradwire.network.native import core

NATIVE = pytest.mark.skipif(core() is None, reason="needs the extension")


@NATIVE
@given(
    st.sampled_from(FABRICS), st.integers(1, 60), st.integers(0, 2**64 - 1), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_the_twin_chooses_the_same_paths(
    fabric: Fabric, number: int, seed: int, local: bool, broken: bool
) -> None:
    dice = np.random.default_rng(seed)
    if broken:
        names = [fabric.links[0].target, Link("leaf1", fabric.links[1].target)]
        fabric = fabric.without(names[1]) if len(fabric.uplinks) < 3 else fabric.without(*names)
    source = dice.integers(0, fabric.leaves, number)
    target = (source + dice.integers(1, fabric.leaves, number)) % fabric.leaves
    amount = dice.integers(1, 5, number) * 1000
    loads = [np.zeros(len(fabric.rates)) for _ in range(2)]
    one = least_loaded(fabric, source, target, amount, seed, loads[0], local)
    other = least_loaded_twin(fabric, source, target, amount, seed, loads[1], local)
    assert one.tolist() == other.tolist()
    assert loads[0].tolist() == loads[1].tolist()


def test_each_piece_goes_where_it_is_done_first() -> None:
    """Loads before it: 3, 0 and 5 bytes on the uplinks, 0, 4 and 0 on the downlinks."""
    fabric = leaf_spine(2, 1, 3)
    load = np.array([3.0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 4, 0])
    ends = np.array([0]), np.array([1])
    assert least_loaded(fabric, *ends, np.array([2]), 0, load.copy()).tolist() == [0]
    assert least_loaded(fabric, *ends, np.array([2]), 0, load.copy(), True).tolist() == [1]
    assert load.sum() == 12


def test_a_slow_link_gets_less() -> None:
    fabric = leaf_spine(2, 1, 2).with_rates({Link("leaf0", "spine1"): 25 * 10**9})
    ends = np.zeros(10, np.int64), np.ones(10, np.int64)
    path = least_loaded(fabric, *ends, np.full(10, 100), 4)
    assert np.bincount(path).tolist() == [8, 2]


@pytest.mark.parametrize("fabric", FABRICS)
def test_longest_first_is_near_the_best(fabric: Fabric) -> None:
    """No link has more than twice its share plus the largest flow."""
    for flows in (unequal(permutation(fabric, 2), 1), unequal(groups(fabric, 4, 3), 2)):
        whole, ideal = (route(flows, fabric, scheme) for scheme in ("lpt", "spray"))
        assert whole.splits == 0
        assert whole.max_load <= 2 * ideal.max_load + int(flows.bytes.max())


def test_one_large_and_many_small_flows_are_packed() -> None:
    fabric = leaf_spine(2, 5, 2)
    routes = route(Flows(range(5), range(5, 10), [400, 100, 100, 100, 100]), fabric, "lpt")
    assert routes.max_load == 400


def test_leaves_see_their_own_links_only() -> None:
    """Every leaf balances only what it sends, so collisions happen on the way down."""
    fabric = leaf_spine(16, 16, 16)
    routes = route(permutation(fabric, 1), fabric, "adaptive", 5)
    low = fabric.leaves * len(fabric.uplinks)
    assert routes.loads.amount[:low].max() == SIZE
    assert routes.loads.amount[low:].max() > 2 * SIZE


def test_flowlets_are_placed_one_by_one() -> None:
    fabric = leaf_spine(8, 8, 8)
    flows = permutation(fabric, 3)
    coarse, fine = (route(flows, fabric, f"adaptive({n})") for n in (1, 64))
    assert fine.max_load <= 0.6 * coarse.max_load
    assert fine.max_load <= 1.25 * route(flows, fabric, "spray").max_load


@pytest.mark.parametrize(
    ("source", "load", "said"),
    [
        ([2], None, "leaves of pieces must be whole numbers from 0 to 1; number 0 is 2"),
        ([-1], None, "number 0 is -1"),
        ([0, 0], None, "got 2 of source, 1 of target"),
        ([0], np.zeros(3), "one for each of 8 links; got float64"),
        ([0], np.zeros(8, np.float32), "got float32"),
        ([0], np.zeros(16)[::2], "load must be a row of float64"),
    ],
)
def test_pieces_of_another_topology_are_refused(source: Any, load: Any, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        least_loaded(leaf_spine(2, 2, 2), source, [1], [10], 0, load)


def test_pods_without_cores_have_no_paths() -> None:
    """An importer may make such a fabric from two separate networks."""
    apart = replace(leaf_spine(2, 2, 2), pod_of=np.array([0, 1]))
    with pytest.raises(NetworkError, match="of 1 pieces some have none"):
        least_loaded(apart, [0], [1], [10], 0)
    with pytest.raises(NetworkError, match="0 and 2 have none"):
        route([(0, 2, 10)], apart)
