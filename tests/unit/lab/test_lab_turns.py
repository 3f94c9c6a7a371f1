"""Which links go down when, read from text and found in a wiring; nothing is built."""

from __future__ import annotations

import pytest

from gradwire.errors import LabError
from gradwire.lab import Cluster, Outage
from gradwire.lab.leaf_spine import leaf_spine as wiring_of
from gradwire.lab.outages import Turn, outage_of, turns
from gradwire.lab.wiring import one_switch
from gradwire.network import leaf_spine

SWITCH = one_switch(3, 10**9)
LEAVES = wiring_of(leaf_spine(2, 2, 2), 10**9, 1)


def test_a_text_says_link_and_times() -> None:
    assert outage_of("host3@2:2.5") == Outage("host3", 2.0, 2.5)
    assert outage_of("leaf0-spine1@0") == Outage("leaf0-spine1", 0.0, None)


@pytest.mark.parametrize("text", ["host3", "host3@", "host3@2:", "host3@two", "host3@1:2:3"])
def test_what_is_no_such_text_is_refused(text: str) -> None:
    with pytest.raises(LabError, match="LINK@SECONDS or LINK@SECONDS:UNTIL; got"):
        outage_of(text)


def test_the_end_of_the_switch_above_goes_down_and_up_in_turn() -> None:
    found = turns([Outage("host2", 3.0), Outage("host0", 1.0, 4.0)], SWITCH)
    assert found == [
        Turn(1.0, "switch", "host0", False), Turn(3.0, "switch", "host2", False),
        Turn(4.0, "switch", "host0", True),
    ]  # fmt: skip
    for name in ("leaf1-spine0", "spine0-leaf1"):
        assert turns([Outage(name, 0.0)], LEAVES) == [Turn(0.0, "spine0", "leaf1", False)]
    assert turns([Outage("host3", 0.0)], LEAVES) == [Turn(0.0, "leaf1", "host3", False)]


@pytest.mark.parametrize(
    ("outage", "said"),
    [
        (Outage("host4", 0.0), "got 'host4'. Name an existing one, such as host0 or leaf1-spine1"),
        (Outage("leaf0", 0.0), "got 'leaf0'"),
        (Outage("leaf0-leaf1", 0.0), "got 'leaf0-leaf1'"),
        (Outage("host0", -1.0), "host0 down at -1, up at 1e"),
        (Outage("host0", 2.0, 2.0), "down at 2, up at 2"),
        (Outage("host0", float("nan")), "down at nan"),
        (Outage("host0", 0.0, float("inf")), "up at inf"),
        ("host0@1", "must be a list of Outage; got 'host0@1' in it"),
    ],
)
def test_what_cannot_go_down_is_refused(outage: Outage, said: str) -> None:
    with pytest.raises(LabError, match=said):
        turns([outage], LEAVES)


def test_a_link_that_comes_back_may_go_down_at_once_and_not_before() -> None:
    twice = [Outage("host0", 1.0, 2.0), Outage("host0", 0.5, 1.0), Outage("host1", 0.5)]
    up = [(turn.seconds, turn.up) for turn in turns(twice, SWITCH) if turn.interface == "host0"]
    assert up == [(0.5, False), (1.0, True), (1.0, False), (2.0, True)]
    for other in (Outage("host0", 0.8, 0.9), Outage("host0", 1.5), Outage("host0", 0.5, 0.6)):
        with pytest.raises(LabError, match="cannot go down while it is down; got host0 down at"):
            turns([*twice, other], SWITCH)


def test_without_links_none_goes_down() -> None:
    with Cluster(2, loopback=True) as lab, pytest.raises(LabError, match="loopback does not have"):
        lab.run(["true"], outages=[Outage("host0", 0.0)])
