"""The best shares for links that failed or are unequal, with few cuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.network.fabric import Fabric, count
from gradwire.network.flows import Flows
from gradwire.network.optimum import best_shares
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme
from gradwire.network.routing.wrap import laid

_PARTS = 1 << 20  # shares are rounded to such parts


@dataclass(frozen=True)
class Optimal(Scheme):
    """As 'wrap', by the shares of a linear program: no routing of any kind takes less, but for
    what rounding to a millionth does. Needs scipy. least: no piece has fewer bytes."""

    least: int = 0
    name: ClassVar[str] = "optimal"
    is_compared: ClassVar[bool] = False
    is_planned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        count("least", self.least, 0)

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        shares = best_shares(flows[crossing.which], fabric)
        parts = np.rint(shares.part * _PARTS).astype(np.int64)
        parts[np.arange(len(parts)), parts.argmax(1)] += _PARTS - parts.sum(1)
        return crossing.cut(*laid(crossing, parts, self.least, seed))
