"""Routes flows of any sizes, whole, the longest first (Graham 1969)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.least_loaded import least_loaded
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme


@dataclass(frozen=True)
class Lpt(Scheme):
    """Longest processing time: the largest flow first, each on the path that is done first."""

    name: ClassVar[str] = "lpt"
    is_planned: ClassVar[bool] = True

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        order = np.argsort(-crossing.sizes, kind="stable")
        path = np.empty_like(order)
        path[order] = least_loaded(
            fabric, crossing.source[order], crossing.target[order], crossing.sizes[order], seed
        )
        return crossing.pinned(path)
