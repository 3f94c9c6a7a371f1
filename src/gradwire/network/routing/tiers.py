"""Makes a path of a few choices: the plane of a host's port, a leaf's uplink, a pod's core.

Each tier divides what the one before put together: flows between the same hosts, then between
leaves in a plane, then between pods by an uplink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.network.amounts import scaled
from gradwire.network.checked import Ints
from gradwire.network.colouring import Side, colour
from gradwire.network.routing.scheme import Crossing, Share
from gradwire.network.routing.wrap import wrapped

Method = Callable[[Side, Side, Ints, int], Share]
_MOST = 1024  # parts that unequal rates are rounded to


class Ways(NamedTuple):
    """The next ways after a way so far (`parent`): their numbers and weights."""

    parent: int
    number: Ints
    weight: Ints


class Tier(NamedTuple):
    """One choice: the flows that make it, their two ends, and the ways to choose from."""

    chosen: NDArray[np.bool_]
    left: Side
    right: Side
    ways: list[Ways]


def whole(left: Side, right: Side, weights: Ints, seed: int) -> Share:
    """Cuts no edge: a way has at most weight * ceil(d / sum of weights) of a vertex's d edges."""
    edges = np.arange(len(left.vertex))
    of_colour = np.repeat(np.arange(len(weights)), weights)
    way = of_colour[colour(left, right, len(of_colour), seed)]
    return Share(edges, way, np.ones(len(edges), np.int64), 1)


def share_out(crossing: Crossing, method: Method, seed: int) -> Share:
    """Divides flows into parts with a path each, tier by tier: by the method what is still whole,
    by wrapping (`wrapped`) what was cut before."""
    flows = len(crossing.which)
    share = Share(np.arange(flows), np.zeros(flows, np.int64), np.ones(flows, np.int64), 1)
    for tier in _tiers(crossing):
        share = _refined(share, tier, method, seed)
    return share


def _tiers(crossing: Crossing) -> Iterator[Tier]:
    """Yields tiers. All flows choose together, unless some uplinks lead to their pod and to no
    core."""
    fabric = crossing.fabric
    far = fabric.crosses(crossing.source, crossing.target)
    uplinks = _fastest(fabric.up, fabric.down)
    cores = _fastest(fabric.core_up, fabric.core_down)
    beyond = np.where(cores.any(1), uplinks, 0)
    if not fabric.cores or (beyond == uplinks).all():
        yield from _below(crossing, np.ones_like(far), uplinks)
    else:
        yield from _below(crossing, ~far, uplinks)
        yield from _below(crossing, far, beyond)
    if fabric.cores:
        source, target = (fabric.pod_of[leaf] for leaf in (crossing.source, crossing.target))
        number = np.arange(fabric.cores)
        ways = [
            Ways(u, u * fabric.cores + number, _weights(rates)) for u, rates in enumerate(cores)
        ]
        yield Tier(far, Side.alone(source), Side.alone(target), ways)


def _below(crossing: Crossing, chosen: NDArray[np.bool_], rate: Ints) -> Iterator[Tier]:
    """Yields the choice of planes, if several, and of uplinks. rate: each uplink's; 0: leads
    nowhere."""
    fabric, flows = crossing.fabric, crossing.flows
    plane = np.arange(fabric.planes)
    if len(plane) > 1:
        left, right = (
            Side.of(end[crossing.which], fabric.leaf_of) for end in (flows.src, flows.dst)
        )
        ports = _fastest(fabric.host_up, fabric.host_down)
        leads = np.bincount(fabric.plane_of, rate > 0, len(plane)) > 0
        yield Tier(chosen, left, right, [Ways(0, plane, _weights(np.where(leads, ports, 0)))])
    own = [np.flatnonzero(fabric.plane_of == p) for p in plane]
    ways = [Ways(p, uplinks, _weights(rate[uplinks])) for p, uplinks in enumerate(own)]
    yield Tier(chosen, *crossing.sides, ways)


def _refined(share: Share, tier: Tier, method: Method, seed: int) -> Share:
    stays = np.flatnonzero(~tier.chosen[share.edge])
    found = [Share(share.edge[stays], share.way[stays], share.part[stays], 1)]
    for ways in tier.ways:
        here = tier.chosen[share.edge] & (share.way == ways.parent)
        is_whole = share.part == share.unit
        for some, split in ((here & is_whole, method), (here & ~is_whole, None)):
            rows = np.flatnonzero(some)
            if len(rows):
                edge, part = share.edge[rows], share.part[rows]
                left, right = tier.left.some(edge), tier.right.some(edge)
                if split:
                    own = split(left, right, ways.weight, seed)
                    own = own._replace(part=scaled(own.part, part[own.edge]))
                else:
                    own = _wrapped(left, right, part, ways.weight, seed)
                found.append(own._replace(edge=edge[own.edge], way=ways.number[own.way]))
    finer = Share.joined(found)
    return finer._replace(unit=share.unit * finer.unit)


def _wrapped(left: Side, right: Side, parts: Ints, weights: Ints, seed: int) -> Share:
    """Wraps parts around the ways; each pair of ends is a line."""
    ends = left.vertex.astype(np.int64) * len(right.group) + right.vertex
    pairs, line = np.unique(ends, return_inverse=True)
    first = np.random.default_rng(seed).integers(0, len(weights), len(pairs))
    return wrapped(line, parts, np.tile(weights, (len(pairs), 1)), first)


def _fastest(there: Ints, back: Ints) -> Ints:
    """Returns the rate of each way, from rates [ends, ways] in both directions: its fastest links
    count, because slower ones failed. A way that is left to one end alone leads nowhere."""
    ends = (there > 0) | (back > 0)
    rate: Ints = np.where(ends.sum(0) > 1, np.minimum(there.max(0), back.max(0)), 0)
    return rate


def _weights(rate: Ints) -> Ints:
    """Returns the weight of each way, by its rate, as a small whole number."""
    small: Ints = rate // max(int(np.gcd.reduce(rate)), 1)
    if small.sum(dtype=float) <= _MOST:
        return small
    rounded = np.maximum(np.rint(rate / rate.sum(dtype=float) * _MOST), 1)
    return np.where(rate > 0, rounded, 0).astype(np.int64)
