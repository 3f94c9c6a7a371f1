"""The settings of leaves, spines and hosts, without any namespace."""

import json
from dataclasses import asdict, replace

import pytest

from gradwire.errors import LabError, NetworkError
from gradwire.lab import Cluster
from gradwire.lab.leaf_spine import leaf_spine as wired
from gradwire.lab.rates import shape_port
from gradwire.lab.wiring import Wiring, one_switch
from gradwire.network import Link, dual_plane, fat_tree, leaf_spine

SMALL = leaf_spine(leaves=2, hosts=2, spines=3)
CABLE = (Link("leaf0", "spine1"), Link("spine1", "leaf0"))


def lines(wiring, name):
    return next(machine for machine in wiring.machines if machine.name == name).lines


def shaping(wiring, machine, interface):
    ends = [end for cable in wiring.cables for end in (cable.near, cable.far)]
    return next(e.shaping for e in ends if (e.machine, e.interface) == (machine, interface))


@pytest.mark.parametrize("wiring", [one_switch(3, 10**8), wired(SMALL, 10**8, 1)])
def test_wirings_travel_as_json(wiring):
    assert Wiring.from_json(json.loads(json.dumps(asdict(wiring)))) == wiring


def test_addresses_are_distinct_and_each_plane_has_its_own():
    wiring = wired(leaf_spine(leaves=5, hosts=7, spines=6), 10**8, 1)
    every = [*wiring.addresses, *(a for own in wiring.planes for a in own)]
    assert len(set(every)) == len(every) == 35 * 7
    assert wiring.planes[0] == [f"10.{128 + plane}.0.1" for plane in range(6)]


def test_a_leaf_hashes_its_hosts_own_addresses_and_pins_those_of_planes():
    told = lines(wired(SMALL, 10**8, 1), "leaf0")
    hop = "nexthop via 169.254.0.2 dev spine{} onlink"
    hashed = " ".join(hop.format(u) for u in range(3))
    assert f"route add 10.77.1.0/24 {hashed}" in told
    for u in range(3):
        assert f"route add 10.{128 + u}.1.0/24 {hop.format(u)}" in told


def test_a_cable_that_failed_is_not_there_and_nobody_routes_over_it():
    for failed in (CABLE, CABLE[:1], CABLE[1:]):
        wiring = wired(SMALL.without(*failed), 10**8, 1)
        assert ("leaf0", "spine1") not in {(c.near.machine, c.far.machine) for c in wiring.cables}
        for leaf in ("leaf0", "leaf1"):
            assert not any("spine1" in line for line in lines(wiring, leaf))
            assert any("spine2" in line for line in lines(wiring, leaf))
        assert not any("dev leaf0" in line for line in lines(wiring, "spine1"))


def test_rates_are_in_proportion_to_the_fastest_hosts():
    slow = leaf_spine(2, 2, 2, host_gbps=100, fabric_gbps=25)
    slow = slow.with_rates({Link("leaf1", "spine0"): 10**10})
    wiring = wired(slow, 10**8, 1)
    assert shaping(wiring, "leaf0", "host0") == shape_port(10**8)
    assert shaping(wiring, "leaf0", "spine0") == shape_port(25 * 10**6)
    assert shaping(wiring, "leaf1", "spine0") == shape_port(10**7)
    assert shaping(wiring, "spine0", "leaf1") == shape_port(25 * 10**6)


def test_the_seed_and_the_ports_decide_at_leaves_only():
    settings = {m.name: m.settings for m in wired(SMALL, 10**8, 77).machines}
    assert settings["leaf1"]["fib_multipath_hash_seed"] == "77"
    assert settings["leaf1"]["fib_multipath_hash_policy"] == "3"
    assert settings["spine0"] == {"ip_forward": "1"}
    assert settings["host0"] == {}


@pytest.mark.parametrize(
    "fabric",
    [
        fat_tree(2, 2, 2, 2, 2), dual_plane(2, 2, 2), leaf_spine(2, 2, 2, parallel=2),
    ],
)  # fmt: skip
def test_other_networks_are_refused(fabric):
    with pytest.raises(LabError, match=r"one cable between any two.*Write for example leaf_spine"):
        Cluster(topology=fabric)


def test_more_than_there_are_addresses():
    with pytest.raises(
        LabError,
        match=r"for 200 leaves.*got 201 leaves, 1 hosts and 1 spines",
    ):
        wired(leaf_spine(201, 1, 1), 10**8, 1)


@pytest.mark.parametrize(
    ("gbps", "said"), [(1e-6, "1e-06 Gbit/s would have 1 bit/s"), (1e6, "would have 1e.04 gbit/s")]
)
def test_rates_that_no_shaper_has(gbps, said):
    with pytest.raises(LabError, match=rf"from 10kbit to 400gbit.*{said} here\. Choose another"):
        wired(
            leaf_spine(2, 1, 2, host_gbps=100, fabric_gbps=gbps), 10**8 if gbps < 1 else 10**9, 1
        )


@pytest.mark.parametrize(
    "name", ["datacenter-spine-01", "my spine", "host0", "lo", "", "a/b", "-s", "s\nt"]
)
def test_names_that_no_interface_has(name):
    fabric = replace(leaf_spine(2, 1, 1), uplinks=((name, 0),))
    with pytest.raises(LabError, match="a spine's name is that of interfaces here, which have at"):
        wired(fabric, 10**8, 1)


def test_leaves_without_a_spine_in_common():
    alone = leaf_spine(2, 1, 2).without(
        Link("leaf0", "spine0"), Link("leaf1", "spine1"), Link("spine1", "leaf1")
    )
    with pytest.raises(LabError, match=r"leaf 0 and leaf 1 have none\. Let fewer links fail"):
        wired(alone, 10**8, 1)


def test_a_cluster_has_hosts_or_a_topology():
    with pytest.raises(LabError, match=r"got both\. Give one"):
        Cluster(4, topology=SMALL)
    with pytest.raises(LabError, match=r"got neither\. Give one"):
        Cluster(rate="1gbit")
    with pytest.raises(LabError, match="a topology needs network namespaces"):
        Cluster(topology=SMALL, loopback=True)
    with pytest.raises(NetworkError, match="leaf_spin"):
        Cluster(topology="leaf_spin(2, 2, 2)")
    with pytest.raises(LabError, match="hosts must be a whole number from 1 to 256; got 400"):
        Cluster(topology=leaf_spine(20, 20, 2))
    assert Cluster(topology="leaf_spine(leaves=3, hosts=2, spines=2)").hosts == 6


@pytest.mark.parametrize("order", [[0, 1], [0, 0, 1, 2], [1, 2, 3, 4], [0, 1, 2, 2.5]])
def test_an_order_names_every_host_once(order):
    with pytest.raises(LabError, match="an order must name each host from 0 to 3 once"):
        Cluster(4, order=order)


def test_seeds_of_hashes_are_above_zero():
    with pytest.raises(LabError, match="hash_seed must be a whole number from 1"):
        Cluster(topology=SMALL, hash_seed=0)
