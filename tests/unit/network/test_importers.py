"""Topologies and traffic of other tools: read with their meaning, or refused with the line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from demands import FABRICS, permutation, same

from gradwire.errors import NetworkError
from gradwire.network import (
    Fabric,
    Flows,
    Link,
    dual_plane,
    exports_htsim,
    fat_tree,
    leaf_spine,
    rail_optimized,
    route,
    simulate,
)
from gradwire.network.failures import switches
from gradwire.network.importers import htsim, toml
from gradwire.network.importers.graph import Cable, fabric_of
from gradwire.network.patterns import ring
from gradwire.network.saved import from_json, to_json
from gradwire.network.topologies import topology_of


def cables_of(fabric: Fabric) -> list[Cable]:
    """The cables of a fabric with one port a host, in the form of a list by hand."""
    found = [
        Cable(f"h{h}", f"leaf{leaf}", fabric.host_up[h, 0] / 1e9)
        for h, leaf in enumerate(fabric.leaf_of.tolist())
    ]
    half = [len(fabric.up.reshape(-1)), len(fabric.core_up.reshape(-1))]
    ups = [*range(half[0]), *range(2 * half[0], 2 * half[0] + half[1])]
    found += [
        Cable(fabric.links[i].source, fabric.links[i].target, fabric.rates[i] / 1e9)
        for i in ups
        if fabric.rates[i]
    ]
    return found


def hosts_of(fabric: Fabric) -> list[str]:
    return [f"h{h}" for h in range(fabric.hosts)]


# -- graphs --------------------------------------------------------------------------------


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_graph_becomes_the_fabric_it_is_of(fabric: Fabric) -> None:
    cables = cables_of(fabric)
    assert same(fabric_of(hosts_of(fabric), cables), fabric)
    shuffled = [cables[i] for i in np.random.default_rng(1).permutation(len(cables))]
    found = fabric_of(hosts_of(fabric), shuffled)
    flows = permutation(fabric, 1)
    assert route(flows, found).max_load == route(flows, fabric).max_load


def test_cables_that_are_missing_are_links_of_rate_0() -> None:
    fabric = leaf_spine(3, 2, 3).without(Link("leaf1", "spine2"), Link("spine2", "leaf1"))
    assert same(fabric_of(hosts_of(fabric), cables_of(fabric)), fabric)


def test_hosts_with_two_leaves_have_planes() -> None:
    cables = [Cable(f"h{h}", f"tor{h // 2}.{p}", 100) for h in range(4) for p in range(2)]
    cables += [
        Cable(f"tor{t}.{p}", f"spine{p}.{j}", 100)
        for t in range(2) for p in range(2) for j in range(2)
    ]  # fmt: skip
    found = fabric_of([f"h{h}" for h in range(4)], cables)
    reached = {name for name, rates in zip(found.uplinks, found.up.T) if rates.any()}
    assert len(reached) == 4
    assert found.host_up.tolist() == [[100 * 10**9] * 2] * 4
    flows = Flows(np.arange(4), (np.arange(4) + 2) % 4, 1000)
    like = dual_plane(2, 2, 2, host_gbps=200)
    assert route(flows, found, "min_split").seconds == route(flows, like, "min_split").seconds


def test_a_spine_above_both_leaves_of_a_host_has_a_cable_to_each() -> None:
    cables = [Cable(h, f"{h}{p}", 25) for h in "ab" for p in range(2)]
    cables += [Cable(f"{h}{p}", s, 25) for h in "ab" for p in range(2) for s in ("s", "t")]
    found = fabric_of(["a", "b"], cables)
    assert len({*found.links}) == len(found.links) == 16
    assert found.plane_of.tolist() == [0, 0, 1, 1]
    left = found.without("s")
    assert left.up.sum() == left.down.sum() == 4 * 25 * 10**9
    assert sorted(link.number for link in found.named("s")) == [0] * 4 + [1] * 4


def test_a_host_has_all_of_its_ports_though_nothing_is_above_their_leaves() -> None:
    cables = [Cable(h, leaf, 25) for h in "ab" for leaf in "xy"]
    found = fabric_of(["a", "b"], cables)
    assert found.host_up.tolist() == [[25 * 10**9] * 2] * 2
    assert route([(0, 1, 10**9)], found).seconds == pytest.approx(8 / 50)
    again = from_json(to_json(route([(0, 1, 10**9)], found)))
    assert simulate(again, "flow") == pytest.approx(8 / 50)
    assert simulate(again, "packet") == pytest.approx(8 / 50, rel=0.01)


@pytest.mark.parametrize("seed", range(6))
def test_planes_do_not_depend_on_the_order_of_cables(seed: int) -> None:
    hosts = [f"h{h}" for h in range(6)]
    cables = [Cable(f"h{h}", f"tor{h // 2}.{p}", 50) for h in range(6) for p in range(2)]
    cables += [Cable(f"tor{t}.{p}", f"spine{p}", 50) for t in range(3) for p in range(2)]
    cables += [Cable("lone", "tor3.1", 50), Cable("tor3.1", "spine1", 50)]
    shuffled = [cables[i] for i in np.random.default_rng(seed).permutation(len(cables))]
    found = fabric_of([*hosts, "lone"], shuffled)
    flows = Flows(np.arange(6), (np.arange(6) + 2) % 6, 10**6)
    like = dual_plane(3, 2, 1, host_gbps=100)
    assert (found.up > 0).sum(1).tolist() == [2, 2, 2, 1]
    assert route(flows, found, "wrap").seconds == route(flows, like, "wrap").seconds
    assert found.usable_paths(np.array([3]), np.array([0])).tolist() == [1]


def test_parallel_cables_are_paired_by_their_rates() -> None:
    """What came by the fast cable of one leaf may go by the fast one of the other."""
    cables = [Cable("a", "x", 50), Cable("b", "y", 50)]
    cables += [Cable("x", "s", gbps) for gbps in (10, 40)]
    cables += [Cable("y", "s", gbps) for gbps in (40, 10)]
    found = fabric_of(["a", "b"], cables)
    assert route([(0, 1, 10**9)], found, "wrap").seconds == pytest.approx(8 / 50)


def test_racks_in_pairs_of_three_planes_have_a_plane_each() -> None:
    cables = [Cable(f"{a}{b}", f"{a}{b}.{leaf}", 10) for a, b in ("xy", "yz", "zx")
              for leaf in (a, b)]  # fmt: skip
    cables += [Cable(cable.other, f"spine-{cable.other[-1]}", 10) for cable in cables]
    found = fabric_of(["xy", "yz", "zx"], cables)
    a, b = np.array([0, 0, 1]), np.array([1, 2, 2])
    assert found.usable_paths(a, b).tolist() == [1, 1, 1]
    assert (found.host_up > 0).sum(1).tolist() == [2, 2, 2]


def test_leaves_keep_their_numbers() -> None:
    cables = [Cable(f"h{h}", f"leaf{1 - h}", 10) for h in range(2)]
    cables += [Cable(f"leaf{leaf}", "spine0", 20 + leaf) for leaf in range(2)]
    found = fabric_of(["h0", "h1"], cables)
    assert found.leaf_of.tolist() == [1, 0]
    assert found.up.tolist() == [[20 * 10**9], [21 * 10**9]]


def test_a_spine_with_the_name_of_a_leaf_gets_another() -> None:
    cables = [Cable("a", "tor0", 10), Cable("b", "tor1", 10)]
    cables += [Cable(f"tor{t}", f"leaf{s}", 10) for t in range(2) for s in range(2)]
    found = fabric_of(["a", "b"], cables)
    assert len({*found.links}) == len(found.links) == 8
    assert [len(own) for own in switches(found)] == [4, 4]
    with pytest.raises(NetworkError, match="names such as leaf0 are those of leaves; got leaf1"):
        replace(found, uplinks=(("spine", 0), ("leaf1", 0)))
    with pytest.raises(NetworkError, match="a cable of its own; got cable 0 to spine twice"):
        replace(found, uplinks=(("spine", 0), ("spine", 0)))


@pytest.mark.parametrize(
    ("hosts", "cables", "said"),
    [
        (["a", "a", "b"], [("a", "x"), ("b", "x")], "the host a is listed 2 times"),
        (["a", "b", "c"],
         [("a", "x"), ("b", "y"), ("c", "z"), ("x", "s"), ("y", "t"), ("s", "u"), ("t", "u")],
         "the leaf z has no cable to a switch of a pod"),
        (["a", "b"], [("a", "b")], "the host a has a cable to another host"),
        (["a"], [("x", "y")], "the host a has no cable"),
        ([], [("x", "y")], "there are no hosts"),
        (["a", "b"], [("a", "x"), ("b", "y"), ("x", "y")], "has a cable to another leaf"),
        (["a", "b"], [("a", "x"), ("a", "y"), ("b", "y")], "are on different second leaves"),
        (["a", "b"], [("a", "x"), ("b", "y"), ("x", "s"), ("y", "t"), ("s", "c"), ("t", "d")],
         "have other cores"),
    ],
)  # fmt: skip
def test_other_graphs_are_refused(
    hosts: list[str], cables: list[tuple[str, str]], said: str
) -> None:
    with pytest.raises(NetworkError, match=said):
        fabric_of(hosts, [Cable(*cable, 10) for cable in cables])


def test_cables_have_a_rate() -> None:
    with pytest.raises(NetworkError, match="the cable a-x must be above 0"):
        fabric_of(["a"], [Cable("a", "x", 0)])


# -- htsim ---------------------------------------------------------------------------------

TINY = """# two tiers
Nodes 32
Tiers 2
Podsize 32

Tier 0
Downlink_speed_Gbps 100
Radix_Down 8
Radix_Up 2
Downlink_Latency_ns 1000
Switch_Latency_ns 0
Oversubscribed 4

Tier 1
Downlink_speed_Gbps 100
Radix_Down 4
Downlink_Latency_ns 1000
"""
TREE = """Nodes 1024
Tiers 3
Podsize 64
Tier 0
Downlink_speed_Gbps 100
Radix_Down 8
Radix_Up 8
Tier 1
Downlink_speed_Gbps 200
Radix_Down 8
Radix_Up 8
Tier 2
Downlink_speed_Gbps 400
Radix_Down 16
"""


def test_htsim_topologies_are_two_or_three_tiers() -> None:
    assert same(htsim.topology(TINY), leaf_spine(4, 8, 2, host_gbps=100))
    expected = fat_tree(16, 8, 8, 8, 8, host_gbps=100, fabric_gbps=200, core_gbps=400)
    assert same(htsim.topology(TREE), expected)
    bundled = TINY.replace("Radix_Down 4", "Radix_Down 8\nBundle 2")
    assert same(htsim.topology(bundled), leaf_spine(4, 8, 1, parallel=2))


def test_cables_to_a_core_are_cores() -> None:
    """Two cables from each switch to each of 4 cores: as many links as one to each of 8."""
    bundled = TREE.replace("Radix_Down 16", "Radix_Down 32\nBundle 2")
    assert same(htsim.topology(bundled), htsim.topology(TREE))
    with pytest.raises(
        NetworkError, match="Radix_Down of tier 2 must be 32, by the other numbers; got"
    ):
        htsim.topology(TREE.replace("Radix_Down 16", "Radix_Down 16\nBundle 2"))
    with pytest.raises(NetworkError, match="one cable to each switch; got Bundle 2 of tier 1"):
        htsim.topology(TREE.replace("Radix_Down 8\nRadix_Up 8\nTier 2",
                                    "Radix_Down 16\nRadix_Up 8\nBundle 2\nTier 2"))  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Tiers 2", "Tiers 4", "have 2 or 3 tiers; got 4"),
        ("Radix_Up 2", "Radix_Up two", "radix_up must be a number; line 9 is 'Radix_Up two'"),
        ("Podsize 32", "Pods 32", "a line must begin with one of .*; line 4 is 'Pods 32'"),
        ("Radix_Up 2\n", "", "tier 0 of an htsim topology needs radix_up"),
        ("Nodes 32", "Nodes 33", "Nodes must be a multiple .* got 33, and 8 below"),
        ("Tier 1", "Tier 1.5", "a tier must be 0, 1 or 2; line 14 is 'Tier 1.5'"),
        ("Radix_Up 2", "Radix_Up 2\nRadix_Up 4", "radix_up must have one value; it has 2 above"),
        ("Nodes 32", "Nodes 0.5", "nodes must be a whole number of at least 1; got 0.5"),
        (
            "Radix_Down 4",
            "Radix_Down 8",
            "tier 1 must be 4, by the other numbers; got 8",
        ),
        (
            "Oversubscribed 4",
            "Oversubscribed 1",
            "Oversubscribed of tier 0 must be the bandwidth from below over that above; got 1",
        ),
        (
            "Radix_Down 4",
            "Bundle 4",
            "Radix_Up of tier 0 must be a multiple of Bundle of tier 1; got 4",
        ),
    ],
)
def test_htsim_topologies_that_cannot_be_are_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        htsim.topology(TINY.replace(old, new))


def test_htsim_topologies_say_the_latency_of_links() -> None:
    assert htsim.latency_ns(TINY) == 1000
    assert htsim.latency_ns(TINY.replace("Downlink_Latency_ns 1000\n", "")) is None
    for old, new, said in (
        ("Downlink_Latency_ns 1000\nS", "Downlink_Latency_ns 50\nS", "got 50, 1000 ns, and 0 of"),
        ("Switch_Latency_ns 0", "Switch_Latency_ns 300", "got 1000 ns, and 300 of switches"),
    ):
        with pytest.raises(NetworkError, match=said):
            htsim.latency_ns(TINY.replace(old, new))


@pytest.mark.parametrize("fabric", [
    leaf_spine(4, 8, 2), leaf_spine(2, 4, 2, parallel=2, host_gbps=400), leaf_spine(2, 1, 1),
    fat_tree(4, 2, 2, 2, 2), fat_tree(2, 4, 4, 2, 4, core_gbps=100),
])  # fmt: skip
def test_topologies_for_htsim_are_read_back(fabric: Fabric) -> None:
    text = exports_htsim.topology(fabric, 700)
    assert same(htsim.topology(text), fabric)
    assert htsim.latency_ns(text) == 700


@pytest.mark.parametrize("fabric", [
    dual_plane(2, 2, 2), leaf_spine(2, 2, 4), leaf_spine(2, 3, 2), rail_optimized(2, 2, 2, 2),
    leaf_spine(2, 2, 2).without(Link("leaf0", "spine0")), leaf_spine(2, 2, 2, host_gbps=0.5),
])  # fmt: skip
def test_topologies_that_htsim_has_no_words_for_are_refused(fabric: Fabric) -> None:
    with pytest.raises(NetworkError, match="htsim needs hosts of one port in the"):
        exports_htsim.topology(fabric)


@pytest.mark.parametrize("latency", [0, -3, 0.5, 1 << 31, float("nan"), float("inf"), "x"])
def test_latencies_that_htsim_cannot_read_are_refused(latency: float) -> None:
    with pytest.raises(NetworkError, match=f"only whole latencies, .*; got {latency!r}"):
        exports_htsim.topology(leaf_spine(2, 2, 2), latency)
    assert "_ns 1234567\n" in exports_htsim.topology(leaf_spine(2, 2, 2), 1234567.0)


def test_connections_too_large_for_htsim_are_refused() -> None:
    most = (1 << 31) - 1
    assert f"size {most}\n" in exports_htsim.connections(Flows(0, 1, most), 2)
    with pytest.raises(
        NetworkError, match=r"sizes below 2,147,483,648 bytes; got .* 2,147,483,648"
    ):
        exports_htsim.connections(Flows(0, [1, 2], [1, 1 << 31]), 3)


@pytest.mark.parametrize(("start", "step"), [(999, 0), (1000, 1)])
def test_starts_that_htsim_cannot_follow_are_refused(start: int, step: int) -> None:
    with pytest.raises(NetworkError, match=f"must start at whole .* a start of {start} ns"):
        exports_htsim.connections(Flows([0, 1], [1, 0], 5, [0, step], [0, start]), 2)


@pytest.mark.parametrize("starts", [0, 7000])
def test_connections_are_flows_and_back(starts: int) -> None:
    own = permutation(leaf_spine(4, 4, 4), 3)
    flows = Flows(own.src, own.dst, own.bytes, 0, starts)
    text = exports_htsim.connections(flows, 16)
    assert text.startswith(f"Nodes 16\nConnections {len(flows)}\n")
    assert htsim.flows(text) == flows


def test_steps_begin_by_barriers() -> None:
    flows = Flows([0, 1, 2, 3], [1, 2, 3, 0], [10, 20, 30, 40], [0, 0, 2, 5])
    text = exports_htsim.connections(flows, 4)
    assert (
        text
        == """Nodes 4
Connections 4
Triggers 2
0->1 id 1 start 0 size 10 send_done_trigger 1
1->2 id 2 start 0 size 20 send_done_trigger 1
2->3 id 3 trigger 1 size 30 send_done_trigger 2
3->0 id 4 trigger 2 size 40
trigger id 1 count 2 barrier
trigger id 2 count 1 barrier
"""
    )
    assert htsim.flows(text).step.tolist() == [0, 0, 1, 2]
    ring_of_four = ring(4, 4096)
    assert htsim.flows(exports_htsim.connections(ring_of_four, 4)) == ring_of_four


def test_triggers_make_steps() -> None:
    """Triggers make steps, also when they are named before the flow that pulls them."""
    text = """Nodes 4
Connections 5
Triggers 2
2->3 id 3 trigger 2 size 30
0->1 id 1 start 0 size 10 send_done_trigger 1
1->2 id 2 trigger 1 size 20 send_done_trigger 2 msg
1->3 id 5 start 0 size 0
3->0 id 4 start 5.5 size 40 msg 7
trigger id 1 oneshot
trigger id 2 oneshot
"""
    assert htsim.flows(text) == Flows(
        [2, 0, 1, 3], [3, 1, 2, 0], [30, 10, 20, 40], [2, 0, 1, 0], [0, 0, 0, 5000]
    )


def test_a_barrier_waits_for_the_last_that_pulls_it() -> None:
    """A barrier waits for the last of a chain of three, with another flow beside it."""
    text = """0->1 id 1 start 0 size 10 send_done_trigger 1
1->0 id 2 trigger 1 size 10 send_done_trigger 2
2->1 id 3 start 0 size 10 send_done_trigger 2
0->2 id 4 trigger 2 size 10
trigger id 2 count 2 barrier
"""
    assert htsim.flows(text).step.tolist() == [0, 1, 0, 2]
    first, second, third, last, _ = text.splitlines()
    assert htsim.flows("\n".join([third, last, second, first])).step.tolist() == [0, 2, 1, 0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0->x start 0 size 3", "a connection must be like .*; line 2"),
        ("0->1 id 1 start 0", "a connection must be like .*; line 2"),
        ("0->1 start -1 size 3", "a connection must be like .*; line 2"),
        ("0->1 begin 1 size 3", "must be like .*, with no words but id, start, size, .*; line 2"),
        ("0->1 id 1 trigger 7 size 3", "a trigger must be pulled by connections that begin"),
        ("0->1 trigger 7 send_done_trigger 7 size 3", "begin without it, and send bytes; line 2"),
        (
            "0->1 start 0 size 0 send_done_trigger 1\n0->1 trigger 1 size 3",
            "send bytes; line 3",
        ),
        (
            "0->1 start 0 size 3 send_done_trigger 1\n1->0 trigger 1 send_done_trigger 1 size 3",
            "begin without it, and send bytes; line 3",
        ),
        ("0->1 id 1 size 3", "a connection must have a start or a trigger, and not both; line 2"),
        ("0->1 id 1 start 0 trigger 1 size 3", "a start or a trigger, and not both; line 2"),
        ("Connections 2\n0->1 start 0 size 3", "must be the number of connections; got '2' for 1"),
        ("failure switch_type TOR switch_id 0 link_id 1", "a failed link is not .*; line 2"),
        ("0 -> 1 start 0 size 3", "a line must begin with a connection, such as 0->1, .*; line 2"),
        ("connections 7", "Connections, Triggers or Failures, or with trigger; line 2"),
        (f"{'1' * 5000}->1 start 0 size 3", "a connection must be like .*; line 2"),
        (
            "0->1 id 1 start 0 size 3 send_done_trigger 1\n1->0 id 2 trigger 1 size 3\n"
            "trigger id 1 count 2 barrier",
            "count the connections that pull it, 1; line 4",
        ),
    ],
)
def test_connections_that_cannot_be_read_are_refused(line: str, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        htsim.flows(f"Nodes 2\n{line}\n")


# -- TOML, files ---------------------------------------------------------------------------

OWN = """format = 1
topology = "leaf_spine(4, 4, 4, host_gbps=100)"
failed = ["spine2", "leaf0-spine1"]

[gbps]
"leaf1-spine0" = 25
"""


def test_own_files_have_a_builder_and_what_differs() -> None:
    found = toml.topology(OWN)
    assert not found.up[:, 2].any()
    assert not found.down[:, 2].any()
    assert found.up[0, 1] == found.down[0, 1] == 0
    assert found.up[1, 0] == found.down[1, 0] == 25 * 10**9
    second = OWN.replace("spines", "").replace("4, 4, 4,", "2, 2, 2, parallel=2,")
    own = toml.topology(second.replace('"spine2", ', "").replace("leaf0-spine1", "leaf0-spine1-1"))
    assert own.up[0].tolist() == [100 * 10**9] * 3 + [0]


def test_own_files_may_have_nodes_and_cables() -> None:
    cables = [["a", "x", 10], ["b", "y", 10], ["x", "s", 40], ["y", "s", 40]]
    text = f'format = 1\nhosts = ["a", "b"]\ncables = {json.dumps(cables)}\n'
    assert same(toml.topology(text), leaf_spine(2, 1, 1, host_gbps=10, fabric_gbps=40))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("format = 2", "in this version of gradwire; got 2. Write for example: format = 1"),
        ("format = 1\nspines = 4", "only topology, hosts, cables, failed, gbps; got 'spines'"),
        ("format = 1", "a topology, or hosts and cables; got neither"),
        (OWN.replace("failed", 'hosts = ["a"]\nfailed'), "but not both; got both"),
        ("format = 1\nhosts = []\ncables = [3]", r"cables\[0\] must be a list of 3; got 3"),
        ("format = ", "a topology must be written in TOML"),
        (OWN.replace("spine2", "spine9"), "a link or a switch of the topology; got 'spine9'"),
        (
            OWN.replace("leaf1-spine0", "spine0"),
            "gbps must name cables, such as 'leaf0-spine1'; got 'spine0'",
        ),
        (OWN.replace("25", "-1"), r"gbps\['leaf1-spine0'\] must be a finite number above 0"),
    ],
)
def test_own_files_that_cannot_be_are_refused(text: str, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        toml.topology(text)


@pytest.mark.parametrize(
    ("failed", "lost"),
    [
        ("spine-1", {("leaf0", "spine-1", 0), ("leaf0", "spine-1", 1),
                     ("leaf1", "spine-1", 0), ("leaf1", "spine-1", 1)}),
        ("leaf0-spine-1", {("leaf0", "spine-1", 0)}),
        ("leaf0-spine-1-1", {("leaf0", "spine-1", 1)}),
        ("leaf1-spine", {("leaf1", "spine", 0)}),
    ],
)  # fmt: skip
def test_names_of_switches_may_have_dashes(failed: str, lost: set[tuple[str, str, int]]) -> None:
    cables = [["a", "x", 10], ["b", "y", 10]]
    cables += [[leaf, spine, 10] for leaf in "xy" for spine in ("spine", "spine-1", "spine-1")]
    text = f'format = 1\nhosts = ["a", "b"]\ncables = {json.dumps(cables)}\nfailed = ["{failed}"]'
    found = toml.topology(text)
    dead = {link for link, rate in zip(found.links, found.rates) if not rate}
    assert dead == lost | {(b, a, n) for a, b, n in lost}


def test_own_files_name_switches_as_their_cables_do() -> None:
    cables = [["a", "tor-1", 10], ["b", "tor-0", 10], ["a", "tor-3", 10], ["b", "tor-2", 10]]
    cables += [[leaf, "x", 40] for leaf in ("tor-0", "tor-1", "tor-0", "tor-1")]
    cables += [[leaf, "leaf0", 40] for leaf in ("tor-2", "tor-3")]
    text = f'format = 1\nhosts = ["a", "b"]\ncables = {json.dumps(cables)}\n'
    more = 'failed = ["tor-0-x-1", "leaf0"]\n[gbps]\n"tor-1-x" = 15\n"spine.leaf0-leaf1" = 2\n'
    found = toml.topology(text + more)
    names = {(*link, rate // 10**9) for link, rate in zip(found.links, found.rates.tolist())}
    assert {own for own in names if own[0].startswith("leaf")} == {
        ("leaf0", "x", 0, 40), ("leaf0", "x", 1, 15), ("leaf0", "spine.leaf0", 0, 0),
        ("leaf1", "x", 0, 40), ("leaf1", "x", 1, 0), ("leaf1", "spine.leaf0", 0, 2),
    }  # fmt: skip
    with pytest.raises(NetworkError, match="the topology; got 'tor-0-x-2'"):
        toml.topology(text + 'failed = ["tor-0-x-2"]')


def test_what_fails_where_there_are_no_links_is_refused() -> None:
    text = 'format = 1\nhosts = ["a", "b"]\ncables = [["a", "x", 10], ["b", "x", 10]]\n'
    assert not toml.topology(text).links
    for more in ('failed = ["y"]', 'failed = ["x-y"]', 'gbps = {"x-y" = 3}'):
        with pytest.raises(NetworkError, match="spine0"):
            toml.topology(text + more)


def test_files_are_known_by_their_end(tmp_path: Path) -> None:
    for name, text in (("a.toml", OWN), ("b (1).topo", TINY), ("b.topo", TINY)):
        (tmp_path / name).write_text(text)
        assert topology_of(str(tmp_path / name)).hosts in (16, 32)
    with pytest.raises(NetworkError, match=r"a text file that can be read; .*none.toml"):
        topology_of(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    "text", ["cluster.yaml", "/tmp/cluster.yaml", "here/cluster.json", "infragraph('x.yaml')"]
)
def test_who_reads_other_formats_is_said(text: str) -> None:
    with pytest.raises(
        NetworkError, match=r"; infragraph, ns3: pip install \./contrib/formats\.$"
    ):
        topology_of(text)
