"""Flows of any sizes, cut where paths' shares end: the same load on each link as by spraying."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from demands import FABRICS, demands, unequal
from hypothesis import given
from hypothesis import strategies as st

from gradwire.network import Fabric, Flows, Link, leaf_spine, route
from gradwire.network.routing.wrap import wrapped


@pytest.mark.parametrize("fabric", FABRICS)
def test_every_link_has_what_spraying_gives_it(fabric: Fabric) -> None:
    slow = fabric.with_rates({fabric.links[1]: 30 * 10**9, fabric.links[-1]: 70 * 10**9})
    broken = fabric.without(Link("leaf0", fabric.links[0].target))
    for network in (fabric, slow, broken):
        for flows in demands(fabric):
            own = unequal(flows, 5)
            routes = route(own, network, "wrap", 2)
            assert routes.link_bytes() == route(own, network, "spray").link_bytes()


@pytest.mark.parametrize("fabric", [f for f in FABRICS if not f.cores])
def test_a_pair_of_leaves_is_cut_once_less_than_it_has_paths(fabric: Fabric) -> None:
    for flows in demands(fabric):
        own = unequal(flows, 3)
        routes = route(own, fabric, "wrap")
        ends = fabric.leaf_of[own.src], fabric.leaf_of[own.dst]
        far = ends[0] != ends[1]
        pairs = len({*zip(ends[0][far].tolist(), ends[1][far].tolist())})
        assert routes.pieces <= far.sum() + pairs * (len(fabric.uplinks) - 1)


LINES = st.lists(st.lists(st.integers(1, 10_000), min_size=1, max_size=8), min_size=1, max_size=5)


@given(LINES, st.integers(0, 1000), st.sampled_from([0, 0, 1, 100, 3000]))
def test_things_on_lines_are_cut_where_shares_end(
    lines: list[list[int]], seed: int, least: int
) -> None:
    dice = np.random.default_rng(seed)
    line = np.repeat(np.arange(len(lines)), [len(own) for own in lines])
    sizes = np.concatenate([np.array(own) for own in lines])
    order = dice.permutation(len(line))
    line, sizes = line[order], sizes[order]
    shares = dice.integers(0, 5, (len(lines), 4))
    shares[:, 2] += 1
    cut = wrapped(line, sizes, shares, dice.integers(0, 4, len(lines)), least)
    parts = [Fraction(n, cut.unit) for n in cut.part.tolist()]
    assert min(parts) > 0
    whole = [Fraction(0)] * len(sizes)
    on_path = np.full(shares.shape, Fraction(0), object)
    for one, path, part in zip(cut.edge.tolist(), cut.way.tolist(), parts):
        whole[one] += part
        on_path[line[one], path] += part
        assert part >= least or part == sizes[one]
    assert whole == sizes.tolist()
    for own, weights, there in zip(range(len(lines)), shares.tolist(), on_path.tolist()):
        for weight, amount in zip(weights, there):
            fair = Fraction(int(sum(lines[own])) * weight, sum(weights))
            assert abs(amount - fair) <= 2 * least
    if not least:
        assert len(parts) <= len(sizes) + 3 * len(lines)


def test_sizes_beyond_64_bits_are_exact() -> None:
    cut = wrapped(
        np.zeros(2, np.int64), np.array([2**61, 2**61 + 1]), np.array([[1, 1, 5]]), np.array([1])
    )
    totals = [sum(int(a) for a, p in zip(cut.part, cut.way) if p == j) for j in range(3)]
    assert [Fraction(t, cut.unit) for t in totals] == [
        Fraction((2**62 + 1) * w, 7) for w in (1, 1, 5)
    ]


def test_small_pieces_are_not_cut_off() -> None:
    flows = Flows([0, 1], [2, 3], 1000)
    fabric = leaf_spine(2, 2, 16)
    assert min(p.bytes for p in route(flows, fabric, "wrap").assignments) == Fraction(125)
    assert min(p.bytes for p in route(flows, fabric, "wrap(400)").assignments) >= 400
