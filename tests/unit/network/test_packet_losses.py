"""Full queues: which packets are trimmed, which are sent again, and how soon."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradwire.extension import VARIABLE
from gradwire.network import Flows, leaf_spine, route
from gradwire.network.engines.packet import send
from gradwire.network.engines.transport import Transport

SHORT = Transport(packet_bytes=1000, latency_ns=1.0, queue_bytes=1000)
"""On links of 8 Gbit/s a packet takes 1 µs; a queue holds only the packet that is being sent."""
FABRIC = leaf_spine(2, 3, 2, host_gbps=8)
ENGINES = pytest.mark.parametrize("engine", ["", "twin"])


@ENGINES
def test_what_is_trimmed_is_sent_again_at_once(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two packets meet below a leaf at 1.001 µs. One is trimmed; its header has one link to go and
    the answer two: it is sent again at 1.004 and arrives two packets later, at 3.006. A timer
    would have waited for 100 µs."""
    monkeypatch.setenv(VARIABLE, engine)
    routes = route(Flows([0, 1], [2, 2], 1000), FABRIC)
    sent = send(routes, replace(SHORT, trim=True))
    assert sent.seconds.tolist() == pytest.approx([2.002e-6, 3.006e-6], abs=1e-12)
    assert (sent.trimmed, sent.dropped) == (1, 0)
    lost = send(routes, SHORT)
    assert lost.seconds.tolist() == pytest.approx([2.002e-6, 103.003e-6], abs=1e-12)
    assert (lost.trimmed, lost.dropped) == (0, 1)


def test_headers_leave_room_for_what_they_announce(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 hosts send to one: each header is answered at once by a packet, which is trimmed."""
    fabric = leaf_spine(4, 64, 64)
    flows = Flows(list(range(64, 192)), [0] * 128, 262_144)
    how = Transport(header_bytes=64, queue_bytes=65_536, trim=True, spraying="random")
    sent = send(route(flows, fabric, "spray"), how)
    least = 128 * 262_144 * 8 / float(fabric.host_down.max())
    assert sent.seconds.max() < 3 * least
    assert sent.trimmed > 0
    assert sent.dropped > 0
    few = Flows(list(range(64, 80)), [0] * 16, 65_536)
    found = []
    for engine in ("", "twin"):
        monkeypatch.setenv(VARIABLE, engine)
        own = send(route(few, fabric, "spray"), replace(how, header_bytes=512, queue_bytes=8192))
        found.append((own.seconds.tolist(), own.trimmed, own.dropped))
    assert found[0] == found[1]
    assert found[0][2] > 0


@ENGINES
def test_headers_take_their_part_of_links(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trimmed packet's header, 500 bytes, is sent before the next packet."""
    monkeypatch.setenv(VARIABLE, engine)
    routes = route(Flows([0, 1], [2, 2], 1000), FABRIC)
    how = replace(SHORT, trim=True, header_bytes=500, queue_bytes=2000)
    sent = send(routes, how)
    # At the leaf at 1.501; the first is through at 3.002. The other is back at 3.005 as the link
    # becomes free, and owes it half a microsecond.
    assert sent.seconds.tolist() == pytest.approx([3.002e-6, 5.002e-6], abs=5e-9)


@pytest.mark.parametrize("scheme", ["coloured", "spray"])
def test_trimming_helps_where_many_meet(scheme: str) -> None:
    """Eight send to one: it takes the least time and a round trip or two; timers cost more."""
    fabric = leaf_spine(3, 4, 4, host_gbps=8)
    routes = route(Flows(np.arange(8), 8, 50_000), fabric, scheme)
    how = replace(SHORT, queue_bytes=8000, window=8, selective=True)
    cut, lost = send(routes, replace(how, trim=True)), send(routes, how)
    ideal = 8 * 50_000 * 8 / 8e9
    assert cut.trimmed > 0
    assert cut.dropped == 0
    assert ideal < cut.seconds.max() < 1.05 * ideal
    assert lost.seconds.max() > 1.05 * cut.seconds.max()


def test_windows_shrink_by_what_is_trimmed() -> None:
    fabric = leaf_spine(3, 4, 4, host_gbps=8)
    routes = route(Flows(np.arange(8), 8, 200_000), fabric, "spray")
    how = replace(SHORT, queue_bytes=8000, mark_bytes=4000, window=32, trim=True)
    fixed, calm = send(routes, how), send(routes, replace(how, slow_down=True))
    assert 0 < calm.trimmed < 0.5 * fixed.trimmed


@ENGINES
def test_what_is_selective_sends_again_what_was_lost_and_no_more(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packet that arrives takes two link events and an acknowledgement, a lost one a link event
    and a timer, and each flow a start. Going back N sends others again, too."""
    monkeypatch.setenv(VARIABLE, engine)
    flows = Flows([0, 1, 2], [3, 3, 3], [20_000, 21_000, 23_000], 0, [0, 300, 600])
    routes = route(flows, leaf_spine(2, 4, 2, host_gbps=8))
    how = replace(SHORT, queue_bytes=9000, window=8)
    selective, back = send(routes, replace(how, selective=True)), send(routes, how)
    assert selective.dropped > 0
    assert selective.events == 64 * 3 + 2 * selective.dropped + 3
    assert back.events > 64 * 3 + 2 * back.dropped + 3
    assert np.isfinite(selective.seconds).all()


@ENGINES
def test_a_queue_for_less_than_a_packet_is_given_up(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender gives up, also with trimming; otherwise the run would never end."""
    monkeypatch.setenv(VARIABLE, engine)
    routes = route(Flows([0], [2], 1000), FABRIC)
    how = replace(SHORT, queue_bytes=10, window=2)
    for own, senders in (how, 1), (replace(how, trim=True), 2), (replace(how, selective=True), 2):
        sent = send(routes, own)
        assert np.isinf(sent.seconds).all()
        assert sent.trimmed == 0
        assert sent.dropped == 64 * senders


@ENGINES
def test_what_is_trimmed_is_sent_again_alone(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 64 packets meets a link half as fast, and a queue of four. If each header had
    all packets after it sent again, the queue would stay full of copies for ever."""
    monkeypatch.setenv(VARIABLE, engine)
    flows = Flows([0], [1], 256_000)
    routes = route(flows, leaf_spine(2, 1, 1, host_gbps=8, fabric_gbps=4))
    sent = send(routes, replace(SHORT, queue_bytes=4000, trim=True, window=64))
    assert sent.trimmed > 64
    assert sent.seconds.max() < 1.1 * 256_000 * 8 / 4e9


@ENGINES
def test_who_is_cut_off_time_and_again_does_not_give_up(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty connections to one host, through a queue of two packets, are cut off hundreds of times
    each. None gives up, as it would after 64 timers."""
    monkeypatch.setenv(VARIABLE, engine)
    flows = Flows(np.tile([0, 1, 2], 20), 3, 4000)
    routes = route(flows, leaf_spine(2, 4, 2, host_gbps=8))
    sent = send(routes, replace(SHORT, queue_bytes=2000, trim=True, window=4))
    assert sent.trimmed > 64 * 3
    assert np.isfinite(sent.seconds).all()
