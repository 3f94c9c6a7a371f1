"""Exports read back into routes, as the tools that receive them read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from gradwire.network import Fabric, Flows
from gradwire.network.amounts import numbers
from gradwire.network.fabric import BELOW
from gradwire.network.routes import Routes
from gradwire.pins import Pins


def of_pins(pins: Pins, fabric: Fabric, flows: Flows) -> Routes:
    """Cuts every flow as its pair's shares say."""
    return cut(fabric, flows, pins.shares)


def cut(
    fabric: Fabric, flows: Flows, shares: Mapping[tuple[int, int], Sequence[tuple[int, int]]]
) -> Routes:
    """Cuts every flow between leaves by its pair's shares."""
    rows = []
    stays = fabric.leaf_of[flows.src] == fabric.leaf_of[flows.dst]
    for i, flow in enumerate(flows):
        own = [(BELOW, 1)] if stays[i] else shares[flow.src, flow.dst]
        total = sum(amount for _, amount in own)
        rows += [(i, path, Fraction(flow.bytes * amount, total)) for path, amount in own]
    return routes_of(fabric, flows, rows)


def routes_of(fabric: Fabric, flows: Flows, rows: Sequence[tuple[int, int, Fraction]]) -> Routes:
    """The routes of rows of (flow, path, bytes)."""
    unit = lcm(1, *(bytes.denominator for *_, bytes in rows))
    return Routes(
        fabric, flows, np.array([flow for flow, *_ in rows], np.int64),
        np.array([path for _, path, _ in rows], np.int64),
        numbers([int(bytes * unit) for *_, bytes in rows]), unit,
    )  # fmt: skip
