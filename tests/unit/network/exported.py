"""What exports say, read back as who takes them reads them: routes again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from gradwire.network import Fabric, Flows
from gradwire.network.amounts import numbers
from gradwire.network.exports import srv6
from gradwire.network.exports.lines import BELOW_WORD
from gradwire.network.exports.ports import Ports
from gradwire.network.fabric import BELOW
from gradwire.network.routes import Routes
from gradwire.pins import Pins


def of_segments(
    text: str, fabric: Fabric, flows: Flows, segment: Callable[[int], str] = srv6.sid
) -> Routes:
    """A line for each piece, as of `srv6`."""
    path_of = {segment(path): path for path in range(_most(fabric))}
    return _of_lines(text, fabric, flows, lambda _, word: path_of[word])


def of_ports(text: str, fabric: Fabric, flows: Flows, ports: Ports) -> Routes:
    """A line for each piece, as of `ports`."""
    path_of = _paths(ports)
    ends = list(zip(flows.src.tolist(), flows.dst.tolist()))
    return _of_lines(text, fabric, flows, lambda flow, word: path_of[ends[flow], int(word)])


def of_hccl(
    text: str, fabric: Fabric, flows: Flows, addresses: Sequence[str], ports: Ports
) -> Routes:
    """Every flow in equal parts over the ports of its pair, as HCCL sends it."""
    number = {address: host for host, address in enumerate(addresses)}
    path_of = _paths(ports)
    paths = {}
    for line in text.splitlines():
        pair, _, given = line.partition("=")
        src, dst = (number[address] for address in pair.split(","))
        chosen = [path_of[(src, dst), int(port)] for port in given.split(",")]
        paths[src, dst] = list(Counter(chosen).items())
    return _cut(fabric, flows, paths)


def of_pins(pins: Pins, fabric: Fabric, flows: Flows) -> Routes:
    """Every flow cut as its pair."""
    return _cut(fabric, flows, pins.shares)


def _most(fabric: Fabric) -> int:
    return len(fabric.uplinks) * max(fabric.cores, 1)


def _paths(ports: Ports) -> dict[tuple[tuple[int, int], int], int]:
    return {
        (pair, port): path
        for pair, by_path in ports.items()
        for path, own in by_path.items()
        for port in own
    }


def _of_lines(text: str, fabric: Fabric, flows: Flows, path: Callable[[int, str], int]) -> Routes:
    rows = []
    for line in text.splitlines()[1:]:
        flow, src, dst, bytes, word = line.split()
        assert (int(src), int(dst)) == (flows.src[int(flow)], flows.dst[int(flow)])
        own = BELOW if word == BELOW_WORD else path(int(flow), word)
        rows.append((int(flow), own, Fraction(bytes)))
    return _routes(fabric, flows, rows)


def _cut(
    fabric: Fabric, flows: Flows, shares: Mapping[tuple[int, int], Sequence[tuple[int, int]]]
) -> Routes:
    rows = []
    stays = fabric.leaf_of[flows.src] == fabric.leaf_of[flows.dst]
    for i, flow in enumerate(flows):
        own = [(BELOW, 1)] if stays[i] else shares[flow.src, flow.dst]
        total = sum(amount for _, amount in own)
        rows += [(i, path, Fraction(flow.bytes * amount, total)) for path, amount in own]
    return _routes(fabric, flows, rows)


def _routes(fabric: Fabric, flows: Flows, rows: Sequence[tuple[int, int, Fraction]]) -> Routes:
    unit = lcm(1, *(bytes.denominator for *_, bytes in rows))
    return Routes(
        fabric, flows, np.array([flow for flow, *_ in rows], np.int64),
        np.array([path for _, path, _ in rows], np.int64),
        numbers([int(bytes * unit) for *_, bytes in rows]), unit,
    )  # fmt: skip
