"""As much on the fullest link as by spraying, with the fewest flows cut.

    D = 10 flows at a leaf, 4 uplinks    uplink 0   1   2   3
                                         ■   ■   ■   ■         8 whole, by equitable colours
                                         ■   ■   ■   ■
                                         ▪   ▪   ▪   ▪         2 laid on a line, and cut in halves

Of D flows at a leaf, D mod s are cut, in r + s - gcd(r, s) pieces together, at the leaves with
the most; where they are fewer, none may be. Source: docs/design/network.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.network.amounts import scaled
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme
from gradwire.network.routing.shares import exact
from gradwire.network.routing.tiers import share_out


@dataclass(frozen=True)
class MinSplit(Scheme):
    """Equal flows, of which only remainders are cut: D / s on every uplink at most.

    Hosts with several ports, and pods, share theirs in the same way; what was cut already is
    wrapped around, pair by pair. So where one choice follows another, a link has its share of what
    came whole and its share of what came cut.
    """

    name: ClassVar[str] = "min_split"
    is_planned: ClassVar[bool] = True

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        crossing.refuse_unequal()
        share = share_out(crossing, exact, seed)
        amount = scaled(crossing.sizes[share.edge], share.part)
        path = crossing.around_failures(share.edge, share.way, amount, seed)
        return crossing.cut(share.edge, path, amount, share.unit)
