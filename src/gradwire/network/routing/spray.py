"""Every packet takes another path: the load that pinned paths are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import EVERY, Routes
from gradwire.network.routing.scheme import Crossing, Scheme


@dataclass(frozen=True)
class Spray(Scheme):
    """Packets spread over all usable paths, as fast as each is."""

    name: ClassVar[str] = "spray"

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        return crossing.pinned(np.full(len(crossing.which), EVERY, np.int64))
