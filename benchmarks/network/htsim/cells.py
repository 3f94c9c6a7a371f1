"""The cells that both simulators run: networks, traffic, and how each side chooses paths."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from cases import all_to_all, permutation, ring

from gradwire.network import Fabric, Flows, Routes, fat_tree, leaf_spine, route
from gradwire.network.engines.transport import Spraying, Transport

HEADER, ACK, ACKED = 64, 64, 16_384  # bytes; ACKED: received bytes per acknowledgement
HUGE = 100_000  # packets: queues that never fill
LATENCY_NS = 500.0
SEED = 3


@dataclass(frozen=True)
class Cell:
    """One run. paths: ours, a scheme, or how packets choose. theirs: how htsim is told to choose;
    None: it is given our paths. acked: the bytes that it acknowledges at once."""

    network: str
    traffic: str
    paths: str
    fabric: Fabric
    flows: Flows
    scheme: str = "spray"
    spraying: Spraying = "random"
    theirs: tuple[str, ...] | None = None
    payload: int = 4096
    acked: int = ACKED
    queue: int = HUGE

    @property
    def name(self) -> str:
        """The cell's name in one line."""
        return f"{self.network}, {self.traffic}, {self.paths}"

    @property
    def routes(self) -> Routes:
        """Our routes."""
        return route(self.flows, self.fabric, self.scheme, SEED)

    @property
    def transport(self) -> Transport:
        """Our transport, set as htsim's is."""
        packet = self.payload + HEADER
        return Transport(
            packet_bytes=self.payload, header_bytes=HEADER, ack_bytes=ACK,
            ack_packets=max(1, -(-self.acked // packet)), spraying=self.spraying,
            latency_ns=LATENCY_NS, queue_bytes=1 << 40, mark_bytes=1 << 40,
        )  # fmt: skip


ECMP = ("-load_balancing_algo", "oblivious", "-paths", "8192")
REPS = ("-load_balancing_algo", "reps", "-paths", "8192")
TURNS = ("-strat", "ecmp_rr")
QUEUES = ("-strat", "ecmp_ar", "-ar_granularity", "packet", "-ar_method", "queue")
_SPRAYED: dict[str, tuple[Spraying, tuple[str, ...] | None]] = {
    "packets by any path": ("random", ECMP),
    "packets in rotation": ("rotating", None),
    "switches in turn": ("round_robin", TURNS),
    "switches by queues": ("adaptive", QUEUES),
    "recycled paths": ("recycled", REPS),
}
MIB = 1 << 20


def half_step(fabric: Fabric, bytes: int) -> Flows:
    """Returns the first step of halving-doubling: to the host half of all away."""
    hosts = np.arange(fabric.hosts)
    return Flows(hosts, hosts ^ (fabric.hosts // 2), bytes)


def in_rotation(fabric: Fabric, bytes: int) -> Flows:
    """Returns all-to-all flows, with each host's next host first."""
    a, shift = np.divmod(np.arange(fabric.hosts * (fabric.hosts - 1)), fabric.hosts - 1)
    return Flows(a, (a + shift + 1) % fabric.hosts, bytes)


def cells() -> Iterator[Cell]:
    """Yields all cells."""
    small, middle = leaf_spine(4, 4, 4), leaf_spine(8, 8, 8)
    thin, wide = leaf_spine(8, 16, 8), leaf_spine(8, 16, 16)
    tree, fast = fat_tree(8, 4, 4, 4, 4), leaf_spine(16, 16, 16, host_gbps=400)
    any_, turns = "packets by any path", "switches in turn"
    yield from _of("4x4x4", small, "half step, 4 MiB", half_step(small, 4 * MIB), "coloured")
    yield from _of("4x4x4", small, "permutation, 4 MiB", permutation(small, SEED, 4 * MIB),
                   "coloured", "ecmp", any_)  # fmt: skip
    yield from _of("8x8x8", middle, "ring, 4 MiB", ring(middle, SEED, 4 * MIB), "coloured", "ecmp",
                   *_SPRAYED)  # fmt: skip
    recycled = Cell("8x8x8", "ring, 4 MiB", "recycled paths, every packet acknowledged", middle,
                    ring(middle, SEED, 4 * MIB), "spray", "recycled", REPS, acked=1)  # fmt: skip
    yield recycled
    yield from _of("8x8x8", middle, "half step, 1 MiB", half_step(middle, MIB), "coloured", "ecmp")
    yield from _of("8x8x8", middle, "permutation, 16 MiB", permutation(middle, SEED, 16 * MIB),
                   "coloured", "ecmp")  # fmt: skip
    yield from _of("8x16x8", thin, "permutation, 4 MiB", permutation(thin, SEED, 4 * MIB),
                   "coloured", "ecmp")  # fmt: skip
    yield from _of("fat tree of 128", tree, "permutation, 4 MiB", permutation(tree, SEED, 4 * MIB),
                   "coloured", "ecmp", any_, turns, "switches by queues")  # fmt: skip
    yield from _of("fat tree of 128", tree, "half step, 4 MiB", half_step(tree, 4 * MIB),
                   "coloured", "ecmp")  # fmt: skip
    yield from _of("8x16x16", wide, "permutation, 16 MiB", permutation(wide, SEED, 16 * MIB),
                   "coloured", "ecmp")  # fmt: skip
    yield from _of("4x4x4", small, "all to all, 1 MiB, host 0 first", all_to_all(small, MIB),
                   "coloured", "ecmp", any_)  # fmt: skip
    yield from _of("8x8x8", middle, "all to all, 256 KiB, next host first",
                   in_rotation(middle, MIB // 4), "coloured", any_)  # fmt: skip
    yield from _of("8x8x8", middle, "all to all, 256 KiB, host 0 first",
                   all_to_all(middle, MIB // 4), "coloured", any_)  # fmt: skip
    yield from _of("16x16x16, 400G", fast, "ring, 16 MB", ring(fast, SEED, 4000 * 4096),
                   "coloured", "ethereal")  # fmt: skip
    for size in (8, 1):
        for cell in _of("16x16x16, 400G", fast, f"half step, {size} MiB, 9,000 bytes",
                        half_step(fast, size * MIB), "coloured", "ethereal"):  # fmt: skip
            yield replace(cell, payload=9000)
    incast = Flows(np.arange(8) + 8, 0, 4 * MIB)
    yield from _of("8x8x8", middle, "incast of 8, 4 MiB", incast, "coloured")


def _of(network: str, fabric: Fabric, traffic: str, flows: Flows, *paths: str) -> Iterator[Cell]:
    for text in paths:
        if text in _SPRAYED:
            spraying, theirs = _SPRAYED[text]
            yield Cell(network, traffic, text, fabric, flows, "spray", spraying, theirs)
        else:
            yield Cell(network, traffic, text, fabric, flows, text)
