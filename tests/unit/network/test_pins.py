"""Routes in the form that senders need: a message of any size is cut into exactly its bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from demands import FABRICS, demands
from exported import of_pins
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import NetworkError, PlanError
from gradwire.network import Fabric, Flows, leaf_spine, route
from gradwire.network.exports import pins_of
from gradwire.network.patterns import all_to_all, pairwise
from gradwire.network.placement import Placement
from gradwire.pins import WHOLE_BYTES, Part, Pins

FABRIC = leaf_spine(leaves=2, hosts=2, spines=3)
PAIRS = Flows([0, 1, 2, 3], [2, 3, 0, 1], 3000)


def pinned(scheme: str, flows: Flows = PAIRS, fabric: Fabric = FABRIC) -> Pins:
    return pins_of(route(flows, fabric, scheme))


@given(st.integers(0, 1 << 40))
def test_parts_follow_each_other_and_are_the_message(size: int) -> None:
    pins = pinned("min_split")
    for source, target in ((0, 2), (1, 3), (2, 0), (0, 3), (0, 1)):
        parts = list(pins.parts(source, target, size))
        assert [p.start for p in parts[1:]] == [p.end for p in parts[:-1]]
        assert (parts[0].start, parts[-1].end) == (0, size) if parts else size == 0


def test_a_message_is_cut_as_the_pairs_bytes_were() -> None:
    assert list(pinned("ethereal").parts(0, 2, 300_000)) == [
        Part(0, 0, 100_000), Part(1, 100_000, 200_000), Part(2, 200_000, 300_000),
    ]  # fmt: skip


def test_small_messages_are_not_cut_and_take_the_fullest_share() -> None:
    pins = Pins(4, {(0, 2): ((0, 1), (1, 5), (2, 2))}, {})
    assert list(pins.parts(0, 2, WHOLE_BYTES)) == [Part(1, 0, WHOLE_BYTES)]
    assert len(list(pins.parts(0, 2, WHOLE_BYTES + 1))) == 3


def test_whole_flows_have_one_part_and_no_two_of_a_leaf_the_same_path() -> None:
    pins = pinned("coloured")
    (first,), (second,) = (list(pins.parts(a, b, 1 << 30)) for a, b in ((0, 2), (1, 3)))
    assert first.path != second.path
    assert (first.start, first.end) == (0, 1 << 30)


def test_pairs_below_a_leaf_and_pairs_that_were_not_planned_have_no_path() -> None:
    flows = Flows([0, 0], [1, 2], 1000)
    pins = pinned("coloured", flows)
    assert list(pins.parts(0, 1, 10)) == [Part(None, 0, 10)]
    assert list(pins.parts(3, 1, 10)) == [Part(None, 0, 10)]
    assert pins.paths == 1 + max(route(flows, FABRIC, "coloured").path)


@pytest.mark.parametrize(("pattern", "turns"), [(all_to_all, 1), (pairwise, 15)])
def test_turns_are_the_plans_steps(pattern: Callable[[int, int], Flows], turns: int) -> None:
    fabric, placement = leaf_spine(4, 4, 4), Placement.shuffled(16, 1)
    pins = pinned("coloured", placement.placed(pattern(16, 16 << 20)), fabric)
    every = [(a, b) for a in range(16) for b in range(16) if a != b]
    assert len({pins.turn(a, b) for a, b in every}) == turns
    if pattern is pairwise:  # in a turn, no uplink of a leaf has two messages, up or down
        used = [
            (pins.turn(a, b), way, fabric.leaf_of[end], part.path)
            for a, b in every
            for part in pins.parts(a, b, 1)
            if part.path is not None
            for way, end in (("up", a), ("down", b))
        ]
        assert len(set(used)) == len(used)


def test_a_pair_that_sends_again_keeps_its_first_turn() -> None:
    pins = pinned("coloured", Flows([0, 1, 0], [2, 3, 2], 1000, [1, 0, 2]))
    assert (pins.turn(0, 2), pins.turn(1, 3), pins.turn(3, 0)) == (1, 0, 0)


@pytest.mark.parametrize("scheme", ["coloured", "ethereal", "wrap", "ecmp_k(3)", "min_split"])
@pytest.mark.parametrize("fabric", FABRICS)
def test_links_carry_as_much_by_pins(fabric: Fabric, scheme: str) -> None:
    for flows in demands(fabric):
        routes = route(flows, fabric, scheme)
        pins = Pins.from_json(pins_of(routes).to_json())
        assert of_pins(pins, fabric, flows).link_bytes() == routes.link_bytes()


def test_pins_travel_as_json(tmp_path: Path) -> None:
    for scheme in ("coloured", "min_split", "ethereal"):
        pins = pinned(scheme)
        assert Pins.from_json(pins.to_json()) == pins
        (tmp_path / "pins.json").write_text(pins.to_json())
        assert Pins.load(tmp_path / "pins.json") == pins


GOOD: dict[str, Any] = {"format": 1, "hosts": 4, "pairs": [[0, 2, 0, [[1, 5]]]]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 2}, {"hosts": "4"}, {"hosts": 2}, {"pairs": None}, {"pairs": [[0, 2, 0]]},
        {"pairs": [[0, 0, 0, []]]}, {"pairs": [[0, 2, -1, []]]}, {"pairs": [[0, 2, 0, [[1, 0]]]]},
        {"pairs": [[0, 2, 0, [[-1, 5]]]]}, {"pairs": [[0, 2, 0, [[1, 2.5]]]]},
        {"pairs": [[True, 2, 0, []]]}, {"pairs": [[0, 2, 0, [[1, 5]]], [0, 2, 1, []]]},
    ],
)  # fmt: skip
def test_damaged_pins_are_refused(wrong: dict[str, Any]) -> None:
    assert Pins.from_json(json.dumps(GOOD)).paths == 2
    with pytest.raises(PlanError, match=r"a document of pins .*Export them"):
        Pins.from_json(json.dumps(GOOD | wrong))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"format": 1}', "[" * 100_000])
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="a document of pins"):
        Pins.from_json(text)


def test_files_that_are_not_there_and_what_cannot_be_pinned() -> None:
    with pytest.raises(PlanError, match=r"name a readable file.*network export --format pins"):
        Pins.load("nowhere.json")
    with pytest.raises(NetworkError, match=r"got sprayed packets. Route by"):
        pinned("spray")


def test_steps_do_not_matter_to_what_links_carry() -> None:
    placement = Placement.shuffled(16, 2)
    fabric, flows = leaf_spine(4, 4, 4), placement.placed(pairwise(16, 1 << 20))
    routes = route(flows, fabric, "coloured")
    again = of_pins(pins_of(routes), fabric, flows)
    assert dict(zip(again.flow, again.path)) == dict(zip(routes.flow, routes.path))
