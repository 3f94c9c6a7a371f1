"""The cost of each failure: pieces whose path fails take the least loaded path, others stay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.amounts import shrunk
from gradwire.network.checked import Ints, Reals
from gradwire.network.fabric import BELOW, EVERY, LEAF, Fabric, Link, count
from gradwire.network.least_loaded import least_loaded
from gradwire.network.loads import add_loads, all_rates, ports
from gradwire.network.native import columns, core, tiers
from gradwire.network.routes import Routes


@dataclass(frozen=True, eq=False)
class Failures:
    """The cost of each set of links. seconds: until the last link of hosts and switches is done,
    as in `Routes.seconds`, once the plan has gone around the failure, inf if hosts have no other
    path; moved: the number of pieces that changed their path. before: the seconds without a
    failure."""

    what: Sequence[tuple[Link, ...]]
    seconds: Reals
    moved: Ints
    before: float


def cables(fabric: Fabric) -> list[tuple[Link, ...]]:
    """Returns every cable between switches that can fail: its link up, and its link down. One
    without a rate either way has failed already, or stands for none."""
    low = fabric.leaves * len(fabric.uplinks)
    high = (len(fabric.links) - 2 * low) // 2
    pairs = [(i, low + i) for i in range(low)]
    pairs += [(2 * low + i, 2 * low + high + i) for i in range(high)]
    works = fabric.rates > 0
    return [(fabric.links[a], fabric.links[b]) for a, b in pairs if works[a] or works[b]]


def switches(fabric: Fabric) -> list[tuple[Link, ...]]:
    """Returns the links of every switch above leaves that can fail, switch by switch."""
    found: dict[str, list[Link]] = {}
    for link, rate in zip(fabric.links, fabric.rates.tolist()):
        for name in link[:2] if rate else ():
            if not re.fullmatch(LEAF, name):
                found.setdefault(name, []).append(link)
    return [tuple(own) for own in found.values()]


def sweep(
    routes: Routes, what: Sequence[tuple[Link, ...]] | None = None, seed: int = 0
) -> Failures:
    """Computes the cost of each of these sets of links alone, by default of every cable. Raises
    NetworkError unless the routes are of one step and pinned, and for unknown links."""
    count("seed", seed, 0)
    fabric = routes.fabric
    sets = cables(fabric) if what is None else list(what)
    routes = _checked(routes)
    links = fabric.numbers_of(link for own in sets for link in own)
    start = np.concatenate([[0], np.cumsum([len(own) for own in sets])]).astype(np.int64)
    native = core()
    if native is None:
        after = [_around(routes, links[a:b], seed) for a, b in pairwise(start)]
        seconds, moved = np.array([s for s, _ in after]), np.array([m for _, m in after], int)
        return Failures(sets, seconds, moved, routes.seconds)
    slowest, moved = np.zeros(len(sets)), np.zeros(len(sets), np.int64)
    flow, (source, target, amount, path), unit = _between(routes)
    source, target, amount, path, sender, receiver, plane_of, rates = columns(
        source, target, amount, path, routes.flows.src[flow], routes.flows.dst[flow],
        fabric.plane_of, all_rates(fabric)[len(fabric.rates) :],
    )  # fmt: skip
    before = _below(routes)
    planes = fabric.planes if fabric.planes > 1 else 0  # one port is as full on every path
    native.sweep_failures(
        (len(path), source.ctypes.data, target.ctypes.data, amount.ctypes.data),
        path.ctypes.data, tiers(fabric),
        (planes, fabric.hosts, sender.ctypes.data, receiver.ctypes.data,
         plane_of.ctypes.data, rates.ctypes.data, before.ctypes.data),
        (len(sets), start.ctypes.data, links.ctypes.data),
        seed % (1 << 64), slowest.ctypes.data, moved.ctypes.data,
    )  # fmt: skip
    seconds = slowest * 8 / unit if planes else np.maximum(slowest * 8 / unit, routes.host_seconds)
    return Failures(sets, seconds, moved, routes.seconds)


def _between(routes: Routes) -> tuple[Ints, tuple[Ints, Ints, Ints, Ints], float]:
    """Returns the flow of pieces between leaves; their source, target, amount and path; and the
    amounts' unit. The kernel subtracts amounts from loads again, which must leave nothing: sums
    are exact."""
    own, leaf = routes.path >= 0, routes.fabric.leaf_of
    flow, flows = routes.flow[own], routes.flows
    amount, unit = shrunk(routes.amount, routes.unit, 53)
    ends = leaf[flows.src[flow]], leaf[flows.dst[flow]]
    return flow, (*ends, amount[own], routes.path[own]), unit


def _below(routes: Routes) -> Reals:
    """Returns what pieces below leaves load every port with, up and then down, in whole numbers of
    the same unit."""
    own = routes.path == BELOW
    amount = shrunk(routes.amount, routes.unit, 53)[0][own].astype(np.float64)
    loads = ports(routes.fabric, routes.flows, routes.flow[own], routes.path[own], amount)
    return np.rint(np.concatenate(loads).reshape(-1))


def _around(routes: Routes, failed: Ints, seed: int) -> tuple[float, int]:
    """Returns seconds and the number of moved pieces for one set: the slow twin of the kernel."""
    rates = routes.fabric.rates.copy()
    rates[failed] = 0
    broken = replace(routes.fabric, rates=rates)
    _, (source, target, amount, path), _ = _between(routes)
    hops = broken.hops(source, target, path)
    moves = np.isin(hops, failed).any(1)
    load = np.zeros(len(rates))
    add_loads(load, hops[~moves], amount[~moves])
    after, some = routes.path.copy(), np.flatnonzero(routes.path >= 0)[moves]
    after[some] = least_loaded(broken, source[moves], target[moves], amount[moves], seed, load)
    with np.errstate(divide="ignore"):
        return replace(routes, fabric=broken, path=after).seconds, len(some)


def _checked(routes: Routes) -> Routes:
    own = routes.checked()
    steps = len(np.unique(own.flows.step))
    if steps > 1 or (own.path == EVERY).any():
        raise NetworkError(
            "failures can be computed only for one step of pinned paths; got "
            f"{f'{steps} steps' if steps > 1 else 'sprayed packets'}. Route one step alone, by "
            "'coloured' or another scheme that pins."
        )
    return own
