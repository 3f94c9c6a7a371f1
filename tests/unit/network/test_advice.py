"""Advice: no change where nothing helps, and whole flows before cut ones."""

from __future__ import annotations

import json

import pytest
from demands import groups, permutation, unequal

from gradwire.errors import NetworkError
from gradwire.network import Flows, Link, fat_tree, leaf_spine
from gradwire.network.advice import advise, compared
from gradwire.network.patterns import all_to_all, direct, ring
from gradwire.network.placement import Placement
from gradwire.network.topologies import topology_of

FABRIC = leaf_spine(8, 8, 8)


def test_an_ordered_ring_is_left_alone() -> None:
    """One flow leaves each leaf, so none can collide on the way up; hosts are the bottleneck."""
    advice = advise(Placement.in_order(64).placed(ring(64, 6400)), FABRIC)
    assert advice.bounds.binding == "host"
    assert advice.recommended is None
    assert advice.verdict.startswith("Leave paths to hashes: they take 1.0")
    assert "links are not what the topology says" in advice.test


def test_within_a_leaf_there_is_nothing_to_choose() -> None:
    advice = advise(Placement.in_order(8).placed(ring(8, 6400)), FABRIC)
    assert advice.verdict == "Nothing leaves its leaf: paths change nothing."
    assert advice.test == "nothing: there is no path to choose."


def test_a_ring_at_random_places_is_pinned_whole() -> None:
    advice = advise(Placement.shuffled(64, 1).placed(ring(64, 6400)), FABRIC)
    assert advice.recommended == "coloured"
    assert "no flow is cut" in advice.verdict
    assert "which is what hosts' own links need" in advice.verdict
    rows = {row.scheme: row for row in advice.rows}
    assert rows["ecmp"].seconds > 2 * rows["coloured"].seconds
    assert rows["ecmp"].p95 >= rows["ecmp"].seconds
    for row in ("ecmp", "coloured"):
        assert f"{rows[row].seconds:.3g} s" in advice.test
    assert rows["ethereal"].pieces == 8 * rows["coloured"].pieces
    assert rows["ethereal"].seconds == pytest.approx(rows["coloured"].seconds)


def test_what_is_left_to_chance_is_a_distribution() -> None:
    advice = advise(permutation(FABRIC, 3), FABRIC, ["ecmp", "ecmp_k(2)", "adaptive", "coloured"])
    spread = {row.scheme: row.p95 / row.seconds for row in advice.rows}
    assert spread["coloured"] == 1.0
    assert max(spread["ecmp"], spread["ecmp_k(2)"], spread["adaptive"]) > 1.0


def test_where_remainders_count_they_are_cut() -> None:
    fabric = leaf_spine(4, 4, 3, fabric_gbps=60)
    advice = advise(permutation(fabric, 3), fabric)
    assert advice.recommended == "min_split"
    assert "flows are cut" in advice.verdict


def test_many_flows_of_one_size_need_nothing() -> None:
    fabric = leaf_spine(4, 8, 8, fabric_gbps=400)
    assert advise(all_to_all(32, 32_000), fabric).recommended is None


def test_unequal_flows_are_planned_by_what_is_for_them() -> None:
    advice = advise(unequal(groups(FABRIC, 4, 1), 3), FABRIC)
    refused = dict(advice.refused)
    assert {"coloured", "min_split"} <= set(refused)
    assert "the same size" in refused["coloured"]
    assert advice.recommended in ("lpt", "wrap", None)


def test_around_a_failure_the_bound_tells_what_is_left() -> None:
    broken = FABRIC.without(Link("leaf0", "spine3"), "spine5")
    advice = advise(permutation(FABRIC, 5), broken, ("coloured", "wrap"))
    assert advice.rows[0].scheme == "ecmp"
    best = min(row.seconds for row in advice.rows)
    assert best >= advice.bounds.seconds * (1 - 1e-9)


def test_only_what_is_asked_for_is_shown_beside_hashes_and_the_choice() -> None:
    advice = advise(permutation(FABRIC, 2), FABRIC, ("ethereal",))
    assert {row.scheme for row in advice.rows} == {"ecmp", "ethereal", str(advice.recommended)}


def test_steps_that_are_alike_are_routed_once() -> None:
    """510 steps of 256 flows are answered at once, as equal steps are routed a single time."""
    fabric = fat_tree(4, 8, 8, 8, 8)
    flows = Placement.shuffled(256, 2).placed(ring(256, 256 * 100))
    advice = advise(flows, fabric, ("coloured", "spray"))
    assert advice.recommended == "coloured"
    two = Placement.shuffled(64, 1).placed(direct(64, 6400))
    assert len(two.steps()) == 1, "back is as there"


def test_advice_is_plain_values() -> None:
    written = json.loads(json.dumps(advise(permutation(FABRIC, 1), FABRIC).to_json()))
    assert {row["scheme"] for row in written["rows"]} >= set(compared())
    assert written["bounds"]["binding"] == "host"


def test_topologies_are_read_by_their_text() -> None:
    assert topology_of("leaf_spine(4, hosts=2, spines=3, host_gbps=25)").hosts == 8
    assert topology_of("fat_tree(2, 2, 2, 2, 2)").pods == 2
    for text, said in (
        ("leafspine(4, 4, 4)", "'leafspine' is not a topology .* Use 'leaf_spine'"),
        ("leaf_spine(4)", r"do not fit: missing 2 .* Use 'leaf_spine\(leaves, hosts, spines"),
        ("leaf_spine(4, 4, 0)", "spines is a whole number of at least 1; got 0"),
        ("", "it must be a non-empty string"),
    ):
        with pytest.raises(NetworkError, match=said):
            topology_of(text)


def test_steps_are_told_apart() -> None:
    flows = Flows([0, 1, 0, 1, 0], [2, 3, 2, 3, 2], 5, [0, 0, 4, 4, 9])
    assert [[rows.tolist() for rows in group] for group in flows.steps()] == [
        [[0, 1], [2, 3]], [[4]]
    ]  # fmt: skip
    assert Flows.of([]).steps() == []
