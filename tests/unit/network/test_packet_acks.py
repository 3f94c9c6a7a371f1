"""Packets: headers, and acknowledgements that use a part of the links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from demands import permutation

from gradwire.extension import VARIABLE
from gradwire.network import Flows, leaf_spine, route, simulate
from gradwire.network.engines.packet import send
from gradwire.network.engines.transport import Transport

FAST = Transport(packet_bytes=1000, latency_ns=1.0)
"""On links of 8 Gbit/s a packet takes 1 µs."""
ENGINES = pytest.mark.parametrize("engine", ["", "twin"])


@ENGINES
@pytest.mark.parametrize("header", [0, 64, 1000])
def test_each_packet_has_its_header(
    engine: str, header: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty packets and a short one cross four links, each with its header."""
    monkeypatch.setenv(VARIABLE, engine)
    routes = route([(0, 2, 20_500)], leaf_spine(2, 2, 2, host_gbps=8))
    took = simulate(routes, "packet", transport=replace(FAST, header_bytes=header))
    full, last = 1000 + header, 500 + header
    assert took == pytest.approx(((20 + 3) * full + last) * 1e-9 + 4e-9)


def test_queues_and_marks_count_headers() -> None:
    """Two hosts send to one: with headers the queue overflows and marks, without it does not."""
    routes = route(Flows([0, 1], 2, 4000), leaf_spine(2, 2, 1, host_gbps=8))
    short = replace(FAST, queue_bytes=5000, mark_bytes=4000, timeout_us=50.0)
    without, with_headers = (send(routes, replace(short, header_bytes=h)) for h in (0, 1000))
    assert without.dropped == without.marked == 0
    assert with_headers.dropped > 0
    assert send(routes, replace(short, header_bytes=1000, queue_bytes=9000)).marked > 0


@ENGINES
@pytest.mark.parametrize(("bytes", "packets"), [(0, 1), (100, 1), (100, 4), (1000, 2)])
def test_acknowledgements_take_their_part_of_links(
    engine: str, bytes: int, packets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts send to each other: each link carries one's packets and the acknowledgements of
    the other's, apart from a rest at the last hop."""
    monkeypatch.setenv(VARIABLE, engine)
    routes = route([(0, 1, 2_000_000), (1, 0, 2_000_000)], leaf_spine(1, 2, 1, host_gbps=8))
    how = replace(FAST, ack_bytes=bytes, ack_packets=packets)
    took = send(routes, how).seconds
    assert took == pytest.approx([2e-6 * (1000 + bytes / packets)] * 2, rel=2e-3)


def test_a_link_that_idles_has_time_for_acknowledgements() -> None:
    """Traffic in one direction leaves the way back idle, so acknowledgements cost no time."""
    routes = route([(0, 1, 200_000)], leaf_spine(1, 2, 1, host_gbps=8))
    assert send(routes, replace(FAST, ack_bytes=900)).seconds == send(routes, FAST).seconds


def test_some_ways_back_meet() -> None:
    """Pinned paths are even, ways back are hashed: the link with most of those ends last."""
    fabric = leaf_spine(8, 8, 8)
    routes = route(permutation(fabric, 3, 1 << 22), fabric, "coloured")
    alone, each, some = (
        simulate(routes, "packet", transport=Transport(ack_bytes=a, ack_packets=k))
        for a, k in ((0, 1), (64, 1), (64, 4))
    )
    assert 1.03 < each / alone < 1.09
    assert (some - alone) == pytest.approx((each - alone) / 4, rel=0.2)


@ENGINES
@pytest.mark.parametrize("scheme", ["coloured", "spray"])
def test_one_for_more_packets_than_the_window_allows(
    scheme: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last packet of the window requests an acknowledgement, so no sender waits forever."""
    monkeypatch.setenv(VARIABLE, engine)
    routes = route([(0, 2, 30_000)], leaf_spine(2, 2, 2, host_gbps=8), scheme)
    how = replace(FAST, window=4, ack_packets=100)
    there_and_back = 4 * (1e-6 + 1e-9) + 3e-6 + 4e-9
    assert simulate(routes, "packet", transport=how) == pytest.approx(
        7 * there_and_back + 4 * (1e-6 + 1e-9) + 1e-6
    )


def test_what_is_lost_or_marked_is_told_at_once() -> None:
    """With full queues and few acknowledgements all arrives, and windows shrink as with many."""
    fabric = leaf_spine(2, 4, 1, host_gbps=8)
    routes = {s: route(Flows(np.arange(4), [4, 5, 6, 7], 300_000), fabric, s)
              for s in ("coloured", "spray")}  # fmt: skip
    for scheme, own in routes.items():
        lossy = replace(FAST, queue_bytes=9000, timeout_us=30.0, ack_packets=50, ack_bytes=64)
        sent = send(own, lossy)
        assert sent.dropped > 0
        assert np.isfinite(sent.seconds).all(), scheme
        each, few = (send(own, replace(FAST, mark_bytes=8000, slow_down=True, ack_packets=k))
                     for k in (1, 20))  # fmt: skip
        assert few.marked == pytest.approx(each.marked, rel=0.3)
        assert few.seconds.max() < 1.1 * each.seconds.max()


def test_few_acknowledgements_bring_few_paths_back() -> None:
    """Recycled paths beat random ones if every packet is acknowledged, and do not if every fourth
    is: uet-htsim gives 1.065, 1.113 and 1.147 times the bound for such traffic."""
    fabric = leaf_spine(8, 8, 8)
    routes = route(permutation(fabric, 3, 1 << 22), fabric, "spray")
    how = Transport(header_bytes=64, ack_bytes=64)
    each, few, random = (
        np.mean([simulate(routes, "packet", transport=own, seed=seed) for seed in range(3)])
        for own in (
            replace(how, spraying="recycled"), replace(how, spraying="recycled", ack_packets=4),
            how,
        )
    )  # fmt: skip
    assert each < 0.99 * random < 0.99 * few
