"""Each host balances what it sends to each leaf, and knows of no other host.

    9 flows to one leaf, 4 paths      path 0   1   2   3
                                           ■   ■   ■   ■       whole, in turn
                                           ■   ■   ■   ■
                                           ▪   ▪   ▪   ▪       the ninth, in quarters

Source: Addanki et al. 2025 (arXiv 2407.00550v2), theorem 1: every link carries what it would if
packets were sprayed. In the paper a host takes what it begins within 100 ns as one batch; here,
what it sends in one step. `Transport.exclude_us` avoids paths on which a timer ran out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.network.amounts import parts_of, scaled
from gradwire.network.checked import Ints
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme


@dataclass(frozen=True)
class Ethereal(Scheme):
    """Cuts n mod s of a host's n equal flows to a leaf with s paths, in s / gcd pieces.

    whole_bytes: the last piece has the remainder of the division, as the authors send; otherwise
    pieces are equal to the fraction of a byte.
    """

    whole_bytes: bool = False
    name: ClassVar[str] = "ethereal"

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        turn, size = _turns(crossing, np.random.default_rng(seed))
        s = crossing.usable.counts
        rest = size % s
        is_cut = turn >= size - rest
        pieces = np.where(is_cut, s // np.gcd(rest, s), 1)
        flow = np.repeat(np.arange(len(turn)), pieces)
        part = np.arange(len(flow)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        turn = np.where(is_cut, (turn - (size - rest)) * pieces, turn)[flow] + part
        path = crossing.usable.path(flow, turn % s[flow])
        total = flows.bytes[crossing.which][flow]
        if not self.whole_bytes:
            unit = math.lcm(1, *np.unique(pieces).tolist())
            return crossing.cut(flow, path, scaled(total, parts_of(unit, pieces[flow])), unit)
        even, is_last = total // pieces[flow], part == pieces[flow] - 1
        bytes = np.where(is_last, total - even * (pieces[flow] - 1), even)
        return crossing.cut(flow[bytes > 0], path[bytes > 0], bytes[bytes > 0], 1)


def _turns(crossing: Crossing, dice: np.random.Generator) -> tuple[Ints, Ints]:
    """Returns the number of each flow among those from the same host to the same leaf, in random
    order, and how many those are. Raises NetworkError if their sizes differ by more than a
    hundredth."""
    source = crossing.flows.src[crossing.which]
    found = np.unique(source * crossing.fabric.leaves + crossing.target, return_inverse=True)
    bucket, many = found[1], np.bincount(found[1], minlength=len(found[0]))
    order = np.lexsort((dice.random(len(bucket)), bucket))
    begins = np.cumsum(many) - many
    place = np.empty(len(bucket), np.int64)
    place[order] = np.arange(len(bucket)) - begins[bucket[order]]
    crossing.refuse_unequal(order[begins[bucket]])
    return place, many[bucket]
