"""A hash of the flow's addresses and ports chooses its path: equal cost multipath."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme


@dataclass(frozen=True)
class Ecmp(Scheme):
    """A random one of its paths for each flow, as an ideal hash does."""

    name: ClassVar[str] = "ecmp"

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        counts = crossing.usable.counts[crossing.usable.pair]
        drawn = np.random.default_rng(seed).integers(0, counts)
        return crossing.pinned(crossing.usable.path(np.arange(len(counts)), drawn))
