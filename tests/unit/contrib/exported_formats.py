"""Exports read back into routes, as the tools that receive them read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

from exported import cut, routes_of

from gradwire.network import Fabric, Flows
from gradwire.network.fabric import BELOW
from gradwire.network.routes import Routes
from gradwire_formats import srv6
from gradwire_formats.lines import BELOW_WORD
from gradwire_formats.ports import Ports


def of_segments(
    text: str, fabric: Fabric, flows: Flows, segment: Callable[[int], str] = srv6.sid
) -> Routes:
    """Reads a line for each piece, as `srv6` writes them."""
    path_of = {segment(path): path for path in range(_most(fabric))}
    return _of_lines(text, fabric, flows, lambda _, word: path_of[word])


def of_ports(text: str, fabric: Fabric, flows: Flows, ports: Ports) -> Routes:
    """Reads a line for each piece, as `ports` writes them."""
    path_of = _paths(ports)
    ends = list(zip(flows.src.tolist(), flows.dst.tolist()))
    return _of_lines(text, fabric, flows, lambda flow, word: path_of[ends[flow], int(word)])


def of_hccl(
    text: str, fabric: Fabric, flows: Flows, addresses: Sequence[str], ports: Ports
) -> Routes:
    """Sends every flow in equal parts over the ports of its pair, as HCCL does."""
    number = {address: host for host, address in enumerate(addresses)}
    path_of = _paths(ports)
    paths = {}
    for line in text.splitlines():
        pair, _, given = line.partition("=")
        src, dst = (number[address] for address in pair.split(","))
        chosen = [path_of[(src, dst), int(port)] for port in given.split(",")]
        paths[src, dst] = list(Counter(chosen).items())
    return cut(fabric, flows, paths)


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
    return routes_of(fabric, flows, rows)
