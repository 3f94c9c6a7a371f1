"""Flows of any sizes laid end to end, and cut where one path's share ends.

    from leaf a to leaf b      ├─ flow 0 ─┼──── flow 1 ────┼ 2 ┤
    three paths of one rate    ├───── 0 ─────┼── 1 ──┼─ 2 ─────┤      flow 1 is cut twice

Each pair of leaves loads its paths as spraying does, so every link has the same load as then;
s paths need at most s - 1 cuts a pair. Source: McNaughton 1959, the wrap-around rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gradwire.network.amounts import parts_of, reduced, scaled, summed
from gradwire.network.checked import Ints
from gradwire.network.fabric import Fabric, count
from gradwire.network.flows import Flows
from gradwire.network.loads import EXACT, weights
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme, Share


@dataclass(frozen=True)
class Wrap(Scheme):
    """Loads every link as spraying does, for any sizes. least: no piece has fewer bytes, except
    whole flows; a link may then have twice so much more or less for each pair of leaves."""

    least: int = 0
    name: ClassVar[str] = "wrap"
    is_planned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        count("least", self.least, 0)

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        return crossing.cut(*laid(crossing, self.shares(crossing), self.least, seed))

    def shares(self, crossing: Crossing) -> Ints:
        """Returns the shares of each pair of leaves on each path, [pairs, paths]."""
        fabric = crossing.fabric
        ends, _ = fabric.pairs(crossing.source, crossing.target)
        own = weights(fabric, *ends)
        shares = np.zeros((len(own), len(fabric.uplinks) * max(fabric.cores, 1)), np.int64)
        shares[:, : own.shape[1]] = own
        return shares


def laid(crossing: Crossing, shares: Ints, least: int, seed: int) -> Share:
    """Lays flows on a line for each pair of leaves, by shares of its paths, [pairs, paths]. Hosts
    with ports on several planes send each flow by all of them, and each plane has its lines."""
    fabric = crossing.fabric
    ends, pair = fabric.pairs(crossing.source, crossing.target)
    first = np.random.default_rng(seed).integers(0, shares.shape[1], len(shares))
    if fabric.planes == 1 or not len(pair):
        return wrapped(pair, crossing.sizes, shares, first, least)
    source, target = (end[:, None] for end in ends)
    uplink = fabric.uplink_of(source, target, np.arange(shares.shape[1]))
    uplink %= len(fabric.uplinks)  # any uplink, for paths that do not exist
    own = [np.where(fabric.plane_of[uplink] == plane, shares, 0) for plane in range(fabric.planes)]
    ports = np.stack([part.sum(1) for part in own], axis=1)
    flows = np.arange(len(pair))
    whole = wrapped(flows, crossing.sizes, ports[pair], np.zeros_like(flows), least)
    found = list[Share]()
    for plane in range(fabric.planes):
        here = np.flatnonzero(whole.way == plane)
        if not len(here):
            continue
        cut = wrapped(
            pair[whole.edge[here]], whole.part[here], own[plane], first, least * whole.unit
        )
        found.append(cut._replace(edge=whole.edge[here[cut.edge]]))
    finer = Share.joined(found)
    return finer._replace(unit=whole.unit * finer.unit)


def wrapped(line: Ints, sizes: Ints, shares: Ints, first: Ints, least: int = 0) -> Share:
    """Lays things on lines, and cuts them where shares end.

    line: which line each is on; shares [lines, paths]: whole numbers, not all 0 on a line;
    first: the path with which each line begins; least: the smallest part that is cut off.
    """
    paths = shares.shape[1]
    turned = (first[:, None] + np.arange(paths)) % paths
    own = np.take_along_axis(shares, turned, 1)
    order = np.argsort(line, kind="stable")
    length = summed(line, sizes, len(shares))
    total = own.sum(1)
    finest = (length * total.astype(float)).sum() + float(least) * total.max(initial=0)
    kind = np.int64 if finest < EXACT else object
    size = sizes[order].astype(kind) * total[line[order]]
    starts = np.cumsum(size) - size  # one line after the other, in 1/total of each
    begin = np.cumsum(length.astype(kind) * total) - length.astype(kind) * total
    bounds = begin[:, None] + length[:, None] * (np.cumsum(own, 1) - own).astype(kind)
    if least:
        bounds = _snapped(bounds, starts, size, least * total.astype(kind))
    way = bounds.reshape(-1)
    cuts = np.unique(np.concatenate([starts, way]))
    cuts = cuts[cuts < size.sum()]
    thing = np.searchsorted(starts, cuts, "right") - 1
    path = turned.reshape(-1)[np.searchsorted(way, cuts, "right") - 1]
    unit = math.lcm(1, *np.unique(total[line]).tolist())
    length = np.append(cuts[1:], size.sum()) - cuts
    amount = scaled(length, parts_of(unit, total[line[order[thing]]]))
    return Share(order[thing], path, *reduced(amount, unit))


def _snapped(bounds: Any, starts: Any, size: Any, least: Any) -> Any:
    """Moves bounds to where things may be cut: at their ends, or at whole multiples of the least,
    so that no part is smaller."""
    thing = np.searchsorted(starts, bounds, "right") - 1
    at, whole, step = bounds - starts[thing], size[thing], np.maximum(least, 1)[:, None]
    inside = np.minimum((at + step // 2) // step, np.maximum(whole // step - 1, 0)) * step
    nearest = np.where(whole - at < np.abs(at - inside), whole, inside)
    return starts[thing] + nearest
