"""Pins: what `gradwire.attach(…, planes=…)` sends by. Every pair of hosts has one rule for all
that it sends, in all steps."""

from __future__ import annotations

from gradwire.errors import NetworkError
from gradwire.network.fabric import BELOW, EVERY
from gradwire.network.routes import Routes
from gradwire.pins import Pair, Pins


def write(routes: Routes) -> Pins:
    """NetworkError for sprayed packets, which have no one path."""
    if (routes.path == EVERY).any():
        raise NetworkError(
            "pins are of pinned pieces; got sprayed packets. Route by 'coloured' or another "
            "scheme that pins."
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
