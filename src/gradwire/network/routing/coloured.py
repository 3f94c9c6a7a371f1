"""A path for every flow, whole, and no link has more flows than it must.

Flows are the edges of a bipartite graph of leaves, paths their colours (`colouring`): each leaf
has ceil(d / s) flows on an uplink at most. In three tiers pods are coloured too, for the cores
above each switch. Source: de Werra 1971; for Clos networks Slepian and Duguid, see Benes 1965.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.network.colouring import Side, colour
from gradwire.network.fabric import NO_LINK, Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Numbers, Scheme


@dataclass(frozen=True)
class Coloured(Scheme):
    """Equitable edge colouring: for flows of one size nothing that cuts none is better."""

    name: ClassVar[str] = "coloured"

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        crossing.refuse_unequal()
        ends = crossing.source, crossing.target
        left, right = (Side.of(leaf, fabric.pod_of) for leaf in ends)
        uplink = colour(left, right, len(fabric.uplinks), seed).astype(np.int64)
        pods = [fabric.pod_of[leaf] for leaf in ends]
        far = pods[0] != pods[1]
        path = np.where(far, uplink * fabric.cores, uplink)
        for number in range(len(fabric.uplinks)) if fabric.cores else ():
            some = np.flatnonzero(far & (uplink == number))
            left, right = (Side.alone(pod[some]) for pod in pods)
            path[some] += colour(left, right, fabric.cores, seed).astype(np.int64)
        return crossing.pinned(around_failures(crossing, path))


def around_failures(crossing: Crossing, path: Numbers) -> Numbers:
    """Flows whose path fails go where the fullest link of the way has the fewest flows; all
    others stay."""
    fabric, found = crossing.fabric, path.copy()
    hops = fabric.hops(crossing.source, crossing.target, path)
    fails = np.flatnonzero(((hops != NO_LINK) & (fabric.rates[hops] == 0)).any(1))
    load = np.zeros(len(fabric.rates), np.int64)
    working = np.delete(hops, fails, axis=0)
    np.add.at(load, working[working != NO_LINK], 1)
    for flow in fails.tolist():
        usable = crossing.usable.of(flow)
        a, b = (np.full(len(usable), leaf[flow]) for leaf in (crossing.source, crossing.target))
        ways = fabric.hops(a, b, usable)
        flows = np.where(ways == NO_LINK, 0, load[ways])
        best = int(np.lexsort((flows.sum(1), flows.max(1)))[0])
        found[flow] = usable[best]
        load[ways[best][ways[best] != NO_LINK]] += 1
    return found
