"""Patterns: every rank ends with its result, and sends no more than needed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import NetworkError
from gradwire.network import Flows, leaf_spine, route
from gradwire.network.patterns import (
    MEMBERS,
    all_to_all,
    direct,
    double_tree,
    gather,
    halving_doubling,
    pairwise,
    ring,
    ring_gather,
    ring_scatter,
    scatter,
)
from gradwire.network.placement import Placement

Pattern = Callable[[int, int], Flows]
RANKS, BYTES = st.integers(1, 20), st.integers(1, 5000)


def sent(flows: Flows, ranks: int) -> list[int]:
    return np.bincount(flows.src, flows.bytes, ranks).astype(int).tolist()


def received(flows: Flows, ranks: int) -> list[int]:
    return np.bincount(flows.dst, flows.bytes, ranks).astype(int).tolist()


@given(st.sampled_from(MEMBERS), RANKS, BYTES)
def test_flows_are_between_ranks(pattern: Pattern, ranks: int, bytes: int) -> None:
    flows = pattern(ranks, bytes)
    assert len(flows) == 0 or max(flows.src.max(), flows.dst.max()) < ranks
    assert (ranks > 1) == (len(flows) > 0) or bytes < ranks


@given(RANKS, BYTES)
def test_a_ring_hands_every_part_round_twice(ranks: int, bytes: int) -> None:
    flows = ring(ranks, bytes)
    assert set(((flows.dst - flows.src) % ranks).tolist()) <= {1}
    assert sum(sent(flows, ranks)) == 2 * (ranks - 1) * bytes
    halves = [ring_scatter(ranks, bytes), flows[flows.step >= ranks - 1]]
    assert sorted(halves[0].bytes.tolist()) == sorted(halves[1].bytes.tolist())
    assert received(ring_gather(ranks, bytes), ranks) == [(ranks - 1) * bytes] * ranks


@given(RANKS, BYTES)
def test_in_halving_and_doubling_each_part_has_one_keeper(ranks: int, bytes: int) -> None:
    """Follows parts through the steps: which a rank has, and the sum of how many ranks it is."""
    flows, power = halving_doubling(ranks, bytes), 1 << (ranks.bit_length() - 1)
    per_rank = sent(flows, ranks)
    extra = [bytes if r + power < ranks else 0 for r in range(power)]
    assert sum(per_rank) == 2 * (power - 1) * bytes + 2 * (ranks - power) * bytes
    if bytes % power == 0:
        share = 2 * bytes * (power - 1) // power
        assert per_rank[:power] == [share + more for more in extra]
    partners = {
        (a ^ b) for a, b in zip(flows.src.tolist(), flows.dst.tolist()) if max(a, b) < power
    }
    assert all(distance & (distance - 1) == 0 for distance in partners)
    for step in np.unique(flows.step):
        own = flows[flows.step == step]
        assert len(set(own.dst.tolist())) == len(own), "one message to a rank in each step"


@given(RANKS, BYTES)
def test_two_trees_span_all_ranks_and_no_rank_is_inner_in_both(ranks: int, bytes: int) -> None:
    flows = double_tree(ranks, 2 * bytes)
    up, down = received(flows, ranks), sent(flows, ranks)
    assert up == down, "what comes up one tree goes down it"
    assert sum(up) == 4 * (ranks - 1) * bytes
    assert max(up, default=0) <= 4 * bytes, "two children and a parent once, a parent once"
    links = {(a, b) for a, b in zip(flows.src.tolist(), flows.dst.tolist())}
    assert all((b, a) in links for a, b in links)
    reached = {0}
    for _ in range(ranks):
        reached |= {b for a, b in links if a in reached}
    assert len(reached) == ranks


@given(RANKS, BYTES)
def test_direct_sums_at_owners_and_hands_back(ranks: int, bytes: int) -> None:
    flows = direct(ranks, bytes)
    there, back = (flows[flows.step == step] for step in (0, 1))
    assert sorted(zip(there.src.tolist(), there.dst.tolist(), there.bytes.tolist())) == sorted(
        zip(back.dst.tolist(), back.src.tolist(), back.bytes.tolist())
    )
    assert sum(received(there, ranks)) == (ranks - 1) * bytes


@given(RANKS, BYTES)
def test_a_partner_after_the_other_is_all_to_all(ranks: int, bytes: int) -> None:
    one, other = pairwise(ranks, bytes), all_to_all(ranks, bytes)
    pairs = [sorted(zip(f.src.tolist(), f.dst.tolist(), f.bytes.tolist())) for f in (one, other)]
    assert pairs[0] == pairs[1]
    assert set(other.step.tolist()) <= {0}
    for step in np.unique(one.step):
        own = one[one.step == step]
        assert len(set(own.dst.tolist())) == len(own)


def test_gather_and_scatter_are_each_others_reverse() -> None:
    there, back = gather(5, 7), scatter(5, 7)
    assert there == Flows(back.dst, back.src, back.bytes)
    assert received(there, 5) == [28, 0, 0, 0, 0]


@pytest.mark.parametrize("pattern", MEMBERS, ids=lambda p: p.__name__)
def test_no_ranks_or_bytes_are_refused(pattern: Pattern) -> None:
    for ranks, bytes, name in ((0, 1, "ranks"), (2, 0, "bytes"), (2, 1.5, "bytes")):
        with pytest.raises(NetworkError, match=f"{name} is a whole number of at least 1"):
            pattern(ranks, bytes)  # type: ignore[arg-type]


def test_an_ordered_ring_leaves_each_leaf_once() -> None:
    fabric = leaf_spine(4, 4, 4)
    ordered, mixed = (
        route(p.placed(ring(16, 1600)), fabric)
        for p in (Placement.in_order(16), Placement.shuffled(16, 1))
    )
    assert ordered.pieces == 4 * 30
    assert mixed.pieces > 2 * ordered.pieces


def test_ranks_of_a_machine_do_not_use_the_network() -> None:
    placement = Placement.in_order(8, 4)
    flows = placement.placed(all_to_all(8, 800))
    assert len(flows) == 2 * 4 * 4
    assert {(a // 4, b // 4) for a, b in zip(flows.src.tolist(), flows.dst.tolist())} == {
        (0, 1), (1, 0)
    }  # fmt: skip


def test_machines_are_shuffled_whole() -> None:
    placement = Placement.shuffled(12, 3, 4)
    assert sorted(placement.host) == list(range(12))
    assert [h // 4 for h in placement.host] == list(placement.machine or ())
    assert all(len(set(placement.machine[i : i + 4])) == 1 for i in (0, 4, 8))  # type: ignore[index]
    assert placement == Placement.shuffled(12, 3, 4)
    assert placement.host != Placement.shuffled(12, 4, 4).host


def test_some_ranks_are_placed_as_the_whole() -> None:
    placement = Placement((5, 3, 8), (0, 1, 1))
    assert placement.of([2, 0]) == Placement((8, 5), (1, 0))
    assert placement.of([1, 0]).placed(scatter(2, 9)) == Flows([3], [5], 9)
    assert len(placement.of([1, 2]).placed(scatter(2, 9))) == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Placement((0, -1)), "numbered from 0; got -1"),
        (lambda: Placement((0, 1), (0,)), "got 2 hosts and 1 machines"),
        (lambda: Placement((0, 1)).of([2]), "from 0 to 1; got 2"),
        (lambda: Placement((0, 1)).placed(ring(3, 9)), "a flow with rank 2"),
    ],
)
def test_ranks_that_are_not_there_are_refused(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        wrong()


@pytest.mark.parametrize("pattern", [all_to_all, direct])
def test_all_pairs_in_an_order_in_which_nobody_meets(pattern: Pattern) -> None:
    """In each turn, every rank sends to a different rank."""
    flows = pattern(8, 8000)
    first = flows[flows.step == 0]
    for place in range(7):
        kth = [first.dst[first.src == rank][place] for rank in range(8)]
        assert sorted(kth) == list(range(8))
