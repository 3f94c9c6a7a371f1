"""Packets: the connections of a host take turns at its link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from demands import permutation

from gradwire.extension import VARIABLE
from gradwire.network import Fabric, Flows, Routes, bounds, fat_tree, leaf_spine, route
from gradwire.network.engines.packet import send
from gradwire.network.engines.transport import Transport
from gradwire.network.native import core

NATIVE = pytest.mark.skipif(core() is None, reason="needs the extension")
FAST = Transport(packet_bytes=1000, latency_ns=1.0)
"""On links of 8 Gbit/s a packet takes 1 µs."""


def seconds(routes: Routes, how: Transport = FAST) -> list[float]:
    found: list[float] = send(routes, how).seconds.tolist()
    return found


@pytest.mark.parametrize("engine", ["", "twin"])
def test_a_short_message_waits_for_one_packet_of_each_other(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three go to three hosts; in order of starts the last would wait for whole windows."""
    monkeypatch.setenv(VARIABLE, engine)
    flows = Flows(0, [1, 2, 3], [60_000, 60_000, 5000])
    ends = seconds(route(flows, leaf_spine(1, 4, 1, host_gbps=8)))
    assert ends == pytest.approx([125e-6, 126e-6, 16e-6], abs=1e-8)


@pytest.mark.parametrize("engine", ["", "twin"])
def test_a_message_that_begins_later_has_its_turn_at_once(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, engine)
    routes = route(Flows(0, [1, 2], [60_000, 1000]), leaf_spine(1, 3, 1, host_gbps=8))
    how = replace(FAST, jitter_ns=40_000.0)
    sent = send(routes, how, seed=1)
    begins = np.rint(np.random.default_rng([1, 1]).random(2) * 40_000.0 * 1e3) / 1e12
    assert begins[1] > begins[0] + 5e-6, "the first has its whole window in line by then"
    last = sent.seconds[sent.pieces.tolist().index(1)]
    assert begins[1] + 2e-6 < last < begins[1] + 4e-6


def all_to_all(fabric: Fabric, bytes: int) -> Flows:
    """Every host sends to all others, beginning with host 0."""
    hosts = np.arange(fabric.hosts)
    source, target = np.repeat(hosts, fabric.hosts), np.tile(hosts, fabric.hosts)
    return Flows(source[source != target], target[source != target], bytes)


@NATIVE
@pytest.mark.parametrize("scheme", ["coloured", "spray"])
def test_an_all_to_all_does_not_grow_with_the_window(scheme: str) -> None:
    fabric = leaf_spine(4, 4, 4)
    flows = all_to_all(fabric, 1 << 18)
    routes = route(flows, fabric, scheme)
    took = [max(seconds(routes, Transport(window=w))) for w in (8, 64, 256)]
    assert took == [took[0]] * 3
    assert took[0] < 1.03 * bounds(flows, fabric).seconds


@NATIVE
def test_queue_pairs_of_a_host_do_not_send_bursts() -> None:
    """Messages of 1 MiB, with headers of 64 bytes: uet-htsim, a simulator whose network cards
    serve connections in turn, gives 92.5 µs."""
    fabric = leaf_spine(8, 8, 8)
    order = np.random.default_rng(3).permutation(64)
    flows = Flows(order, np.roll(order, -1), 4160 * 256)
    took, pinned = (
        max(seconds(route(flows, fabric, scheme), Transport(packet_bytes=4160)))
        for scheme in ("ethereal", "coloured")
    )
    assert took == pytest.approx(92.5e-6, rel=0.02)
    assert pinned < took < 1.05 * pinned


ONE_EACH = replace(
    FAST, packet_bytes=9000, latency_ns=500.0, slow_down=True, mark_bytes=40_000,
    queue_bytes=120_000, jitter_ns=50.0,
)  # fmt: skip
BEFORE = {  # picoseconds: last end, all ends, all longest waits; events, dropped, marked
    ("two tiers", "coloured", "random"): (28209721, 415437807, 18716880, 2361, 0, 0),
    ("two tiers", "ecmp", "random"): (129429721, 763320289, 76739293, 2738, 148, 228),
    ("two tiers", "spray", "random"): (34421598, 468956276, 89228267, 2361, 0, 82),
    ("two tiers", "spray", "rotating"): (29626310, 421756015, 25549545, 2361, 0, 0),
    ("three tiers", "coloured", "random"): (63016533, 677148101, 75763230, 3329, 120, 228),
    ("three tiers", "ecmp", "random"): (131869721, 931306065, 100501933, 3513, 164, 317),
    ("three tiers", "spray", "recycled"): (139045166, 1509046982, 103134873, 3166, 106, 242),
}
"""The results from when a host's link served packets in the order of their arrival."""


@NATIVE
@pytest.mark.parametrize("case", BEFORE)
def test_who_has_one_connection_waits_for_nobody(case: tuple[str, str, str]) -> None:
    tiers, scheme, spraying = case
    fabric = leaf_spine(4, 4, 4) if tiers == "two tiers" else fat_tree(2, 2, 4, 2, 2)
    how = replace(ONE_EACH, spraying=spraying)  # type: ignore[arg-type]
    sent = send(route(permutation(fabric, 5, 300_001), fabric, scheme, 7), how, seed=7)
    times = (sent.seconds.max(), sent.seconds.sum(), sent.longest_wait.sum())
    assert (*(round(time * 1e12) for time in times), *sent[3:6]) == BEFORE[case]
