"""Packets whose paths switches choose: the shortest queue, or each path in turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from demands import permutation

from gradwire.network import Fabric, Flows, Link, dual_plane, fat_tree, leaf_spine, route, simulate
from gradwire.network.engines.packet import send
from gradwire.network.engines.transport import Spraying, Transport

HUGE = Transport(queue_bytes=1 << 40, mark_bytes=1 << 40)


def took(fabric: Fabric, spraying: Spraying, seed: int = 3) -> float:
    routes = route(permutation(fabric, seed, 1 << 22), fabric, "spray")
    return simulate(routes, "packet", transport=replace(HUGE, spraying=spraying), seed=seed)


@pytest.mark.parametrize("fabric", [leaf_spine(8, 8, 8), fat_tree(4, 4, 4, 4, 4)])
@pytest.mark.parametrize("spraying", ["adaptive", "round_robin"])
def test_switches_know_of_their_own_queues_only(fabric: Fabric, spraying: Spraying) -> None:
    """With collisions on the way down they are about as good as any: 1.08 to 1.17 by uet-htsim."""
    least = 8 * (1 << 22) / 100e9
    assert 1.04 * least < took(fabric, spraying) < 1.2 * least
    assert took(fabric, "random") < 1.2 * least


def test_by_single_bytes_messages_keep_to_the_uplinks_that_they_made_free() -> None:
    """They meet all along if these uplinks lead to the same leaf."""
    fabric = fat_tree(4, 4, 4, 4, 4)
    routes = route(permutation(fabric, 3, 1 << 22), fabric, "spray")
    how = replace(HUGE, spraying="adaptive", ack_bytes=64)
    by_bytes, by_bands = (
        simulate(routes, "packet", transport=replace(how, band_bytes=band)) for band in (1, 16_384)
    )
    assert by_bytes > 1.05 * by_bands


@pytest.mark.parametrize("spraying", ["adaptive", "round_robin"])
def test_a_leaf_is_even_whatever_it_sends_where(spraying: Spraying) -> None:
    """Four hosts of one leaf send over four uplinks: no packet waits there for more than a band or
    its turn. With random uplinks many wait."""
    fabric = leaf_spine(5, 4, 4)
    flows = Flows(np.arange(4), [4, 8, 12, 16], 4096 * 400)
    routes = route(flows, fabric, "spray")
    up = slice(0, 4)
    packet = 4096 * 8 / 100e9
    even = send(routes, replace(HUGE, spraying=spraying)).longest_wait[up].max()
    random = send(routes, HUGE).longest_wait[up].max()
    assert even <= 5 * packet
    assert random > 8 * packet


def test_rounds_are_of_all_ways_and_in_other_orders() -> None:
    """With a fixed order of uplinks one host's packets would never wait for each other; with
    changing orders the last of a round may be the first of the next."""
    fabric = leaf_spine(2, 1, 4, host_gbps=100, fabric_gbps=25)
    routes = route([(0, 1, 4096 * 4000)], fabric, "spray")
    packet = 4096 * 8 / 25e9
    sent = send(routes, replace(HUGE, spraying="round_robin", window=1 << 20))
    assert 0 < sent.longest_wait[:4].max() <= packet
    assert sent.seconds[0] == pytest.approx(1000 * packet, rel=0.01), "a quarter by each"


def test_a_switch_with_two_ports_of_hosts_keeps_to_the_port() -> None:
    """A packet cannot leave by another plane than it came by: both ports carry equal bytes."""
    fabric = dual_plane(2, 2, 2, host_gbps=100)
    routes = route([(0, 2, 4096 * 4000)], fabric, "spray")
    for how in (replace(HUGE, spraying="adaptive"), replace(HUGE, spraying="round_robin")):
        one = simulate(routes, "packet", transport=replace(how, window=4000))
        assert one == pytest.approx(4096 * 4000 * 8 / fabric.host_up[0].sum(), rel=0.1)


def test_switches_choose_among_ways_that_work() -> None:
    fabric = fat_tree(2, 2, 2, 2, 2).without(Link("leaf0", "pod0.switch0"))
    routes = route([(0, 7, 4096 * 500), (1, 2, 4096 * 500)], fabric, "spray")
    for how in (replace(HUGE, spraying="adaptive"), replace(HUGE, spraying="round_robin")):
        sent = send(routes, how)
        assert sent.dropped == 0
        assert np.isfinite(sent.seconds).all()


def test_seeds_decide_turns() -> None:
    fabric = leaf_spine(8, 8, 8)
    again, same, other = (took(fabric, "round_robin", seed) for seed in (3, 3, 4))
    assert again == same != other
