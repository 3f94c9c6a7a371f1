"""A path is a few choices: the plane of a host's port, the uplink of a leaf, the core of a pod.

Each tier shares out what the one before put together: flows between the same hosts, then between
leaves in a plane, then between pods by an uplink.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.network.amounts import scaled
from gradwire.network.colouring import Side
from gradwire.network.fabric import Fabric
from gradwire.network.routing.scheme import Crossing
from gradwire.network.routing.shares import Share
from gradwire.network.routing.wrap import wrapped

Numbers = NDArray[np.int64]
Method = Callable[[Side, Side, Numbers, int], Share]
_MOST = 1024  # parts that unequal rates are rounded to


class Ways(NamedTuple):
    """What a way so far leads to: numbers, and what each is worth."""

    parent: int
    number: Numbers
    weight: Numbers


class Tier(NamedTuple):
    """One choice: of which flows, between which ends of them, among which ways."""

    chosen: NDArray[np.bool_]
    left: Side
    right: Side
    ways: list[Ways]


def share_out(crossing: Crossing, method: Method, seed: int) -> Share:
    """Parts of flows, and the path of each, tier by tier: by the method what is still whole, by
    wrapping (`wrapped`) what was cut before."""
    flows = len(crossing.which)
    share = Share(np.arange(flows), np.zeros(flows, np.int64), np.ones(flows, np.int64), 1)
    for tier in _tiers(crossing):
        share = _refined(share, tier, method, seed)
    return share


def _tiers(crossing: Crossing) -> Iterator[Tier]:
    fabric, flows = crossing.fabric, crossing.flows
    every = np.ones(len(crossing.which), np.bool_)
    planes = int(fabric.plane_of.max()) + 1
    if planes > 1:
        left, right = (
            Side.of(end[crossing.which], fabric.leaf_of) for end in (flows.src, flows.dst)
        )
        worth = _weights(np.minimum(fabric.host_up, fabric.host_down))
        yield Tier(every, left, right, [Ways(0, np.arange(planes), worth)])
    uplink, worth = np.arange(len(fabric.uplinks)), np.minimum(fabric.up, fabric.down)
    ways = [
        Ways(plane, uplink[own], _weights(worth[:, own]))
        for plane in range(planes)
        for own in [fabric.plane_of == plane]
    ]
    yield Tier(every, *crossing.sides, ways)
    if fabric.cores:
        source, target = (fabric.pod_of[leaf] for leaf in (crossing.source, crossing.target))
        core = np.arange(fabric.cores)
        ways = [
            Ways(u, u * fabric.cores + core, _core_weights(fabric, u)) for u in range(len(uplink))
        ]
        yield Tier(source != target, Side.alone(source), Side.alone(target), ways)


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
    finer = math.lcm(1, *(own.unit for own in found))
    return Share(
        np.concatenate([own.edge for own in found]), np.concatenate([own.way for own in found]),
        np.concatenate([scaled(own.part, finer // own.unit) for own in found]), share.unit * finer,
    )  # fmt: skip


def _wrapped(left: Side, right: Side, parts: Numbers, weights: Numbers, seed: int) -> Share:
    """Each pair of ends is a line."""
    ends = left.vertex.astype(np.int64) * len(right.group) + right.vertex
    pairs, line = np.unique(ends, return_inverse=True)
    first = np.random.default_rng(seed).integers(0, len(weights), len(pairs))
    own = wrapped(line, parts, np.tile(weights, (len(pairs), 1)), first)
    return Share(own.one, own.path, own.amount, own.unit)


def _core_weights(fabric: Fabric, uplink: int) -> Numbers:
    return _weights(np.minimum(fabric.core_up[:, uplink], fabric.core_down[:, uplink]))


def _weights(rates: Numbers) -> Numbers:
    """What each way is worth, as small whole numbers, by rates [ends, ways]: the fastest link of a
    way counts, because what is slower failed."""
    rate: Numbers = rates.max(0)
    small = rate // max(int(np.gcd.reduce(rate)), 1)
    if small.sum() <= _MOST:
        return small
    rounded = np.maximum(np.rint(rate / rate.sum() * _MOST), 1)
    return np.where(rate > 0, rounded, 0).astype(np.int64)
