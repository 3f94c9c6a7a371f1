"""Between leaves and spines loads the fullest link as much as spraying does, with few flows cut.

    D = 10 flows at a leaf, 4 uplinks    uplink 0   1   2   3
                                         ■   ■   ■   ■         8 whole, by equitable colours
                                         ■   ■   ■   ■
                                         ▪   ▪   ▪   ▪         2 laid on a line, and cut in halves

A leaf with D flows, the most of all, and s uplinks cuts r = D mod s of them, in r + s - gcd(r, s)
pieces together; a leaf with fewer may cut none. Source: docs/design/network.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradwire.network.amounts import scaled
from gradwire.network.checked import Ints
from gradwire.network.colouring import Side, colour
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme, Share
from gradwire.network.routing.tiers import share_out, whole


@dataclass(frozen=True)
class MinSplit(Scheme):
    """Cuts only remainders of equal flows: an uplink has at most D / s flows.

    The ports of a host, and the cores of pods, are shared in the same way; what was cut already is
    wrapped around, pair by pair. So if one choice follows another, a link has its share of what
    came whole and its share of what came cut: in a fat tree, or at ports of several planes, the
    fullest may have more than with spraying.
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


def exact(left: Side, right: Side, weights: Ints, seed: int) -> Share:
    """Puts at most D * weight / sum of weights on a way of any vertex, D being the most edges of
    one, and cuts few edges.

    With D colours each vertex has one edge of a colour at most. The smallest D mod W classes, W
    the sum of weights, are laid on a line and cut where the ways' shares end (McNaughton 1959);
    those of their edges that give no vertex too many go with the rest, whole.
    """
    unit = int(weights.sum())
    degrees = [np.bincount(side.vertex, minlength=len(side.group)) for side in (left, right)]
    fullest = max(int(d.max(initial=0)) for d in degrees)
    turns, over = divmod(fullest, unit)
    is_cut = np.zeros(len(left.vertex), np.bool_)
    number = np.zeros(len(left.vertex), np.int64)
    if over:
        classes = colour(left, right, fullest, seed)
        chosen = np.argsort(np.bincount(classes, minlength=fullest), kind="stable")[:over]
        place = np.full(fullest, -1)
        place[chosen] = np.arange(over)
        number = place[classes]
        is_cut = _needed(number >= 0, left.vertex, right.vertex, degrees, turns * unit)
    stays, cut = np.flatnonzero(~is_cut), np.flatnonzero(is_cut)
    ways = whole(left.some(stays), right.some(stays), weights, seed).way
    row, way, part = _line(over, weights)
    pieces = np.bincount(row, minlength=max(over, 1))[number[cut]]
    first = np.searchsorted(row, number[cut])
    index = np.repeat(first - np.cumsum(pieces) + pieces, pieces) + np.arange(pieces.sum())
    return Share.joined([
        Share(stays, ways, np.full(len(stays), unit), unit),
        Share(np.repeat(cut, pieces), way[index], part[index], unit),
    ])  # fmt: skip


def _needed(
    chosen: NDArray[np.bool_], left: NDArray[np.int32], right: NDArray[np.int32],
    degrees: list[Ints], most: int,
) -> NDArray[np.bool_]:  # fmt: skip
    """Returns the chosen edges that have to be cut: others stay whole while both of their vertices
    have at most `most` whole ones."""
    needed = chosen.copy()
    others = [
        (degree - np.bincount(vertex[chosen], minlength=len(degree))).tolist()
        for degree, vertex in zip(degrees, (left, right))
    ]
    edges = np.flatnonzero(chosen)
    for edge, a, b in zip(edges.tolist(), left[edges].tolist(), right[edges].tolist()):
        if others[0][a] < most and others[1][b] < most:
            others[0][a] += 1
            others[1][b] += 1
            needed[edge] = False
    return needed


def _line(rows: int, weights: Ints) -> tuple[Ints, Ints, Ints]:
    """Lays `rows` edges end to end, cut at the shares of ways; returns row, way and size of each
    part."""
    unit = int(weights.sum())
    ends = np.cumsum(weights) * rows
    cuts = np.unique(np.concatenate([np.arange(rows) * unit, ends - weights * rows]))
    cuts = cuts[cuts < rows * unit]
    way = np.searchsorted(ends, cuts, "right")
    return cuts // max(unit, 1), way, np.append(cuts[1:], rows * unit) - cuts if rows else cuts
