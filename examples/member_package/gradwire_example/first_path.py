"""first_path: all flows between two leaves take the first path that works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme


@dataclass(frozen=True)
class FirstPath(Scheme):
    """Static routes, as they are when nobody has thought about them."""

    name: ClassVar[str] = "first_path"

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        every = np.arange(len(crossing.which))
        return crossing.pinned(crossing.usable.path(every, np.zeros(len(every), np.int64)))
