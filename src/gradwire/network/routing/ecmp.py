"""A hash of the flow's addresses and ports chooses its path: equal cost multipath."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.network.checked import Ints
from gradwire.network.dice import draws, pick
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme


@dataclass(frozen=True)
class Ecmp(Scheme):
    """Chooses a random one of its paths for each flow, as an ideal hash does.

    polarized: leaves and the switches above them hash alike, so the flows that come to a switch
    have hashes that lead to few of its cores.
    """

    polarized: bool = False
    name: ClassVar[str] = "ecmp"
    is_hashed: ClassVar[bool] = True
    seeds: ClassVar[int] = 200

    @property
    def hashes(self) -> int:
        return 0 if self.polarized else 1

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        if self.polarized and fabric.cores:
            return crossing.pinned(_by_one_hash(crossing, draws(seed, len(crossing.which))))
        return crossing.hashed(1, seed)


def _by_one_hash(crossing: Crossing, drawn: Ints) -> Ints:
    """Chooses the uplink, and the core above, by the same random number."""
    usable, cores = crossing.usable, crossing.fabric.cores
    path = usable.path(np.arange(len(drawn)), pick(drawn, usable.counts))
    pod = crossing.fabric.pod_of
    for one in np.flatnonzero(pod[crossing.source] != pod[crossing.target]).tolist():
        own, chance = usable.of(one), int(drawn[one])
        uplinks = np.unique(own // cores)
        above = own[own // cores == uplinks[pick(chance, len(uplinks))]]
        path[one] = above[pick(chance, len(above))]
    return path
