"""The effect of chance on loads: the time of the fullest link, seed by seed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradwire.network.bounds import bounds
from gradwire.network.checked import Reals
from gradwire.network.fabric import BELOW, Fabric, count
from gradwire.network.flows import Flow, Flows
from gradwire.network.loads import EXACT, all_rates, ports
from gradwire.network.native import columns, core, tiers
from gradwire.network.routing.route import route, scheme_of
from gradwire.network.routing.scheme import Crossing, Scheme


def samples(
    flows: Flows | Iterable[Flow | tuple[int, ...]], topology: Fabric,
    scheme: str | Scheme = "ecmp", number: int = 1000, seed: int = 0,
    hosts: bool = False,
) -> Reals:  # fmt: skip
    """Returns `fabric_seconds` of `route(flows, topology, scheme, seed + i)` for each i below
    `number`, [number]; or, if `hosts`, its `seconds`: in each step hosts' own links count, too.
    Hashed schemes take 5 ns a flow and seed. Raises NetworkError as `route` does."""
    chosen, given = scheme_of(scheme), Flows.of(flows)
    count("number", number, most=1 << 28)
    count("seed", seed, 0)
    found = np.zeros(number)
    for steps in given.steps():
        found += len(steps) * _of_step(given[steps[0]], topology, chosen, number, seed, hosts)
    return found


def _of_step(
    flows: Flows, topology: Fabric, scheme: Scheme, number: int, seed: int, hosts: bool
) -> Reals:
    first = route(flows, topology, scheme, seed)
    parts = scheme.hashes
    if core() is not None and parts and float(flows.bytes.sum(dtype=float)) * parts < EXACT:
        found = _hashed(Crossing(topology, flows), parts, number, seed, hosts)
        least = bounds(flows, topology).host_seconds if hosts else 0.0
        return np.maximum(found, least)
    rest = (route(flows, topology, scheme, seed + i) for i in range(1, number))
    return np.array([own.seconds if hosts else own.fabric_seconds for own in (first, *rest)])


def _hashed(crossing: Crossing, parts: int, number: int, seed: int, hosts: bool) -> Reals:
    """Returns seconds by hashes; with the ports of hosts that have several, if `hosts`."""
    native, usable, fabric = core(), crossing.usable, crossing.fabric
    assert native is not None
    table, pair = usable.table, usable.pair
    source, target, size, counts = columns(
        crossing.source, crossing.target, crossing.sizes, usable.counts
    )
    flows, planes = crossing.flows, fabric.planes if hosts and fabric.planes > 1 else 0
    sender, receiver, plane_of, rates = columns(
        flows.src[crossing.which], flows.dst[crossing.which], fabric.plane_of,
        all_rates(fabric)[len(fabric.rates) :],
    )  # fmt: skip
    stays = np.flatnonzero(fabric.leaf_of[flows.src] == fabric.leaf_of[flows.dst])
    amount = (flows.bytes[stays] * parts).astype(np.float64)
    below = ports(fabric, flows, stays, np.full(len(stays), BELOW), amount)
    before = np.concatenate(below).reshape(-1)
    longest = np.zeros(number)
    native.slowest_links(
        (len(size), source.ctypes.data, target.ctypes.data, size.ctypes.data), parts,
        tiers(fabric),
        (planes, fabric.hosts, sender.ctypes.data, receiver.ctypes.data, plane_of.ctypes.data,
         rates.ctypes.data, before.ctypes.data),
        counts.ctypes.data, 0 if pair is None else pair.ctypes.data,
        0 if table is None else table.ctypes.data, 0 if table is None else table.shape[1],
        seed % (1 << 64), number, longest.ctypes.data,
    )  # fmt: skip
    return longest * 8 / parts
