"""The packet engine: against its twin, against theory, and with losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from demands import FABRICS, groups, permutation
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import NetworkError
from gradwire.extension import VARIABLE
from gradwire.network import (
    Fabric,
    Flows,
    Link,
    Outages,
    Routes,
    bounds,
    dual_plane,
    fat_tree,
    leaf_spine,
    outages,
    route,
    routed,
    simulate,
)
from gradwire.network.engines.packet import Sent, send, trace_of
from gradwire.network.engines.transport import CHOICES, Spraying, Transport
from gradwire.network.jobs import Jobs, together
from gradwire.network.native import core
from gradwire.network.outages import NONE
from gradwire.network.patterns import direct
from gradwire.network.simulate import simulate_jobs

NATIVE = pytest.mark.skipif(core() is None, reason="needs the extension")
FAST = Transport(packet_bytes=1000, latency_ns=1.0)
"""On links of 8 Gbit/s a packet takes 1 µs."""


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[Routes], Transport, Outages, int]:
    """Draws one job or two, on links of which one may die."""
    fabric: Fabric = draw(st.sampled_from([*FABRICS, dual_plane(3, 2, 2)]))
    if draw(st.booleans()):
        fabric = fabric.without(Link("leaf0", fabric.links[0].target))
    seed = draw(st.integers(0, 1000))
    dice = np.random.default_rng(seed)
    hosts, has_starts = draw(st.sampled_from([1, 2, fabric.hosts])), draw(st.booleans())
    traffic = [
        _flows(dice, fabric.hosts, draw(st.integers(1, 12)), hosts, has_starts)
        for _ in range(draw(st.integers(1, 2)))
    ]
    scheme = draw(st.sampled_from(["ecmp", "wrap", "spray", "spray", "ecmp_k(3)"]))
    transport = Transport(
        packet_bytes=draw(st.sampled_from([300, 1000])), window=draw(st.sampled_from([1, 4, 64])),
        latency_ns=draw(st.sampled_from([1.0, 500.0])), timeout_us=20.0,
        queue_bytes=draw(st.sampled_from([2000, 10**9])), mark_bytes=1500,
        spraying=draw(st.sampled_from(CHOICES[1:])), entropies=8,
        header_bytes=draw(st.sampled_from([0, 64])), ack_bytes=draw(st.sampled_from([0, 64, 700])),
        ack_packets=draw(st.sampled_from([1, 1, 3, 200])),
        band_bytes=draw(st.sampled_from([1, 1500])),
        slow_down=draw(st.booleans()), repath=draw(st.booleans()),
        jitter_ns=draw(st.sampled_from([0.0, 50.0])),
        exclude_us=draw(st.sampled_from([0.0, 5.0, 1e5])),
        trim=draw(st.booleans()), selective=draw(st.booleans()),
    )  # fmt: skip
    lost = {fabric.links[1]: draw(st.sampled_from([0.0, 1e-6, 5e-6]))}
    dying = draw(st.sampled_from([Outages(), Outages(lost), None]))
    if dying is None:
        try:
            dying = outages(traffic, fabric, scheme, lost, draw(st.sampled_from([0.0, 3e-5])), 1)
        except NetworkError:  # there is no other way
            dying = Outages(lost)
    return routed(traffic, fabric, scheme, seed), transport, dying, seed


def _flows(
    dice: np.random.Generator, there: int, n: int, senders: int, has_starts: bool
) -> Flows:  # fmt: skip
    source = dice.integers(0, senders, n)
    target = (source + dice.integers(1, there, n)) % there
    starts = dice.integers(0, 5000, n) * has_starts
    return Flows(source, target, dice.integers(1, 9000, n), dice.integers(0, 2, n), starts)


def by_both(
    jobs: Jobs, transport: Transport, dying: Outages = NONE, seed: int = 1
) -> tuple[Sent, Sent]:
    """Returns what the extension and what its twin computes."""
    native = send(jobs, transport, dying, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "twin")
        return native, send(jobs, transport, dying, seed)


@NATIVE
def test_windows_shrink_alike() -> None:
    """Eight hosts send to one: packets are marked, and windows shrink alike in both."""
    fabric = leaf_spine(3, 4, 2)
    routes = route([(source, 8, 200_000) for source in range(8)], fabric, "ecmp", 1)
    steady = replace(FAST, window=16, mark_bytes=4000)
    marked = []
    for transport in (steady, replace(steady, slow_down=True)):
        native, twin = by_both(routes, transport)
        assert native.seconds.tolist() == twin.seconds.tolist()
        assert native.marked == twin.marked
        marked.append(native.marked)
    assert 0 < marked[1] < 0.8 * marked[0]


@NATIVE
@given(jobs())
def test_the_twin_sends_every_packet_alike(
    job: tuple[list[Routes], Transport, Outages, int],
) -> None:
    native, twin = by_both(*job)
    assert native.seconds.tolist() == twin.seconds.tolist()
    assert native.longest_wait.tolist() == twin.longest_wait.tolist()
    assert native[3:] == twin[3:]


@NATIVE
@pytest.mark.parametrize("spraying", ["random", "recycled", "adaptive", "round_robin"])
@pytest.mark.parametrize(("window", "packets"), [(4, 3), (64, 1)])
@pytest.mark.parametrize(
    "fabric", [leaf_spine(2, 3, 2), fat_tree(2, 2, 2, 2, 2), dual_plane(3, 2, 2)]
)
def test_the_twin_is_alike_where_all_send_to_all(
    fabric: Fabric, window: int, packets: int, spraying: Spraying
) -> None:
    """Both agree for pinned and sprayed packets, with turns of hosts and slow acknowledgements."""
    how = Transport(
        packet_bytes=1000, header_bytes=64, window=window, ack_bytes=700, ack_packets=packets,
        latency_ns=90.0, spraying=spraying, band_bytes=1500, entropies=8,
    )  # fmt: skip
    hosts = np.arange(fabric.hosts)
    source, target = np.repeat(hosts, fabric.hosts), np.tile(hosts, fabric.hosts)
    own = source != target
    flows = Flows(source[own], target[own], 9_500 + 700 * source[own])
    for scheme in ("lpt", "spray"):
        native, twin = by_both(route(flows, fabric, scheme, 1), how)
        assert native.seconds.tolist() == twin.seconds.tolist()
        assert native.longest_wait.tolist() == twin.longest_wait.tolist()
        assert np.isfinite(native.seconds).all()


def alone(bytes: int, hops: int, rate: float = 8e9, transport: Transport = FAST) -> float:
    """Seconds of a message on an idle path: its bytes once, and a packet at every other hop."""
    last = bytes % transport.packet_bytes or transport.packet_bytes
    most = transport.packet_bytes if bytes > transport.packet_bytes else last
    return (bytes + (hops - 2) * most + last) * 8 / rate + hops * transport.latency_ns * 1e-9


@pytest.mark.parametrize(("target", "hops"), [(1, 2), (2, 4)])
@pytest.mark.parametrize("bytes", [1, 999, 1000, 20_000])
def test_a_message_alone_takes_what_its_bytes_take(target: int, hops: int, bytes: int) -> None:
    routes = route([(0, target, bytes)], leaf_spine(2, 2, 2, host_gbps=8))
    assert simulate(routes, "packet", transport=FAST) == pytest.approx(alone(bytes, hops))


def test_a_small_window_waits_for_what_comes_back() -> None:
    """With a window of one packet, each waits for the acknowledgement of the one before."""
    routes = route([(0, 2, 10_000)], leaf_spine(2, 2, 2, host_gbps=8))
    one = Transport(packet_bytes=1000, window=1, latency_ns=100.0)
    there = 4 * (1e-6 + 1e-7)
    assert simulate(routes, "packet", transport=one) == pytest.approx(10 * there + 9 * 4e-7)


@pytest.mark.parametrize("senders", [2, 5, 15])
def test_many_to_one_take_what_the_one_needs(senders: int) -> None:
    fabric = leaf_spine(4, 4, 4, host_gbps=8)
    routes = route(Flows(np.arange(1, senders + 1), 0, 50_000), fabric, "spray")
    took = simulate(routes, "packet", transport=FAST)
    ideal = senders * 50_000 * 8 / 8e9
    assert ideal < took < ideal + 6e-6


def test_a_parking_lot_keeps_both_links_busy() -> None:
    """Over one spine, leaf 0's uplink and leaf 2's downlink have two flows each, and one flow uses
    both. It waits twice, so it gets less than half, and the others end before it."""
    fabric = leaf_spine(3, 2, 1, host_gbps=8)
    routes = route(Flows([0, 1, 2], [4, 2, 5], 200_000), fabric)
    sent = send(routes, replace(FAST, window=16))
    assert sent.seconds[0] == pytest.approx(4e-4, rel=0.05)
    assert ((sent.seconds[1:] > 2.8e-4) & (sent.seconds[1:] < 4e-4)).all()


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_queue_of_chance_arrivals_waits_as_theory_says(load: float) -> None:
    """M/D/1: the mean wait is load / (2 (1 - load)) packets. Many hosts send one packet each to
    one; a packet's wait is its time beyond that of a packet alone."""
    dice = np.random.default_rng(5)
    arrivals = np.cumsum(dice.exponential(1 / load, 40_000))
    waits, free = [], 0.0
    for when in arrivals:  # the same queue, by Lindley's recursion
        waits.append(max(free - when, 0.0))
        free = max(free, when) + 1
    hosts = 400
    fabric = leaf_spine(2, hosts, 1, host_gbps=8).with_rates({})
    flows = Flows(np.arange(hosts) + hosts, 0, 1000)
    mean = []
    for batch in range(20):
        own = arrivals[batch * hosts : (batch + 1) * hosts] - arrivals[batch * hosts]
        mean.append(_mean_wait(route(flows, fabric, "spray"), own))
    expected = load / (2 * (1 - load))
    assert np.mean(mean) == pytest.approx(expected, rel=0.25)
    assert np.mean(waits) == pytest.approx(expected, rel=0.15)


def _mean_wait(routes: Routes, arrivals: np.ndarray) -> float:
    """The mean wait, in packets, at the spine's downlink."""
    from gradwire.network.engines import packet

    rows, own = packet._connections(together(routes), FAST, NONE, 0)
    order = np.argsort(arrivals, kind="stable")
    timed = own._replace(start=np.rint(arrivals[order] * 1e6).astype(np.int64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packet, "_connections", lambda *_: (rows, timed))
        sent = send(routes, FAST)
    return float(np.mean(sent.seconds * 1e6 - timed.start / 1e6)) - alone(1000, 4) * 1e6


@pytest.mark.parametrize("spraying", CHOICES[1:])
def test_sprayed_packets_use_all_paths(spraying: str) -> None:
    fabric = leaf_spine(4, 4, 4, host_gbps=8)
    flows = permutation(fabric, 3, 400_000)
    how = replace(FAST, spraying=spraying)  # type: ignore[arg-type]
    took = simulate(route(flows, fabric, "spray"), "packet", transport=how)
    hashed = max(
        simulate(route(flows, fabric, "ecmp", s), "packet", transport=how) for s in range(4)
    )
    assert 4e-4 < took < 6e-4 < hashed


def test_pinned_paths_without_collisions_need_no_queue() -> None:
    """No packet waits for more than one other."""
    fabric = leaf_spine(8, 8, 8, host_gbps=8)
    sent = send(route(permutation(fabric, 3, 300_000), fabric, "coloured"), FAST)
    assert sent.seconds.max() == pytest.approx(alone(300_000, 4), rel=0.01)
    assert sent.longest_wait.max() <= 1e-6
    sprayed = send(route(permutation(fabric, 3, 300_000), fabric, "spray"), FAST)
    assert sprayed.longest_wait.max() > 5e-6


def test_a_full_queue_drops_and_all_arrives_in_the_end() -> None:
    fabric = leaf_spine(2, 4, 1, host_gbps=8)
    short = replace(FAST, queue_bytes=4000, timeout_us=30.0)
    for scheme in ("coloured", "spray"):
        flows = Flows(np.arange(4), [4, 5, 6, 7], 100_000)
        sent = send(route(flows, fabric, scheme), short)
        assert sent.dropped > 0
        assert np.isfinite(sent.seconds).all()
        assert sent.seconds.max() >= 4 * 100_000 * 8 / 8e9
        assert sent.longest_wait.max() <= 4e-6


def test_windows_shrink_by_marks() -> None:
    """With shorter windows queues are short and few packets are marked, but no link idles."""
    fabric = leaf_spine(2, 8, 2, host_gbps=8)
    routes = route(Flows(np.arange(8), np.arange(8) + 8, 800_000), fabric)
    loud, calm = (
        send(routes, replace(FAST, mark_bytes=10_000, slow_down=calm)) for calm in (False, True)
    )
    assert loud.marked > 6000
    assert 0 < calm.marked < 0.6 * loud.marked
    assert calm.seconds.max() < 1.05 * loud.seconds.max()


def failing(scheme: str, **how: object) -> tuple[Sent, float]:
    fabric = leaf_spine(2, 4, 4, host_gbps=8)
    routes = route(Flows(np.arange(4), np.arange(4) + 4, 400_000), fabric, scheme)
    lost = Link("leaf0", "spine1")
    transport = replace(FAST, timeout_us=50.0, **how)  # type: ignore[arg-type]
    return send(routes, transport, Outages({lost: 100e-6})), send(routes, transport).seconds.max()


def test_after_a_failure_connections_go_another_way() -> None:
    sent, before = failing("coloured")
    assert 0 < sent.dropped <= 64, "no more than a window"
    assert before + 40e-6 < sent.seconds.max() < 2 * before
    assert (sent.seconds <= before * 1.001).sum() == 2, "but for one that shares its path now"


@pytest.mark.parametrize("spraying", ["random", "rotating", "recycled", "round_robin"])
def test_sprayed_packets_are_sent_again(spraying: str) -> None:
    sent, before = failing("spray", spraying=spraying)
    assert sent.dropped > 0
    assert before < sent.seconds.max() < np.inf


def test_switches_that_look_at_queues_see_what_failed() -> None:
    """Only the packets on the link are lost; later ones take other links."""
    sent, before = failing("spray", spraying="adaptive")
    assert 0 < sent.dropped < 16
    assert before < sent.seconds.max() < 1.4 * before, "three of four uplinks are left"


def test_recycled_paths_avoid_what_failed() -> None:
    recycled, _ = failing("spray", spraying="recycled")
    random, _ = failing("spray", spraying="random")
    assert recycled.dropped < random.dropped


@pytest.mark.parametrize("engine", ["", "twin"])
@pytest.mark.parametrize(("exclude_us", "windows"), [(0.0, 3), (1.0, 3), (1e5, 1)])
def test_a_host_remembers_where_a_timer_ran_out(
    exclude_us: float, windows: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three messages in turn are all pinned to a path that is down from the start."""
    monkeypatch.setenv(VARIABLE, engine)
    fabric = leaf_spine(2, 1, 4, host_gbps=8)
    routes = route([(0, 1, 64_000, step) for step in range(3)], fabric, "coloured")
    assert len(set(routes.path.tolist())) == 1
    lost = Link("leaf0", f"spine{routes.path[0]}")
    how = replace(FAST, timeout_us=50.0, exclude_us=exclude_us)
    sent = send(routes, how, Outages({lost: 0.0}))
    assert sent.dropped == 64 * windows
    assert np.isfinite(sent.seconds).all()


def test_what_is_avoided_is_so_for_the_host_alone() -> None:
    """Four hosts are pinned to a path that is down, to two leaves: each must find out itself."""
    fabric = leaf_spine(3, 4, 4, host_gbps=8)
    flows = Flows(np.arange(8) % 4, [4, 5, 6, 7, 8, 9, 10, 11], 10_000, np.repeat([0, 1], 4))
    routes = route(flows, fabric, "coloured")
    routes = replace(routes, path=np.ones_like(routes.path))
    how = replace(FAST, timeout_us=50.0, exclude_us=1e5)
    sent = send(routes, how, Outages({Link("leaf0", "spine1"): 0.0}))
    assert sent.dropped == 8 * 10


def test_where_all_paths_are_avoided_one_is_taken() -> None:
    fabric = leaf_spine(2, 1, 2, host_gbps=8)
    routes = route([(0, 1, 64_000)], fabric, "coloured")
    lost = {Link("leaf0", f"spine{i}"): 0.0 for i in range(2)}
    sent = send(routes, replace(FAST, timeout_us=50.0, exclude_us=1e5), Outages(lost))
    assert sent.dropped == 64 * 64


def test_who_cannot_go_another_way_gives_up() -> None:
    sent, _ = failing("coloured", repath=False)
    assert np.isinf(sent.seconds).sum() == 1
    fabric = leaf_spine(2, 1, 1, host_gbps=8)
    routes = route([(0, 1, 90_000)], fabric)
    with pytest.raises(NetworkError, match="1 never do, as they were lost again and again"):
        simulate(routes, "packet", transport=replace(FAST, queue_bytes=10, packet_bytes=1000))


def test_steps_wait_for_each_other() -> None:
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    routes = route([(0, 2, 10_000, 0), (2, 0, 10_000, 5)], fabric)
    assert simulate(routes, "packet", transport=FAST) == pytest.approx(2 * alone(10_000, 4))


@pytest.mark.parametrize("engine", ["flow", "packet"])
def test_flows_start_so_long_after_their_step_began(engine: str) -> None:
    """The second step starts 50 µs after the first has arrived, whose last flow starts after 30
    µs. Pieces that differ only in their starts are not merged."""
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    flows = Flows([0, 1, 2], [2, 3, 0], 10_000, [0, 0, 1], [0, 30_000, 50_000])
    took = simulate(route(flows, fabric), engine, transport=FAST)  # type: ignore[arg-type]
    assert took == pytest.approx(30e-6 + 10e-6 + 50e-6 + 10e-6, abs=7e-6)
    late = Flows([0, 0], [2, 2], 10_000, 0, [0, 90_000])
    took = simulate(route(late, fabric), engine, transport=FAST)  # type: ignore[arg-type]
    assert took == pytest.approx(100e-6, abs=4e-6)


@NATIVE
def test_a_trace_begins_where_the_step_before_has_ended() -> None:
    """Ten packets of 1 µs and four links' latencies; 1 µs later, the next step's two."""
    flows = Flows([0, 1, 0], [2, 3, 2], [10_000, 5_000, 2_000], [0, 0, 1], [0, 0, 1000])
    routes = route(flows, leaf_spine(2, 2, 2, host_gbps=8), "lpt")
    trace = trace_of([routes], FAST)
    (ended,) = simulate_jobs([routes], "packet", transport=FAST)
    first, other, last = sorted(trace.spans, key=lambda span: -span.bytes)
    assert [s.rank for s in (first, other, last)] == [0, 1, 0]
    assert [s.bytes for s in (first, other, last)] == [10_000, 5_000, 2_000]
    assert first.start_seconds == other.start_seconds == 0.0
    assert first.end_seconds > other.end_seconds > 0
    assert last.start_seconds == pytest.approx(first.end_seconds + 1e-6)
    assert last.end_seconds == pytest.approx(ended)
    assert last.label == "to host 2"


def test_packets_take_what_fair_shares_take() -> None:
    """With long flows and small packets the three engines agree."""
    fabric = leaf_spine(4, 4, 4, host_gbps=8)
    routes = route(groups(fabric, 4, 1, 500_000), fabric, "ecmp", 2)
    packets = simulate(routes, "packet", transport=replace(FAST, window=256))
    assert packets == pytest.approx(simulate(routes, "flow"), rel=0.1)
    assert packets >= simulate(routes)


def test_pieces_of_parts_of_bytes_are_sent_as_whole_ones() -> None:
    fabric = leaf_spine(2, 2, 3, host_gbps=8)
    sent = send(route([(0, 2, 1000)], fabric, "min_split"), FAST)
    assert len(sent.seconds) == 3
    assert np.isfinite(sent.seconds).all()


def test_links_that_are_not_there_do_not_fail() -> None:
    routes = route([(0, 2, 1)], leaf_spine(2, 2, 2))
    with pytest.raises(NetworkError, match="must be one of the topology"):
        send(routes, outages=Outages({Link("leaf0", "leaf1"): 0.0}))


def test_starts_do_not_follow_the_order_that_a_scheme_drew() -> None:
    """Ethereal shuffles flows by the seed; if starts were drawn alike, all hosts would begin with
    the same spine, and take 1.8 × the bound."""
    fabric = leaf_spine(16, 16, 16, host_gbps=400)
    there = direct(256, 1 << 23).steps()[0][0]
    flows = direct(256, 1 << 23)[there]
    how = Transport(packet_bytes=9000, jitter_ns=50)
    took = send(route(flows, fabric, "ethereal", 0), how, seed=0).seconds.max()
    assert took < 1.3 * bounds(flows, fabric).seconds


def test_below_a_leaf_all_ports_are_used() -> None:
    """With two ports it takes half as long as with one, as with fair shares."""
    fabric = dual_plane(2, 2, 2, host_gbps=100)
    flows = Flows([0, 1, 0], [1, 0, 2], [4096 * 2000, 4096 * 1000, 4096 * 10])
    routes = route(flows, fabric, "lpt")
    sent = send(routes, Transport(queue_bytes=1 << 40, mark_bytes=1 << 40))
    assert sorted(sent.pieces) == list(range(len(routes.flow)))
    last = sent.seconds[list(sent.pieces).index(int(np.flatnonzero(routes.flow == 0)[0]))]
    assert last == pytest.approx(simulate(routes, "flow"), rel=0.02)
    assert last == pytest.approx(4096 * 2000 * 8 / fabric.host_up[0].sum(), rel=0.02)
