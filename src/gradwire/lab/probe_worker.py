"""The program that `gradwire lab probe` runs on every host; rank 0 prints JSON: a line as each
part begins, and one with all measurements.

The only part of the lab that loads torch.
"""

import json
import os
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist

from gradwire.lab.counters import bytes_sent, counted_hosts, segments_resent

LARGEST_ALL_REDUCE_BYTES = 100_000_000
_ALL_REDUCE_SECONDS = 3.0
_ALL_REDUCE_TIMES = 3
_STREAM_SECONDS = 1.5
_SMALL_TIMES = 50
_CHUNK_BYTES = 1 << 20
_LEAST_STREAM_BYTES = 1 << 16  # some twenty times what a slow link lets pass at once


def main() -> None:
    """Measure with every other rank; the links' bits per second are the first argument."""
    bits_per_second = int(sys.argv[1])
    dist.init_process_group("gloo")
    others = dist.get_world_size() - 1
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "latency": lambda: {"latency_seconds": _latency_seconds()},
        "one stream": lambda: {"stream_bits_per_second": _stream(1, bits_per_second)},
        "incast": lambda: {"incast_bits_per_second": _stream(others, bits_per_second)},
        "small sums": lambda: {"small_all_reduce_seconds": _all_reduce_seconds(1, _SMALL_TIMES)},
        "large sums": lambda: _large_all_reduce(bits_per_second),
    }
    measured: dict[str, float] = {}
    for number, (name, measure) in enumerate(parts.items()):
        _print({"begins": name, "done": number, "of": len(parts)})
        measured |= measure()
    _print(measured)
    dist.destroy_process_group()


def _print(told: dict[str, Any]) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(told), flush=True)


def _large_all_reduce(bits_per_second: int) -> dict[str, float]:
    """All-reduce 100 MB, or as much as a slow link carries in a few seconds."""
    world = dist.get_world_size()
    share = 2 * (world - 1) / world  # how often each byte crosses a host's link in a ring
    affordable = int(bits_per_second / 8 * _ALL_REDUCE_SECONDS / share)
    elements = min(LARGEST_ALL_REDUCE_BYTES, affordable) // 4
    sent, resent = bytes_sent(), segments_resent()
    seconds = _all_reduce_seconds(elements, _ALL_REDUCE_TIMES)
    dist.barrier()  # a rank that has all sums may still hold bytes that others wait for
    ended = torch.tensor([bytes_sent() - sent, segments_resent() - resent])
    dist.all_reduce(ended)
    return {
        "all_reduce_bytes": elements * 4,
        "all_reduce_seconds": seconds,
        "all_reduce_bits_per_second": 8 * elements * 4 * share / seconds,
        "bytes_sent": int(ended[0]) // counted_hosts(),
        "segments_resent": int(ended[1]) // counted_hosts(),
    }


def _all_reduce_seconds(elements: int, times: int) -> float:
    """Return the median seconds of `times` all-reduces, after one that warms up."""
    tensor, seconds = torch.zeros(elements), list[float]()
    dist.all_reduce(tensor)
    for _ in range(times):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(tensor)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def stream_bytes(bits_per_second: int) -> int:
    """Return how much a stream sends: what the link carries in a second or two, but not so little
    that its burst would count."""
    return max(_LEAST_STREAM_BYTES, int(bits_per_second / 8 * _STREAM_SECONDS))


def _stream(senders: int, bits_per_second: int) -> float:
    """Let ranks 1 … `senders` send to rank 0 at once; return the payload's bits per second."""
    size = stream_bytes(bits_per_second) // senders
    with ExitStack() as opened:
        links = _connect_to_first(senders, opened)
        dist.barrier()
        started = time.perf_counter()
        if dist.get_rank() == 0:
            _drain(links, size)
        else:
            _fill(links, size)
        dist.barrier()
        return 8 * size * senders / (time.perf_counter() - started)


def _connect_to_first(senders: int, opened: ExitStack) -> list[socket.socket]:
    """Return rank 0's connections from the senders, or a sender's connection to rank 0."""
    address = os.environ["MASTER_ADDR"]
    rank, port = dist.get_rank(), torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        listener = opened.enter_context(socket.create_server((address, 0)))
        port[0] = listener.getsockname()[1]
    dist.broadcast(port, 0)
    if rank == 0:
        return [opened.enter_context(listener.accept()[0]) for _ in range(senders)]
    if rank <= senders:
        return [opened.enter_context(socket.create_connection((address, int(port))))]
    return []


def _fill(links: list[socket.socket], size: int) -> None:
    chunk = bytes(_CHUNK_BYTES)
    for link in links:
        left = size
        while left > 0:
            link.sendall(chunk[:left] if left < _CHUNK_BYTES else chunk)
            left -= _CHUNK_BYTES


def _drain(links: list[socket.socket], size: int) -> None:
    """Read `size` bytes from every link; the kernel keeps the others going meanwhile."""
    buffer = bytearray(_CHUNK_BYTES)
    with selectors.DefaultSelector() as selector:
        for link in links:
            selector.register(link, selectors.EVENT_READ)
        left = size * len(links)
        while left > 0:
            for key, _ in selector.select():
                left -= key.fileobj.recv_into(buffer)  # type: ignore[union-attr]


def _latency_seconds() -> float:
    """Return half the median round trip of one byte between ranks 0 and 1."""
    with ExitStack() as opened:
        links = _connect_to_first(1, opened)
        trips = [_round_trip(link) for link in links for _ in range(_SMALL_TIMES)]
    dist.barrier()
    return statistics.median(trips) / 2 if trips else 0.0


def _round_trip(link: socket.socket) -> float:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    started = time.perf_counter()
    if dist.get_rank() == 0:
        link.sendall(b"?")
        link.recv(1)
    else:
        link.recv(1)
        link.sendall(b"!")
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
