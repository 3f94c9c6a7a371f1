"""The load of every link, exactly: whole numbers of a fraction of a byte.

Bytes that are spread over all paths are divided in proportion to their rates: path j of rate w_j
has the part w_j / sum(w), with rates divided by their common divisor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.network.amounts import summed
from gradwire.network.checked import Ints, Reals
from gradwire.network.fabric import BELOW, EVERY, NO_LINK, Fabric
from gradwire.network.flows import Flows

EXACT = 2.0**62  # sums of int64 stay below; larger ones use Python's integers
_AT_ONCE = 1 << 22  # paths


class Loads(NamedTuple):
    """The load of every link, in the order of `fabric.links`: amount, in 1/unit bytes."""

    amount: Ints
    unit: int


def loads(
    fabric: Fabric, source: Ints, target: Ints, path: Ints, amount: Ints, unit: int,
    spread: NDArray[np.bool_],
) -> Loads:  # fmt: skip
    """Adds up the loads of pieces between leaves, each on its path, or spread; amounts in 1/unit
    bytes."""
    shared = list(_spreads(fabric, source[spread], target[spread], amount[spread]))
    finer = math.lcm(1, *{int(w) for *_, own in shared for w in np.unique(own.sum(1))})
    kind = np.int64 if int(amount.sum(dtype=np.float64)) * finer < EXACT else object
    load = np.zeros(len(fabric.rates), kind)
    own = ~spread
    hops = fabric.hops(source[own], target[own], path[own])
    add_loads(load, hops, amount[own].astype(kind) * finer)
    for a, b, sent, worth in shared:
        share = sent.astype(kind) * (finer // worth.sum(1).astype(kind))
        pair, path = np.nonzero(worth)
        add_loads(
            load, fabric.hops(a[pair], b[pair], path), worth[pair, path].astype(kind) * share[pair]
        )
    return Loads(load, unit * finer)


def weights(fabric: Fabric, source: Ints, target: Ints) -> Ints:
    """Returns the rates of paths, [pairs, paths], as small whole numbers."""
    rates = fabric.path_rates(source, target)
    shared: Ints = np.gcd.reduce(rates, axis=1)
    return rates // np.maximum(shared, 1)[:, None]


def ways_of(fabric: Fabric, source: Ints, target: Ints, path: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns the paths that pieces between leaves take, as rows: the piece, the path, and its
    weight among the piece's paths. A piece below a leaf has none."""
    pinned, spread = np.flatnonzero(path >= 0), np.flatnonzero(path == EVERY)
    own = weights(fabric, source[spread], target[spread])
    some, way = np.nonzero(own)
    worth = np.append(np.ones(len(pinned), np.int64), own[some, way])
    return np.append(pinned, spread[some]), np.append(path[pinned], way), worth


def _spreads(
    fabric: Fabric, source: Ints, target: Ints, amount: Ints
) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
    """Yields some pairs of leaves at a time, what each sends over all its paths, and the paths'
    weights: pieces between the same leaves are added up."""
    ends, which = fabric.pairs(source, target)
    sums = summed(which, amount, len(ends[0]))
    paths = int(fabric.paths(*ends).max(initial=0))
    for some in np.array_split(np.arange(len(sums)), 1 + len(sums) * paths // _AT_ONCE):
        a, b = ends[0][some], ends[1][some]
        yield a, b, sums[some], weights(fabric, a, b)


def add_loads(load: NDArray[Any], hops: Ints, amount: NDArray[Any]) -> None:
    """Adds amounts on these hops, [pieces, 4] (`Fabric.hops`), to the load of every link."""
    for column in hops.T:
        taken = column != NO_LINK
        np.add.at(load, column[taken], amount[taken])


# -- hosts' own links: a host with ports on several planes uses those of the path --------------


def all_rates(fabric: Fabric) -> Ints:
    """Returns the bits per second of every link: those of the fabric, then up by each port of
    every host, then down."""
    return np.concatenate([
        fabric.rates, fabric.host_up.reshape(-1), fabric.host_down.reshape(-1)
    ])  # fmt: skip


def ports(
    fabric: Fabric, flows: Flows, flow: Ints, path: Ints, amount: Reals
) -> tuple[Reals, Reals]:
    """Adds up the bytes of pieces that hosts send and receive, [hosts, ports] each. A piece below
    a leaf is divided over ports in proportion to their rates."""
    found = np.zeros((2, *fabric.host_up.shape))
    source, target = flows.src[flow], flows.dst[flow]
    share = port_shares(fabric, source, target, path) * amount[:, None]
    np.add.at(found[0], source, share)
    np.add.at(found[1], target, share)
    return found[0], found[1]


def port_shares(fabric: Fabric, source: Ints, target: Ints, path: Ints) -> Reals:
    """Returns the part of each piece on each port, [pieces, ports]."""
    if fabric.planes == 1:
        return np.ones((len(path), 1))
    a, b = fabric.leaf_of[source], fabric.leaf_of[target]
    found = np.minimum(fabric.host_up[source], fabric.host_down[target]).astype(float)
    found[path != BELOW] = 0
    some, way, worth = ways_of(fabric, a, b, path)
    plane = fabric.plane_of[fabric.uplink_of(a[some], b[some], way)]
    np.add.at(found, (some, plane), worth)
    shares: Reals = found / found.sum(1, keepdims=True)
    return shares
