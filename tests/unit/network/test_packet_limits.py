"""Packets: invalid settings are refused, work is bounded, and Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from gradwire.errors import NetworkError
from gradwire.extension import VARIABLE
from gradwire.network import Flows, Link, Outages, leaf_spine, native, route, simulate
from gradwire.network.engines import packet, transport
from gradwire.network.engines.packet import send
from gradwire.network.engines.transport import Transport
from gradwire.network.native import core

NATIVE = pytest.mark.skipif(core() is None, reason="needs the extension")
BOTH = pytest.mark.parametrize("engine", ["", "twin"])
HUGE = 10**30


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"window": 0}, "in a transport window must be a whole number, 1 to"),
        ({"packet_bytes": 1.5}, "packet_bytes must be a whole number"),
        *(({name: HUGE}, f"{name} must be a whole number, 1 to 9007199254740992; got 1000")
          for name in ("packet_bytes", "window", "queue_bytes", "mark_bytes", "entropies",
                       "band_bytes")),
        ({"latency_ns": 0.0}, "latency_ns must be a finite number, 0.001 to"),
        ({"latency_ns": 1e-4}, r"latency_ns must be a finite number, 0.001 to 1e\+12; got 0.0001"),
        ({"latency_ns": HUGE}, "latency_ns must be a finite number, 0.001 to"),
        ({"timeout_us": float("inf")}, r"must be a finite number, 1e-06 to 1e\+09; got inf"),
        ({"timeout_us": float("nan")}, "timeout_us must be a finite number, 1e-06 to"),
        ({"jitter_ns": -1.0}, "jitter_ns must be a finite number, 0 to"),
        ({"exclude_us": -1.0}, "exclude_us must be a finite number, 0 to"),
        ({"exclude_us": "long"}, r"exclude_us must be a finite number, 0 to 1e\+09; got 'long'"),
        ({"slow_down": 1}, "slow_down must be true or false; got 1"),
        ({"repath": None}, "repath must be true or false; got None"),
        ({"spraying": "often"}, "must be one of random, rotating, recycled, adaptive, round"),
        *(({name: 65_536}, f"{name} must be a whole number, {least} to 65535; got 65536")
          for name, least in (("header_bytes", 0), ("ack_bytes", 0), ("ack_packets", 1))),
        ({"ack_packets": 0}, "ack_packets must be a whole number, 1 to"),
    ],
)  # fmt: skip
def test_a_transport_that_cannot_be_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        Transport(**wrong)  # type: ignore[arg-type]


@BOTH
def test_the_largest_transport_works(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, engine)
    most = transport._LARGEST
    how = Transport(
        packet_bytes=most, window=most, queue_bytes=most, mark_bytes=most, entropies=most,
        latency_ns=1e12, timeout_us=1e9, exclude_us=1e9, jitter_ns=1e12, spraying="recycled",
    )  # fmt: skip
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    for scheme in ("coloured", "spray"):
        routes = route(Flows([0, 1], [2, 3], 1000), fabric, scheme)
        took = simulate(routes, "packet", transport=how, seed=1 << 70)
        assert 4000.0 < took < 5000.1, "four links, and a start within 1,000 s"


@BOTH
@pytest.mark.parametrize(
    ("bytes", "how", "said"),
    [
        (1 << 50, Transport(), "1,073,741,824 packets; this one has 274,877,906,944, of"),
        (1 << 62, Transport(), "1,073,741,824 packets; this one has 1,125,899,906,842,624"),
        (1 << 40, Transport(window=1 << 53), "at most 67,108,864 packets under way; got 268,435"),
    ],
)  # fmt: skip
def test_more_packets_than_a_run_may_have_are_refused(
    bytes: int, how: Transport, said: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, engine)
    routes = route([(0, 2, bytes)], leaf_spine(2, 2, 2))
    with pytest.raises(NetworkError, match=said):
        simulate(routes, "packet", transport=how)


@pytest.mark.parametrize("scheme", ["coloured", "min_split", "ethereal", "ecmp_k(3)"])
def test_flows_beyond_64_bits_together_are_counted_right(scheme: str) -> None:
    flows = Flows([0, 1, 2], [2, 3, 0], 1 << 62)
    with pytest.raises(NetworkError, match=r"one has 3,377,699,720,527,8[0-9]*, of 4,096 bytes"):
        send(route(flows, leaf_spine(2, 2, 2), scheme))


@BOTH
@pytest.mark.parametrize("scheme", ["coloured", "spray"])
def test_what_is_sent_again_counts_again(
    scheme: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, engine)
    monkeypatch.setattr(packet, "MOST_PACKETS", 100)
    fabric = leaf_spine(2, 2, 1, host_gbps=8)
    flows, how = Flows([0, 1], [2, 3], 50_000), Transport(packet_bytes=1000)
    assert send(route(flows, fabric, scheme), how).events > 100
    with pytest.raises(NetworkError, match="at most 100 packets; that many were sent for 2 mess"):
        send(route(flows, fabric, scheme), Transport(packet_bytes=1000, queue_bytes=3000))


@BOTH
def test_slow_links_take_as_long_as_they_take(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte takes eight seconds at 1 bit/s; a run of over a million seconds is refused."""
    monkeypatch.setenv(VARIABLE, engine)
    fabric = leaf_spine(2, 1, 1, host_gbps=1e-9)
    routes = route([(0, 1, 100_000)], fabric)
    how = Transport(packet_bytes=1000)
    assert simulate(routes, "packet", transport=how) == pytest.approx(8.0 * 103_000)
    for bytes, size in ((200_000, 1000), (1 << 33, 1000), (1 << 50, 1 << 53)):
        with pytest.raises(NetworkError, match=r"at most 1,000,000 seconds.* has 1 bit/s"):
            simulate(route([(0, 1, bytes)], fabric), "packet",
                     transport=Transport(packet_bytes=size))  # fmt: skip


@BOTH
def test_a_failure_that_never_comes_changes_nothing(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, engine)
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    routes = route(Flows([0, 1], [2, 3], 5000), fabric, "coloured")
    late = send(routes, outages=Outages({Link("leaf0", "spine0"): 1e300}))
    assert np.array_equal(late.seconds, send(routes).seconds)


@NATIVE
def test_ctrl_c_ends_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^29 packets would take minutes."""
    fast, begun = core(), threading.Event()
    assert fast is not None

    def announced(*given: object) -> object:
        begun.set()
        return fast.send_packets(*given)  # type: ignore[arg-type]

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(native, "core", lambda: SimpleNamespace(send_packets=announced))
    routes = route([(0, 2, 1 << 41)], leaf_spine(2, 2, 2))
    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            send(routes)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
