"""Whatever failed, every scheme uses links that work; only a disconnected pair is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from gradwire.errors import NetworkError
from gradwire.extension import VARIABLE
from gradwire.families import ROUTING
from gradwire.network import (
    Fabric,
    Flows,
    Link,
    dual_plane,
    fat_tree,
    leaf_spine,
    rail_optimized,
    route,
)
from gradwire.network.fabric import BELOW, NO_LINK
from gradwire.network.native import core

TINY = {
    "leaves": leaf_spine(2, 2, 2), "cables": leaf_spine(2, 1, 1, parallel=2),
    "rails": rail_optimized(1, 1, 2, 2), "planes": dual_plane(2, 1, 1),
    "spines of planes": dual_plane(2, 1, 2), "switches of pods": fat_tree(2, 2, 1, 2, 1),
    "cores": fat_tree(2, 1, 1, 2, 2),
}  # fmt: skip
WITH = {"ecmp_k": "(3)", "mp_rdma": "(2)", "reps": "(4)"}
TEXTS = [
    *(name + WITH.get(name, "") for name in ROUTING), "ecmp(polarized=True)",
    "spray(order='random')", "wrap(least=100)", "ethereal(whole_bytes=True)",
]  # fmt: skip
COLOURED = ("coloured", "min_split")
CORES = [
    pytest.param(None, marks=pytest.mark.skipif(core() is None, reason="no extension")),
    "twin",
]


def failures(fabric: Fabric) -> Iterator[tuple[Link | str, ...]]:
    """Yields failures: one switch or two; some links or pairs of links, in one direction."""
    switches = sorted({name for link in fabric.links for name in link[:2] if "leaf" not in name})
    for many in (1, 2):
        yield from combinations(switches, many)
        pairs = list(combinations(fabric.links, many))
        yield from random.Random(many).sample(pairs, min(4, len(pairs)))


def everybody(fabric: Fabric) -> Flows:
    pairs = [(a, b) for a in range(fabric.hosts) for b in range(fabric.hosts) if a != b]
    return Flows(*zip(*pairs), 1000)


def cut_pairs(fabric: Fabric) -> set[tuple[int, int]]:
    """Pairs of hosts without a working path, found link by link from their names."""
    works = {link for link, rate in zip(fabric.links, fabric.rates.tolist()) if rate}
    leaf, pod = fabric.leaf_of.tolist(), fabric.pod_of.tolist()

    def reaches(a: int, b: int) -> bool:
        for name, cable in fabric.uplinks:
            up, down = (name if fabric.pods == 1 else f"pod{pod[x]}.{name}" for x in (a, b))
            if Link(f"leaf{a}", up, cable) in works and Link(down, f"leaf{b}", cable) in works:
                tops = {link.target for link in works if link.source == up}
                if up == down or tops & {link.source for link in works if link.target == down}:
                    return True
        return False

    hosts = range(fabric.hosts)
    apart = [(a, b) for a in hosts for b in hosts if leaf[a] != leaf[b]]
    return {(a, b) for a, b in apart if not reaches(leaf[a], leaf[b])}


def check(fabric: Fabric, flows: Flows, scheme: str) -> None:
    """Checks that every flow is routed whole, over links that work."""
    routes = route(flows, fabric, scheme)
    sums = np.zeros(len(flows), np.int64)
    np.add.at(sums, routes.flow, routes.amount)
    assert (sums == flows.bytes * routes.unit).all()
    source, target = (fabric.leaf_of[end[routes.flow]] for end in (flows.src, flows.dst))
    assert ((routes.path == BELOW) == (source == target)).all()
    pinned = routes.path >= 0
    hops = fabric.hops(source[pinned], target[pinned], routes.path[pinned])
    assert (fabric.rates[hops[hops != NO_LINK]] > 0).all()
    assert 0 < routes.seconds < np.inf


@pytest.mark.parametrize("twin", CORES)
@pytest.mark.parametrize("name", TINY)
def test_only_a_cut_pair_is_refused(
    name: str, twin: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every scheme refuses such a pair, naming it. Two failures at once where colours decide."""
    if twin:
        monkeypatch.setenv(VARIABLE, twin)
    fabric = TINY[name]
    flows = everybody(fabric)
    for failed in failures(fabric):
        state = fabric.without(*failed)
        cut = cut_pairs(state)
        for scheme in TEXTS if len(failed) == 1 and not twin else COLOURED:
            if not cut:
                check(state, flows, scheme)
                continue
            a, b = min(cut)
            said = f"{a} and {b} have none, and {len(cut)} of {len(flows)} flows are so"
            with pytest.raises(NetworkError, match=said):
                route(flows, state, scheme)


@pytest.mark.parametrize(
    ("fabric", "failed", "most"),
    [
        (dual_plane(4, 2, 2), ["plane0.spine0", "plane0.spine1"], 1000),
        (fat_tree(2, 2, 2, 2, 2), ["core0", "core1"], 2000),
    ],
)
def test_what_is_left_is_shared_evenly(fabric: Fabric, failed: list[str], most: int) -> None:
    """A dead plane, and uplinks that lead to no core, get no flows that others would have to take
    over; inside their pod these uplinks are used."""
    state, hosts = fabric.without(*failed), np.arange(8)
    for scheme in COLOURED:
        assert route(Flows(hosts, (hosts + 4) % 8, 1000), state, scheme).max_load == most
        assert route(Flows(hosts, hosts ^ 2, 1000), state, scheme).max_load == 1000


def test_a_spine_that_is_left_to_one_leaf_leads_nowhere() -> None:
    fabric = leaf_spine(4, 8, 4)
    ends = [link for link in fabric.links if "spine3" in link and "leaf0" not in link]
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(32)
        flows = Flows(order, np.roll(order, 1), 1000)
        for scheme in COLOURED:
            least = route(flows, fabric.without("spine3"), scheme).max_load
            assert route(flows, fabric.without(*ends), scheme).max_load == least
