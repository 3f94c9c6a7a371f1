"""The native forwarder, between datagram sockets that stand for the ports of a switch."""

import contextlib
import os
import socket
import threading
import time

import pytest

from gradwire.extension import extension

HEADER, MANY, NOBODY = bytes(10), b"\xff" * 6, b"\x02" + bytes(5)
PORTS = 3

pytestmark = pytest.mark.skipif(
    not hasattr(extension(), "Forwarder"), reason="the core was not built, or not on Linux"
)


def address(host):
    return b"\x02\x00\x00\x00\x01" + bytes([host])


def frame(source, target, payload=b""):
    """A frame to a host's address, or to any other six bytes."""
    to = address(target) if isinstance(target, int) else target
    return HEADER + to + address(source) + b"\x08\x00" + payload


def comes_to(forwarder, count, value):
    """Whether one of the counts becomes so large, as the forwarder goes on by itself."""
    deadline = time.monotonic() + 20.0
    while forwarder.counts()[count] < value and time.monotonic() < deadline:
        time.sleep(0.001)
    return forwarder.counts()[count] == value


@contextlib.contextmanager
def forwarding(delay_ns=0, jitter_ns=0, loss=0.0):
    """The hosts' ends of the ports, and the forwarder."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(PORTS)]
    for pair in pairs:
        pair[0].settimeout(20.0)
        for end in pair:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    stop, stopped = os.pipe()
    forwarder = extension().Forwarder([p[1].fileno() for p in pairs], delay_ns, jitter_ns, loss, 1)
    thread = threading.Thread(target=forwarder.run, args=(stop,))
    thread.start()
    try:
        yield [pair[0] for pair in pairs], forwarder
    finally:
        os.close(stopped)
        thread.join(20.0)
        assert not thread.is_alive(), "it ends when its other end is closed"
        os.close(stop)
        for end in (end for pair in pairs for end in pair):
            end.close()


def test_frames_go_where_their_host_is():
    with forwarding() as (hosts, forwarder):
        hosts[0].send(frame(0, 2, b"to all, as nobody knows where 2 is"))
        for other in hosts[1:]:
            assert other.recv(100).endswith(b"nobody knows where 2 is")
        hosts[2].send(frame(2, 0, b"back"))
        assert hosts[0].recv(100) == frame(2, 0, b"back")
        hosts[0].send(frame(0, 2, b"only there"))
        assert hosts[2].recv(100) == frame(0, 2, b"only there")
        hosts[1].send(frame(1, MANY, b"to all"))
        assert [hosts[r].recv(100)[-6:] for r in (0, 2)] == [b"to all"] * 2
        hosts[1].setblocking(False)
        with pytest.raises(BlockingIOError):
            hosts[1].recv(100)
        assert comes_to(forwarder, 0, 2 + 1 + 1 + 2)
        assert forwarder.counts()[1:3] == (0, 0)
        assert forwarder.counts()[3] > 0


def test_no_frame_comes_early_and_none_overtakes():
    with forwarding(delay_ns=20_000_000, jitter_ns=19_000_000) as (hosts, _):
        hosts[1].send(frame(1, MANY))
        hosts[0].recv(100)
        sent = []
        for number in range(200):
            sent.append(time.perf_counter())
            hosts[0].send(frame(0, 1, bytes([number])))
        took = []
        for number in range(200):
            assert hosts[1].recv(100)[-1] == number
            took.append(time.perf_counter() - sent[number])
    assert min(took) >= 0.001


def test_as_many_are_lost_as_was_asked():
    with forwarding(loss=0.25) as (hosts, forwarder):
        for _ in range(2000):
            hosts[0].send(frame(0, NOBODY))  # to both others, who take few of them
        assert comes_to(forwarder, 0, 4000)
        lost = forwarder.counts()[1]
    assert abs(lost - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5


def test_what_a_port_refuses_is_counted_and_the_others_go_on():
    with forwarding() as (hosts, forwarder):
        hosts[2].close()
        hosts[0].send(frame(0, MANY, b"to all who are there"))
        assert hosts[1].recv(100).endswith(b"to all who are there")
        hosts[0].send(HEADER)  # too short for a frame
        hosts[0].send(frame(0, MANY, b"again"))
        assert hosts[1].recv(100).endswith(b"again")
        assert comes_to(forwarder, 2, 2)
        assert forwarder.counts()[:3] == (4, 0, 2)
