"""Distances as people write them, and a network that has one."""

import json
from dataclasses import asdict

import pytest

from gradwire.errors import LabError
from gradwire.lab import Cluster
from gradwire.lab.distance import NEAR, Distance
from gradwire.lab.wiring import SWITCH, Wiring, one_switch


@pytest.mark.parametrize(
    ("texts", "found", "said"),
    [
        (("40ms", "5ms", "0.1%"), (0.04, 0.005, 0.001), "40 ± 5 ms one way, 0.1 % of frames lost"),
        (("250us",), (0.00025, 0.0, 0.0), "0.25 ms one way"),
        ((" .5 S", "0ms", "0.25"), (0.5, 0.0, 0.25), "500 ms one way, 25 % of frames lost"),
    ],
)
def test_a_distance_is_read_and_told(texts, found, said):
    distance = Distance.of(*texts)
    assert distance == Distance(*found)
    assert str(distance) == said
    assert distance


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ((0.04,), r"a delay must be a number with us, ms or s.*got 0\.04"),
        (("40",), r"a delay must be a number with us, ms or s, up to 1s; got '40'\. Write"),
        (("2s",), r"a delay must be .*got '2s'"),
        (("-1ms",), r"a delay must be .*got '-1ms'"),
        (("1ms", "2ms"), r"a jitter must be at most the delay.*of 2ms around 1ms\. Choose"),
        (("1ms", "fast"), r"a jitter must be a number .*got 'fast'"),
        (("1ms", "0s", "60%"), r"a loss must be a share of frames from 0 to 50%; got '60%'"),
        (("1ms", "0s", "nan"), r"a loss must be a share .*got 'nan'"),
    ],
)
def test_what_is_no_distance(texts, words):
    with pytest.raises(LabError, match=words):
        Distance.of(*texts)


@pytest.mark.parametrize("more", [{"loopback": True}, {"topology": "leaf_spine(2, 2, 2)"}])
def test_a_distance_needs_one_switch(more):
    hosts = {} if "topology" in more else {"hosts": 2}
    with pytest.raises(LabError, match=r"of hosts on one switch; got them beside .*Leave out one"):
        Cluster(**hosts, **more, delay="1ms")


def test_a_forwarder_takes_the_bridge_s_place():
    far = Distance(0.04, 0.0, 0.01)
    near, wiring = one_switch(3, 10**8), one_switch(3, 10**8, far)
    assert near.distance == NEAR
    assert any("type bridge" in line for line in near.machines[-1].lines)
    assert wiring.machines[-1].name == SWITCH
    assert not wiring.machines[-1].lines
    assert all("gso_max_segs 1" in machine.lines[-1] for machine in wiring.machines[:-1])
    room = int(wiring.machines[0].settings["tcp_rmem"].split()[-1])
    assert room >= 4 * (2 * 0.04) * 10**8 / 8
    fastest = one_switch(2, 400 * 10**9, Distance(1.0))
    assert int(fastest.machines[0].settings["tcp_wmem"].split()[-1]) < 1 << 31
    assert Wiring.from_json(json.loads(json.dumps(asdict(wiring)))) == wiring
