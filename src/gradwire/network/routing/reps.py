"""Recycled entropy packet spraying: hashed paths that were not congested are used again.

Source: Bonato et al. 2024 (arXiv 2407.21625).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.network.fabric import Fabric, count
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import MOST_PARTS, Crossing, Scheme


@dataclass(frozen=True)
class Reps(Scheme):
    """Sprays packets over `entropies` hashed paths. Loads are those of the first round, before any
    path is recycled; the packet engine shows what REPS balances over time."""

    entropies: int = 256
    name: ClassVar[str] = "reps"
    is_hashed: ClassVar[bool] = True
    is_compared: ClassVar[bool] = False
    seeds: ClassVar[int] = 20

    def __post_init__(self) -> None:
        count("entropies", self.entropies, most=MOST_PARTS)

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        return Crossing(fabric, flows).hashed(self.entropies, seed)
