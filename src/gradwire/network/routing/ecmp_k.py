"""Several hashes for each flow: several connections, or queue pairs, share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.network.fabric import Fabric, count
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import MOST_PARTS, Crossing, Scheme


@dataclass(frozen=True)
class EcmpK(Scheme):
    """Cuts every flow into k equal pieces, each on a path of its own hash."""

    k: int
    name: ClassVar[str] = "ecmp_k"
    is_hashed: ClassVar[bool] = True
    examples: ClassVar[tuple[str, ...]] = ("ecmp_k(2)", "ecmp_k(4)", "ecmp_k(8)")
    seeds: ClassVar[int] = 200

    def __post_init__(self) -> None:
        count("k", self.k, most=MOST_PARTS)

    @property
    def hashes(self) -> int:
        return self.k

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        return Crossing(fabric, flows).hashed(self.k, seed)
