"""The optimal shares: a bound for any routing, and a plan that reaches it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from demands import FABRICS, SIZE, demands, permutation, unequal

from gradwire.errors import NetworkError
from gradwire.network import Fabric, Flows, Link, bounds, dual_plane, fat_tree, leaf_spine, route
from gradwire.network.optimum import best_shares


def optimum(flows: Flows | list[tuple[int, ...]], topology: Fabric) -> float:
    """The least seconds that links between switches need, one step after the other."""
    given, leaf = Flows.of(flows), topology.leaf_of
    given = given[leaf[given.src] != leaf[given.dst]]
    return sum(
        len(steps) * best_shares(given[steps[0]], topology).seconds for steps in given.steps()
    )


@pytest.mark.parametrize("fabric", FABRICS)
def test_where_links_are_alike_it_is_the_bound(fabric: Fabric) -> None:
    for flows in demands(fabric):
        own = unequal(flows, 2)
        assert optimum(own, fabric) == pytest.approx(bounds(own, fabric).fabric_seconds)


@pytest.mark.parametrize("fabric", FABRICS)
def test_around_failures_nothing_is_faster(fabric: Fabric) -> None:
    broken = fabric.without(Link("leaf0", fabric.links[0].target)).with_rates({
        fabric.links[-1]: 40 * 10**9
    })  # fmt: skip
    for flows in demands(fabric):
        own = unequal(flows, 4)
        best = optimum(own, broken)
        routes = route(own, broken, "optimal", 1)
        assert routes.fabric_seconds == pytest.approx(best, rel=1e-4)
        assert (1 << 20) % routes.unit == 0, "parts are whole numbers of one size"
        for scheme in ("wrap", "lpt", "ecmp", "adaptive"):
            assert route(own, broken, scheme, 1).fabric_seconds >= best * (1 - 1e-9)
        assert bounds(own, broken).fabric_seconds <= best * (1 + 1e-9)


def test_ports_of_hosts_are_not_in_the_program() -> None:
    """As docs/design/network.md says: equal parts on both ports would be faster for the hosts."""
    fabric = dual_plane(2, 2, 1, fabric_gbps=400)
    slower = fabric.with_rates({fabric.links[0]: 200 * 10**9})
    best, even = (route([(0, 3, 10**6)], slower, scheme) for scheme in ("optimal", "min_split"))
    assert best.fabric_seconds < even.fabric_seconds
    assert best.seconds / even.seconds == pytest.approx(4 / 3, rel=1e-4)


@pytest.mark.parametrize("slow", [7, 10**7])
def test_a_slow_link_does_not_matter(slow: int) -> None:
    """A link that is as good as failed costs hardly more than one that failed: neither the
    program nor the rounding of shares leaves more on it than it carries in that time."""
    fabric = leaf_spine(2, 3, 2)
    link, flows = Link("spine1", "leaf0"), [(1, 3, 10**6), (5, 0, 10**6), (0, 4, 10**6)]
    worse = optimum(flows, fabric.without(link))
    routes = route(flows, fabric.with_rates({link: slow}), "optimal")
    assert routes.fabric_seconds <= worse * (1 + 1e-5)


def test_odd_shares_are_rounded_to_the_next_part() -> None:
    """A million parts for 192 equal paths: some carry one part more, none carries the rest."""
    fabric = leaf_spine(2, 1, 192)
    routes = route([(0, 1, 192 * 10**6)], fabric, "optimal")
    assert routes.fabric_seconds == pytest.approx(8e-5, rel=1 / 5000)


def test_classes_of_links_change_nothing() -> None:
    """Rates that all differ a little give every path its own variable, and the same optimum."""
    fabric = leaf_spine(4, 4, 4).without(Link("leaf2", "spine1"))
    nearly = fabric.with_rates({
        link: fabric.rates[i] + i for i, link in enumerate(fabric.links) if fabric.rates[i]
    })  # fmt: skip
    flows = unequal(permutation(fabric, 8), 1)
    assert len(np.unique(nearly.up, axis=1).T) == 4
    assert optimum(flows, nearly) == pytest.approx(optimum(flows, fabric), rel=1e-6)


def test_parts_of_each_pair_are_one_together_over_paths_that_work() -> None:
    fabric = fat_tree(3, 2, 3, 2, 2).without("core0", Link("leaf1", "pod0.switch1"))
    shares = best_shares(Flows(np.arange(9), np.arange(9) + 9, SIZE), fabric)
    assert shares.part.sum(1) == pytest.approx(np.ones(len(shares.source)))
    far = fabric.pod_of[shares.source] != fabric.pod_of[shares.target]
    works = fabric.path_rates(shares.source[far], shares.target[far]) > 0
    assert (shares.part[far][~works] == 0).all()


def test_steps_add_up() -> None:
    fabric = leaf_spine(2, 2, 2)
    one, both = Flows([0], [2], SIZE), Flows([0, 1], [2, 3], SIZE, [0, 1])
    assert optimum(both, fabric) == pytest.approx(2 * optimum(one, fabric))


def test_a_removed_link_never_makes_it_faster() -> None:
    fabric = leaf_spine(4, 3, 3)
    flows = unequal(permutation(fabric, 3), 3)
    before = optimum(flows, fabric)
    for link in fabric.links:
        assert optimum(flows, fabric.without(link)) >= before * (1 - 1e-9)


def test_where_no_path_works_there_is_no_optimum() -> None:
    fabric = leaf_spine(2, 1, 1).without("spine0")
    with pytest.raises(NetworkError, match="need a path that works"):
        optimum([(0, 1, 1)], fabric)


def test_without_scipy_the_error_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(NetworkError, match=r"Run .pip install scipy"):
        optimum([(0, 2, 1)], leaf_spine(2, 2, 2))
