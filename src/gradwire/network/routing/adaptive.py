"""Switches send whole flows where they have sent least so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.network.fabric import Fabric, count
from gradwire.network.flows import Flows
from gradwire.network.least_loaded import least_loaded
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import MOST_PARTS, Crossing, Scheme


@dataclass(frozen=True)
class Adaptive(Scheme):
    """Places flows in random order, each on the least loaded uplink of its leaf, then of the
    switch's cores: no switch sees the way down. flowlets: equal parts of each flow that are placed
    one by one."""

    flowlets: int = 1
    name: ClassVar[str] = "adaptive"
    is_hashed: ClassVar[bool] = True
    seeds: ClassVar[int] = 20

    def __post_init__(self) -> None:
        count("flowlets", self.flowlets, most=MOST_PARTS)

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        one = np.repeat(np.arange(len(crossing.which)), self.flowlets)
        one = np.random.default_rng(seed).permutation(one)
        source, target, size = (c[one] for c in (crossing.source, crossing.target, crossing.sizes))
        path = least_loaded(fabric, source, target, size, seed, local=True)
        return crossing.cut(one, path, size, self.flowlets)
