"""Links that die while traffic runs: which packets are lost, who waits, and which paths follow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from demands import permutation

from gradwire.errors import NetworkError
from gradwire.extension import VARIABLE
from gradwire.network import (
    Fabric,
    Flows,
    Link,
    Outages,
    Routes,
    dual_plane,
    fat_tree,
    leaf_spine,
    outages,
    route,
    simulate,
)
from gradwire.network.engines.flow import transfers_of
from gradwire.network.engines.packet import Sent, send
from gradwire.network.engines.transport import Spraying, Transport
from gradwire.network.outages import paths_after

FAST = Transport(packet_bytes=1000, latency_ns=1.0, window=200, timeout_us=30.0)
"""On links of 8 Gbit/s a packet takes 1 µs to send, and 1 ns to travel a link."""
ENGINES = pytest.mark.parametrize("engine", ["", "twin"])


def one_message(repath: bool, converged: float) -> Sent:
    """Sends 100 packets by one of two spines, whose uplink dies after 50.5 µs. Packet 49 is on it
    then, and 50 to 99 are sent into it: 51 are lost."""
    fabric = leaf_spine(2, 1, 2, host_gbps=8)
    routes = route([(0, 1, 100_000)], fabric, "coloured")
    lost = {Link("leaf0", f"spine{routes.path[0]}"): 50.5e-6}
    dying = outages([routes.flows], fabric, "coloured", lost, converged)
    return send(routes, replace(FAST, repath=repath), dying)


@ENGINES
def test_who_cannot_take_another_path_waits_for_routing(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first loss is at 51.002 µs, and its timer runs out at 81.002. The host's link is free at
    100, so all 51 are sent again; the first is lost at 101.001, and so on at 131.001 and 151. At
    182.001 routing has converged (150.5): what is sent from 202 on takes 51 packets, and three
    more hops for the last."""
    monkeypatch.setenv(VARIABLE, engine)
    sent = one_message(False, 100e-6)
    assert sent.dropped == 3 * 51
    assert sent.seconds.max() == pytest.approx((202 + 51 + 3.004) * 1e-6, abs=1e-10)


@ENGINES
def test_who_can_does_not(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, engine)
    sent = one_message(True, 100e-6)
    assert sent.dropped == 51
    assert sent.seconds.max() == pytest.approx((100 + 51 + 3.004) * 1e-6, abs=1e-10)


@ENGINES
def test_nobody_gives_up_before_routing_has_converged(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred tries fail before it has; without routing a connection gives up after 64."""
    monkeypatch.setenv(VARIABLE, engine)
    sent = one_message(False, 100 * 51e-6)
    assert 51 * 90 < sent.dropped < 51 * 110
    assert np.isfinite(sent.seconds).all()
    fabric = leaf_spine(2, 1, 2, host_gbps=8)
    routes = route([(0, 1, 100_000)], fabric, "coloured")
    lost = Outages({Link("leaf0", f"spine{routes.path[0]}"): 50.5e-6})
    assert np.isinf(send(routes, replace(FAST, repath=False), lost).seconds).all()


@ENGINES
@pytest.mark.parametrize("off", [-1, 0, 1], ids="{} ps".format)
def test_nobody_gives_up_when_routing_converges_with_the_last_timer(
    engine: str, off: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One packet is sent every 101.01 µs into a link that is dead from the start."""
    monkeypatch.setenv(VARIABLE, engine)
    fabric = leaf_spine(2, 1, 2, host_gbps=8)
    routes = route([(0, 1, 1000)], fabric, "ecmp")
    dead = {Link("leaf0", f"spine{routes.path[0]}"): 0.0}
    cycle = 1_000_000 + 10_000 + 100_000_000  # its serialization, the way, the timer
    dying = outages([routes.flows], fabric, "coloured", dead, (64 * cycle + off) * 1e-12)
    how = replace(FAST, window=1, repath=False, timeout_us=100.0, latency_ns=10.0)
    assert np.isfinite(send(routes, how, dying).seconds).all()


@ENGINES
@pytest.mark.parametrize("spraying", ["round_robin", "adaptive"])
@pytest.mark.parametrize("topology", [dual_plane(2, 2, 1), fat_tree(2, 2, 2, 2, 2)], ids=str)
def test_what_is_under_way_where_no_path_is_left_is_lost(
    engine: str, spraying: Spraying, topology: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch that chooses paths loses its packets if none is left once routing has converged."""
    monkeypatch.setenv(VARIABLE, engine)
    flows = Flows([0], [topology.hosts - 1], 400_000)
    named = [link for link in topology.links if "host" not in f"{link}"]
    last = [link for link in named if str(link.target).startswith(f"leaf{topology.leaves - 1}")]
    dying = outages([flows], topology, "spray", {last[0]: 5e-6}, 1e-6)
    how = Transport(spraying=spraying, timeout_us=20.0)
    sent = send(route(flows, topology, "spray"), how, dying)
    assert np.isfinite(sent.seconds).all()


@ENGINES
def test_a_timer_of_the_old_path_does_not_move_who_has_a_new_one(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routing converges before timers run out: its new path is kept. All others are slow."""
    monkeypatch.setenv(VARIABLE, engine)
    fabric = leaf_spine(2, 1, 8, host_gbps=8)
    fast = {"leaf0", "leaf1", "spine2", "spine5"}
    slow = {link: 8 * 10**8 for link in fabric.links if not {*link[:2]} <= fast}
    routes = route([(0, 1, 100_000)], fabric.with_rates(slow), "coloured")
    routes = replace(routes, path=np.array([2]))
    after = replace(routes, path=np.array([5]))
    sent = send(routes, FAST, Outages({Link("leaf0", "spine2"): 50.5e-6}, [(60e-6, after)]))
    assert sent.seconds.max() == pytest.approx((100 + 51 + 3.004) * 1e-6, abs=1e-10)


@ENGINES
@pytest.mark.parametrize("spraying", ["random", "rotating", "recycled", "round_robin"])
def test_sprayed_packets_avoid_what_failed_once_routing_has_converged(
    spraying: Spraying, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With convergence at once it is as on a fabric without the link, whose paths are
    renumbered."""
    monkeypatch.setenv(VARIABLE, engine)
    fabric = leaf_spine(2, 2, 4, host_gbps=8)
    lost = {Link("spine1", "leaf1"): 0.0}
    flows, how = Flows([0, 1], [2, 3], 40_000), replace(FAST, spraying=spraying)
    sent = send(
        route(flows, fabric, "spray"),
        how,
        outages([flows], fabric, "spray", lost, 0.0),
    )
    assert sent.dropped == 0
    late = send(route(flows, fabric, "spray"), how, outages([flows], fabric, "spray", lost, 1e-3))
    assert late.dropped > 0
    assert np.isfinite(late.seconds).all()
    assert send(route(flows, fabric.without(*lost), "spray"), how).dropped == 0


@pytest.mark.parametrize("spraying", ["random", "rotating", "recycled"])
def test_hosts_that_spray_may_remember_what_failed(spraying: Spraying) -> None:
    fabric = leaf_spine(2, 2, 4, host_gbps=8)
    flows, lost = Flows([0, 1], [2, 3], 4_000_000), {Link("spine1", "leaf1"): 0.0}
    dropped = []
    for exclude_us in (0.0, 1e5):
        how = replace(FAST, spraying=spraying, exclude_us=exclude_us, window=16)
        sent = send(route(flows, fabric, "spray"), how, Outages(lost))
        assert np.isfinite(sent.seconds).all()
        dropped.append(sent.dropped)
    assert dropped[1] <= 2 * 16
    assert dropped[1] < dropped[0]


@ENGINES
@pytest.mark.parametrize(("converged", "took"), [([140e-6], 4.004e-6), ([], 22.004e-6)])
def test_what_a_host_avoided_is_forgotten_when_routing_has_converged(
    converged: list[float], took: float, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two packets meet in a queue for one: the second host's is lost at 1.001 µs, sent again by
    the other, slow path at 31.001, and arrives at 53.005. Its next message, 100 µs later, is
    pinned to the fast path, which the host has avoided since."""
    monkeypatch.setenv(VARIABLE, engine)
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    slow = {link: 8 * 10**8 for link in fabric.links if "spine1" in link}
    flows = Flows([0, 1, 1], [2, 3, 3], 1000, [0, 0, 1], [0, 0, 100_000])
    routes = route(flows, fabric.with_rates(slow), "coloured")
    routes = replace(routes, path=np.zeros_like(routes.path))
    how = replace(FAST, queue_bytes=1000, exclude_us=1e5)
    sent = send(routes, how, Outages({}, [(when, routes) for when in converged]))
    assert sent.dropped == 1
    assert sent.seconds.max() == pytest.approx(153.005e-6 + took, abs=2e-9)


def two(scheme: str) -> tuple[Routes, Fabric]:
    """Two flows of a second each: each alone on its spine, or both sprayed over both."""
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    routes = route(Flows([0, 1], [2, 3], 10**9), fabric, scheme)
    return routes, fabric


@ENGINES
@pytest.mark.parametrize(
    ("scheme", "ends"),
    [
        # The one stands still from 0.25 to 0.75, then both have a half. The other has 0.25 left of
        # a second, and takes twice that; the one has 0.75 left, of which that is 0.25.
        ("coloured", [1.25, 1.75]),
        # From 0.25 on both have a half.
        ("spray", [1.75, 1.75]),
    ],
)
def test_rates_change_when_a_link_dies_and_when_routing_has_converged(
    scheme: str, ends: list[float], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, engine)
    routes, fabric = two(scheme)
    dying = outages([routes.flows], fabric, scheme, {Link("leaf0", "spine1"): 0.25}, 0.5)
    from gradwire.network.engines.flow import transfers_of
    from gradwire.network.engines.maxmin import run

    assert sorted(run(transfers_of(routes, dying)).end.tolist()) == pytest.approx(ends)
    assert simulate(routes, "flow", outages=dying) == pytest.approx(ends[-1])
    assert simulate(routes, "flow") == pytest.approx(1.0)


def test_packets_take_what_fair_shares_take_when_a_link_dies() -> None:
    """The same in milliseconds: a timer wakes a waiting flow within a hundredth of one."""
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    flows = Flows([0, 1], [2, 3], 10**6)
    lost = {Link("leaf0", "spine1"): 0.25e-3}
    for scheme in ("coloured", "spray"):
        dying = outages([flows], fabric, scheme, lost, 0.5e-3)
        how = replace(FAST, window=64, timeout_us=10.0, repath=False, exclude_us=1e6)
        packets = simulate(
            route(flows, fabric, scheme), "packet", transport=how, outages=dying
        )  # fmt: skip
        shares = simulate(route(flows, fabric, scheme), "flow", outages=dying)
        assert packets == pytest.approx(shares, rel=0.06), scheme


def test_failures_one_after_the_other() -> None:
    """Two of four spines fail in turn: routing goes around the first, then around both."""
    fabric = leaf_spine(2, 4, 4, host_gbps=8)
    flows = Flows(np.arange(4), np.arange(4) + 4, 10**9)
    lost = {Link("leaf0", "spine0"): 0.1, Link("leaf0", "spine1"): 0.2}
    dying = outages([flows], fabric, "coloured", lost, 0.0)
    assert [when for when, _ in dying.converged] == [0.1, 0.2]
    took = simulate(route(flows, fabric, "coloured"), "flow", outages=dying)
    # 0.1 s alone, then at least two flows on one spine for 0.1 s, then two on each.
    assert 1.8 < took <= 2.0
    after = [own[0] for _, own in dying.converged]  # type: ignore[index]
    assert 0 not in after[0].path
    assert not {0, 1} & set(after[1].path.tolist())


@pytest.mark.parametrize("scheme", ["coloured", "ethereal", "ecmp_k(4)", "wrap", "spray", "lpt"])
def test_a_piece_goes_where_its_bytes_go(scheme: str) -> None:
    fabric = leaf_spine(4, 4, 8)
    flows = permutation(fabric, 3, 1_000_000)
    before = route(flows, fabric, scheme)
    assert paths_after(before, before).tolist() == before.path.tolist()
    after = route(flows, fabric.without("spine3"), scheme)
    own = paths_after(before, after)
    assert (own != 3).all()
    assert ((own == before.path) | (before.path >= 0)).all(), "what needs no path has none"
    for flow in range(len(flows)):
        assert set(own[before.flow == flow]) <= set(after.path[after.flow == flow])
        many = [
            len(set(path[of.flow == flow].tolist()))
            for of, path in ((before, own), (before, before.path), (after, after.path))
        ]
        assert many[0] >= min(many[1:]) - 1


def test_it_is_the_middle_byte_that_says_where() -> None:
    """A piece takes the path of its middle byte: 250 and 750 of 1000, in 200, 200 and 600."""
    fabric = leaf_spine(2, 2, 4)
    flows, path = Flows([1, 0], [3, 2], [7, 1000]), np.array([3, 1, 0, 2])
    halves = Routes(fabric, flows, np.array([1, 1, 0]), path[:3], np.array([500, 500, 7]))
    after = Routes(fabric, flows, np.array([1, 1, 0, 1]), path, np.array([200, 200, 7, 600]))
    assert paths_after(halves, after).tolist() == [1, 2, 0]


def test_cables_and_switches_fail_by_name() -> None:
    fabric, flows = leaf_spine(2, 2, 2), Flows([0], [2], 1000)
    up, down = Link("leaf0", "spine0"), Link("spine0", "leaf0")
    assert outages([flows], fabric, "ecmp", {"leaf0-spine0": 0.5}).fails == {up: 0.5, down: 0.5}
    found = outages([flows], fabric, "ecmp", {"spine0": 0.5, "spine0-leaf0": 0.25})
    assert found.fails[up] == found.fails[down] == 0.25
    assert found.fails[Link("leaf1", "spine0")] == 0.5
    assert (fabric.without("leaf0-spine0").rates == fabric.without(up, down).rates).all()
    assert fabric.named(down) == [down]


def test_what_cannot_be_is_refused() -> None:
    fabric = leaf_spine(2, 2, 2)
    flows = Flows([0], [2], 1000)
    routes, link = route(flows, fabric), Link("leaf0", "spine0")
    for when in (-1.0, float("nan"), float("inf")):
        with pytest.raises(NetworkError, match="a link must fail at second 0 or later"):
            outages([flows], fabric, "ecmp", {link: when})
        with pytest.raises(NetworkError, match="must fail at second 0 or later; got Link"):
            Outages({link: when})
        with pytest.raises(NetworkError, match="routing must converge"):
            outages([flows], fabric, "ecmp", {link: 0.0}, when)
    with pytest.raises(NetworkError, match="must converge at second 2 or later; got one at 1"):
        Outages({}, [(2.0, routes), (1.0, routes)])
    with pytest.raises(NetworkError, match="got 'leaf0-leaf1'"):
        outages([flows], fabric, "ecmp", {Link("leaf0", "leaf1"): 0.0})
    with pytest.raises(NetworkError, match="0 and 2 have none"):
        outages([flows], fabric, "ecmp", {link: 0.0, Link("leaf0", "spine1"): 0.5})
    all_of_it = Outages({link: 0.0, Link("leaf0", "spine1"): 0.0})
    with pytest.raises(NetworkError, match="0 and 2 have none"):
        simulate(route(flows, fabric, "spray"), "flow", outages=all_of_it)
    with pytest.raises(NetworkError, match="1 of 1 never do"):
        simulate(routes, "flow", outages=all_of_it)
    with pytest.raises(NetworkError, match="before and after a failure must be of the same"):
        send(routes, outages=Outages({}, [(0.0, route(Flows([0], [3], 1000), fabric))]))
    for other in (leaf_spine(2, 2, 99), leaf_spine(4, 1, 2), dual_plane(2, 2, 2)):
        elsewhere = Outages({}, [(0.0, route(flows, other))])
        for read in (send, transfers_of):
            with pytest.raises(NetworkError, match="must be on one topology, whose links may"):
                read(routes, outages=elsewhere)
    for read in (send, transfers_of):
        with pytest.raises(NetworkError, match="must have pinned paths after a failure, too"):
            read(routes, outages=Outages({}, [(0.0, route(flows, fabric, "spray"))]))
    with pytest.raises(NetworkError, match="need an engine that simulates time; got 'static'"):
        simulate(routes, "static", outages=Outages({link: 0.0}))
    with pytest.raises(NetworkError, match=r"must be Routes; got Flows\(1.* Route the flows"):
        simulate(flows)  # type: ignore[arg-type]
    with pytest.raises(NetworkError, match="must be a Transport; got 'spray'"):
        simulate(routes, "packet", transport="spray")  # type: ignore[arg-type]
