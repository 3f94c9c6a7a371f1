"""Loads under hashing: samples, and the exact distribution, which is kept with the benchmarks."""

from __future__ import annotations

import itertools
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from demands import SIZE, permutation

from gradwire.errors import NetworkError
from gradwire.network import Flows, Link, bounds, dual_plane, fat_tree, leaf_spine, route
from gradwire.network.dice import draws, pick
from gradwire.network.samples import samples

DISTRIBUTION = Path(__file__).parents[3] / "benchmarks" / "network" / "distribution.py"
_exact = runpy.run_path(str(DISTRIBUTION))
at_most, fullest_by_hash = _exact["at_most"], _exact["fullest_by_hash"]


def test_draws_are_spread_evenly_and_differ_by_seed() -> None:
    drawn = draws(3, 60_000)
    counts = np.bincount(pick(drawn, 6))
    assert np.abs(counts - 10_000).max() < 5 * math.sqrt(10_000)
    assert len(np.unique(drawn)) > 59_990
    assert (drawn != draws(4, 60_000)).mean() > 0.999
    assert draws(-1, 2).tolist() == draws(2**64 - 1, 2).tolist()


@pytest.mark.parametrize("scheme", ["ecmp", "ecmp_k(4)", "mp_rdma(2)", "ecmp(True)", "adaptive"])
@pytest.mark.parametrize("broken", [False, True])
def test_samples_are_what_routes_with_these_seeds_take(scheme: str, broken: bool) -> None:
    for fabric in (leaf_spine(4, 4, 4), fat_tree(2, 2, 4, 2, 3)):
        if broken:
            fabric = fabric.without(Link("leaf0", fabric.links[0].target))
        flows = permutation(fabric, 1)
        found = samples(flows, fabric, scheme, 5, seed=11)
        assert found == pytest.approx([
            route(flows, fabric, scheme, 11 + i).fabric_seconds for i in range(5)
        ])  # fmt: skip


def test_samples_of_steps_add_up() -> None:
    fabric = leaf_spine(2, 4, 4)
    flows = Flows([0, 1, 0, 1], [4, 5, 5, 4], SIZE, [0, 0, 1, 1])
    found = samples(flows, fabric, "ecmp", 20, 3)
    assert found[4] == pytest.approx(route(flows, fabric, "ecmp", 7).fabric_seconds)


@pytest.mark.parametrize("scheme", ["ecmp", "ecmp_k(3)", "adaptive"])
@pytest.mark.parametrize("broken", [False, True])
def test_the_busiest_port_of_a_host_counts(scheme: str, broken: bool) -> None:
    """One flow takes one of two ports, though both together are twice as fast."""
    fabric = dual_plane(2, 2, 2, fabric_gbps=400)
    if broken:
        fabric = fabric.without(Link("leaf0", "plane0.spine1"))
    flows = Flows([0, 1, 0, 0, 1], [2, 3, 1, 1, 2], SIZE, [0, 0, 1, 2, 2])
    found = samples(flows, fabric, scheme, 9, 3, hosts=True)
    routes = [route(flows, fabric, scheme, 3 + i) for i in range(9)]
    assert found == pytest.approx([own.seconds for own in routes])
    assert max(found) > bounds(flows, fabric).host_seconds * 1.1


def test_the_chance_of_the_fullest_bin_is_exact() -> None:
    for balls, bins in ((1, 3), (4, 3), (6, 2), (7, 4), (5, 1)):
        fullest = [
            max(throw.count(b) for b in range(bins))
            for throw in itertools.product(range(bins), repeat=balls)
        ]
        for k in range(balls + 1):
            share = sum(m <= k for m in fullest) / len(fullest)
            assert at_most(balls, bins, k) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize(
    ("flows", "spines", "leaves", "median", "p95"),
    [
        (16, 16, 16, 5, 6), (16, 8, 16, 6, 8), (16, 12, 16, 5, 7), (12, 5, 8, 6, 7),
        (64, 64, 512, 7, 8), (105, 16, 16, 15, 17),
    ],
)  # fmt: skip
def test_the_published_table_comes_out(
    flows: int, spines: int, leaves: int, median: int, p95: int
) -> None:
    fabric = leaf_spine(leaves, flows, spines)
    hosts = np.arange(fabric.hosts)
    found = fullest_by_hash(Flows(hosts, (hosts + flows) % fabric.hosts, SIZE), fabric)
    assert (found.quantile(0.5), found.quantile(0.95)) == (median, p95)


def test_samples_have_that_distribution() -> None:
    fabric = leaf_spine(16, 16, 16)
    leaf, place = np.divmod(np.arange(256), 16)
    flows = Flows(np.arange(256), (leaf + 1 + place % 15) % 16 * 16 + place, SIZE)
    exact = fullest_by_hash(flows, fabric).cdf
    drawn = samples(flows, fabric, "ecmp", 4000, 1) * 100e9 / 8 / SIZE
    for k in range(4, len(exact)):
        share = float((drawn <= k + 0.5).mean())
        spread = math.sqrt(max(exact[k] * (1 - exact[k]), 1e-4) / 4000)
        assert abs(share - exact[k]) < 4 * spread + 0.02, "leaves are nearly independent"


def test_no_sample_is_below_the_whole_flows_bound() -> None:
    fabric = leaf_spine(4, 8, 3)
    flows = permutation(fabric, 2)
    best = route(flows, fabric, "coloured").fabric_seconds
    assert samples(flows, fabric, "ecmp", 300, 0).min() >= best


def test_what_the_distribution_is_not_of_is_refused() -> None:
    flows = Flows([0], [3], 1)
    for fabric in (fat_tree(2, 2, 1, 2, 2), leaf_spine(2, 2, 2).without(Link("leaf0", "spine0"))):
        with pytest.raises(
            NetworkError, match=r"two tiers with links of one rate.*Use samples\(\)"
        ):
            fullest_by_hash(flows, fabric)
    assert fullest_by_hash([], leaf_spine(2, 2, 2)).quantile(0.95) == 0


def test_one_hash_for_two_tiers_leaves_cores_idle() -> None:
    fabric = fat_tree(4, 2, 16, 4, 4)
    flows = permutation(fabric, 6)
    free, same = (route(flows, fabric, f"ecmp({p})", 1) for p in (False, True))
    low = 2 * fabric.leaves * 4
    used = [int((r.loads.amount[low:] > 0).sum()) for r in (free, same)]
    assert used[1] <= used[0] / 2
    assert (
        samples(flows, fabric, "ecmp(True)", 20).mean() > samples(flows, fabric, "ecmp", 20).mean()
    )


def test_samples_of_more_bytes_than_64_bits_add_up_to() -> None:
    fabric = leaf_spine(2, 2, 1)
    flows = Flows([0, 1], [2, 3], [(1 << 63) - 1] * 2)
    assert samples(flows, fabric, "ecmp", 2) == pytest.approx([8 * 2.0**64 / 100e9] * 2)


@pytest.mark.parametrize("scheme", ["ecmp_k(65537)", "reps(65537)", "adaptive(65537)"])
def test_a_flow_has_no_more_parts_than_there_are_ports(scheme: str) -> None:
    with pytest.raises(NetworkError, match="at most 65536; got 65537"):
        route([(0, 4, 1)], leaf_spine(2, 4, 2), scheme)
