"""Writes routes for other programs, by the text of a format: `pins`, `htsim`, `topo`, or another
package's."""

from __future__ import annotations

from gradwire.errors import NetworkError
from gradwire.families import EXPORTS
from gradwire.network.built import called
from gradwire.network.exports_htsim import connections, topology
from gradwire.network.fabric import BELOW, EVERY
from gradwire.network.routes import Routes
from gradwire.notation import Notation
from gradwire.pins import Pair, Pins

NOTATION = Notation(
    "format", "a format with its parameters", "pins", NetworkError,
    elsewhere={"./contrib/formats": ("hccl", "nccl", "ports", "srv6")},
)  # fmt: skip


def pins(routes: Routes) -> str:
    """Writes rules for gradwire.attach(…, planes=…): a rule for each pair of hosts."""
    return pins_of(routes).to_json()


def htsim(routes: Routes) -> str:
    """Writes a connection matrix, without paths, for other simulators; steps begin by barriers."""
    return connections(routes.flows, routes.fabric.hosts)


def topo(routes: Routes, latency_ns: float = 500.0) -> str:
    """Writes the topology for the same simulators. latency_ns: the latency of each link."""
    return topology(routes.fabric, latency_ns)


BASE, MEMBERS = str, (pins, htsim, topo)


def written(text: str, routes: Routes) -> str:
    """Writes routes in a format. Raises NetworkError if it is none, or cannot hold these paths."""
    found: str = called(NOTATION, EXPORTS, text, routes)
    return found


def pins_of(routes: Routes) -> Pins:
    """Returns the rules for `gradwire.attach(…, planes=…)`: every pair of hosts has one rule for
    all that it sends, in all steps. Raises NetworkError for sprayed packets, as they have no
    single path."""
    if (routes.path == EVERY).any():
        raise NetworkError(
            "pins need pinned paths; got sprayed packets. Route by 'coloured' or another scheme "
            "that pins."
        )
    flows = routes.flows
    pairs = list(zip(flows.src.tolist(), flows.dst.tolist()))
    turns = dict[Pair, int]()
    for pair, step in zip(pairs, flows.step.tolist()):
        turns[pair] = min(step, turns.get(pair, step))
    found = dict[Pair, dict[int, int]]()
    pieces = zip(routes.flow.tolist(), routes.path.tolist(), routes.amount.tolist())
    for flow, path, amount in pieces:
        if path != BELOW and amount:
            own = found.setdefault(pairs[flow], {})
            own[path] = own.get(path, 0) + int(amount)
    shares = {pair: tuple(sorted(own.items())) for pair, own in found.items()}
    return Pins(routes.fabric.hosts, shares, turns)
