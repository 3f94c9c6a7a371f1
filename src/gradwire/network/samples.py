"""The effect of chance on loads: the time of the fullest link, seed by seed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradwire.network.bounds import bounds
from gradwire.network.checked import Reals
from gradwire.network.fabric import Fabric, count
from gradwire.network.flows import Flow, Flows
from gradwire.network.loads import EXACT
from gradwire.network.native import columns, core, tiers
from gradwire.network.routing.route import route, scheme_of
from gradwire.network.routing.scheme import Crossing, Scheme


def samples(
    flows: Flows | Iterable[Flow | tuple[int, ...]], topology: Fabric,
    scheme: str | Scheme = "ecmp", number: int = 1000, seed: int = 0,
    hosts: bool = False,
) -> Reals:  # fmt: skip
    """Returns `fabric_seconds` of `route(flows, topology, scheme, seed + i)` for each i below
    `number`, [number]. hosts: take the time of hosts' own links in a step, if that is longer.
    Hashed schemes take 5 ns a flow and seed. Raises NetworkError as `route` does."""
    chosen, given = scheme_of(scheme), Flows.of(flows)
    count("number", number, most=1 << 28)
    count("seed", seed, 0)
    found = np.zeros(number)
    for steps in given.steps():
        own = given[steps[0]]
        least = bounds(own, topology).host_seconds if hosts else 0.0
        taken = _of_step(own, topology, chosen, number, seed)
        found += len(steps) * np.maximum(taken, least)
    return found


def _of_step(flows: Flows, topology: Fabric, scheme: Scheme, number: int, seed: int) -> Reals:
    first = route(flows, topology, scheme, seed).fabric_seconds
    parts = scheme.hashes
    if core() is not None and parts and float(flows.bytes.sum(dtype=float)) * parts < EXACT:
        return _hashed(Crossing(topology, flows), parts, number, seed)
    rest = (route(flows, topology, scheme, seed + i) for i in range(1, number))
    return np.array([first, *(routes.fabric_seconds for routes in rest)])


def _hashed(crossing: Crossing, parts: int, number: int, seed: int) -> Reals:
    native, usable = core(), crossing.usable
    assert native is not None
    table, pair = usable.table, usable.pair
    source, target, size, counts = columns(
        crossing.source, crossing.target, crossing.sizes, usable.counts
    )
    longest = np.zeros(number)
    native.slowest_links(
        (len(size), source.ctypes.data, target.ctypes.data, size.ctypes.data), parts,
        tiers(crossing.fabric), counts.ctypes.data, 0 if pair is None else pair.ctypes.data,
        0 if table is None else table.ctypes.data, 0 if table is None else table.shape[1],
        seed % (1 << 64), number, longest.ctypes.data,
    )  # fmt: skip
    return longest * 8 / parts
