"""Pins: what `gradwire.attach(…, planes=…)` sends by. Every pair of hosts has one rule for all
that it sends, in all steps."""

from __future__ import annotations

from math import lcm

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.amounts import numbers
from gradwire.network.fabric import BELOW, EVERY, Fabric
from gradwire.network.flows import Flows
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


def read(pins: Pins, fabric: Fabric, flows: Flows) -> Routes:
    """Every flow cut as its pair: the loads of links are those that were written. NetworkError for
    flows between leaves whose pair is not pinned."""
    rows = list[tuple[int, int, int, int]]()
    stays = fabric.leaf_of[flows.src] == fabric.leaf_of[flows.dst]
    for i, flow in enumerate(flows):
        own = ((BELOW, 1),) if stays[i] else pins.shares.get((flow.src, flow.dst), ())
        if not own:
            raise NetworkError(
                f"every pair that sends is pinned; {flow.src} to {flow.dst} is not. Plan for it."
            )
        total = sum(amount for _, amount in own)
        rows += [(i, path, flow.bytes * amount, total) for path, amount in own]
    unit = lcm(1, *(total for *_, total in rows))
    return Routes(
        fabric, flows, np.array([r[0] for r in rows], np.int64),
        np.array([r[1] for r in rows], np.int64),
        numbers([r[2] * (unit // r[3]) for r in rows]), unit,
    )  # fmt: skip
