"""Gives every flow one path, such that no link has more flows than it must.

Flows are the edges of a bipartite graph of leaves, paths their colours (`colouring`): each leaf
has ceil(d / s) flows on an uplink at most. Hosts with several ports are coloured before, and pods
after, for the cores above each switch (`tiers`). Source: de Werra 1971; for Clos networks Slepian
and Duguid, see Benes 1965.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme
from gradwire.network.routing.tiers import share_out, whole


@dataclass(frozen=True)
class Coloured(Scheme):
    """Equitable edge colouring: for flows of one size, no scheme that cuts none is better."""

    name: ClassVar[str] = "coloured"
    is_planned: ClassVar[bool] = True

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        crossing.refuse_unequal()
        share = share_out(crossing, whole, seed)
        path = np.empty_like(share.way)
        path[share.edge] = share.way
        every = np.arange(len(path))
        return crossing.pinned(crossing.around_failures(every, path, crossing.sizes, seed))
