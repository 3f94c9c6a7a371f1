"""What hosts' own links carry. A host with ports on several planes uses those of the path."""

from __future__ import annotations

import numpy as np

from gradwire.network.arrays import Ints, Reals
from gradwire.network.fabric import BELOW, Fabric
from gradwire.network.flows import Flows
from gradwire.network.loads import ways_of


def all_rates(fabric: Fabric) -> Ints:
    """Bits per second of every link: those of the fabric, then up by each port of every host,
    then down."""
    return np.concatenate([
        fabric.rates, fabric.host_up.reshape(-1), fabric.host_down.reshape(-1)
    ])  # fmt: skip


def ports(
    fabric: Fabric, flows: Flows, flow: Ints, path: Ints, amount: Reals
) -> tuple[Reals, Reals]:
    """Add up, of pieces of flows, the bytes that hosts send and receive, [hosts, ports] each. What
    stays below a leaf is shared by ports as fast as they are."""
    found = np.zeros((2, *fabric.host_up.shape))
    source, target = flows.src[flow], flows.dst[flow]
    share = port_shares(fabric, source, target, path) * amount[:, None]
    np.add.at(found[0], source, share)
    np.add.at(found[1], target, share)
    return found[0], found[1]


def port_shares(fabric: Fabric, source: Ints, target: Ints, path: Ints) -> Reals:
    """The part of each piece by each port."""
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
