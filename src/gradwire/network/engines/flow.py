"""Routes as transfers over links of hosts and switches, step after step."""

from __future__ import annotations

import numpy as np

from gradwire.network.amounts import as_bytes
from gradwire.network.checked import Ints, Reals
from gradwire.network.engines.maxmin import Rows, Transfers
from gradwire.network.fabric import NO_LINK, Fabric
from gradwire.network.loads import all_rates, port_shares, ways_of
from gradwire.network.routes import Routes


def transfers_of(routes: Routes) -> Transfers:
    """Pieces that are alike are one transfer; those of a step wait for all of the step before.
    What is sprayed uses all of its paths at once. Links: those of the fabric, then of hosts' ports
    up, then down."""
    fabric, flows, bytes = routes.fabric, routes.flows, as_bytes(routes.amount, routes.unit)
    keys = np.stack([
        flows.step[routes.flow], flows.start_ns[routes.flow], flows.src[routes.flow],
        flows.dst[routes.flow], routes.path,
        np.unique(bytes, return_inverse=True)[1],
    ])  # fmt: skip
    order = np.lexsort(keys[::-1])
    keys = keys[:, order]
    is_new = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(0))
    many = np.diff(np.append(np.flatnonzero(is_new), len(order)))
    step, start, source, target, path, _ = keys[:, is_new]
    row, link, part = uses_of(fabric, source, target, path)
    barriers, after = _barriers(step)
    n = len(step) + barriers
    return Transfers(
        Rows.of(row, link, n), part, np.append(bytes[order][is_new], np.zeros(barriers)),
        np.append(many, np.ones(barriers)).astype(float), after,
        np.append(start * 1e-9, np.zeros(barriers)),
        all_rates(fabric) / 8,
    )  # fmt: skip


def uses_of(fabric: Fabric, source: Ints, target: Ints, path: Ints) -> tuple[Ints, Ints, Reals]:
    """Which transfer between hosts, by its path, uses which link with which part of its rate,
    transfer by transfer: rows, links, parts."""
    own = np.arange(len(path))
    share = port_shares(fabric, source, target, path)
    ports = share.shape[1]
    first = len(fabric.rates)
    rows, links, parts = [np.repeat(own, ports)] * 2, list[Ints](), [share.reshape(-1)] * 2
    for start, host in ((first, source), (first + fabric.hosts * ports, target)):
        links.append((start + host[:, None] * ports + np.arange(ports)).reshape(-1))
    a, b = fabric.leaf_of[source], fabric.leaf_of[target]
    some, way, worth = ways_of(fabric, a, b, path)
    total = np.bincount(some, worth, len(path))
    rows.append(np.repeat(some, 4))
    links.append(fabric.hops(a[some], b[some], way).reshape(-1))
    parts.append(np.repeat(worth / total[some], 4))
    row, link, part = np.concatenate(rows), np.concatenate(links), np.concatenate(parts)
    used = np.flatnonzero((link != NO_LINK) & (part > 0))
    order = used[np.argsort(row[used], kind="stable")]
    return row[order], link[order], part[order]


def _barriers(step: Ints) -> tuple[int, Rows]:
    """Barriers between steps, which do not fall: how many barriers come after the transfers, and
    which transfers and barriers follow which."""
    n = len(step)
    number = np.unique(step, return_inverse=True)[1]
    barriers = int(number.max(initial=0))
    to_barrier, to_next = np.flatnonzero(number < barriers), np.flatnonzero(number > 0)
    rows = np.concatenate([to_barrier, n + number[to_next] - 1])
    return barriers, Rows.of(rows, np.concatenate([n + number[to_barrier], to_next]), n + barriers)
