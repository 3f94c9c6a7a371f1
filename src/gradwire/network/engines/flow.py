"""Routes as transfers over links of hosts and switches, step after step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gradwire.network.amounts import as_bytes
from gradwire.network.checked import Ints, Reals
from gradwire.network.engines.maxmin import Change, Rows, Transfers, run
from gradwire.network.fabric import EVERY, NO_LINK, Fabric, Link
from gradwire.network.flows import Flows
from gradwire.network.jobs import Jobs, Together, together
from gradwire.network.lanes import in_lanes
from gradwire.network.loads import all_rates, port_shares, ways_of
from gradwire.network.outages import NONE, Outages, paths_after
from gradwire.network.routing.route import refuse_disconnected
from gradwire.trace import Span, Trace


def transfers_of(routes: Jobs, outages: Outages = NONE) -> Transfers:
    """Pieces that are alike are one transfer; those of a step wait for all of their job's step
    before. What is sprayed uses all of its paths at once. Links: those of the fabric, then of
    hosts' ports up, then down. NetworkError for jobs on different topologies, and links that are
    not there."""
    return _transfers(together(routes), outages).transfers


def ends_of(routes: Jobs, tolerance: float = 0.0, outages: Outages = NONE) -> Reals:
    """The second at which each job ends, by fair shares. NetworkError as of `transfers_of`, and
    `maxmin.run`."""
    all = together(routes)
    moved = _transfers(all, outages)
    found = np.zeros(len(all.offset) - 1)
    np.maximum.at(found, moved.job, run(moved.transfers, tolerance).end[: len(moved.job)])
    return found


def trace_of(routes: Jobs, tolerance: float = 0.0, outages: Outages = NONE) -> Trace:
    """When messages are under way, by fair shares: spans of the hosts that send them, which are
    the trace's ranks. What a host sends at once lies in lanes of its own. NetworkError as of
    `ends_of`."""
    all = together(routes)
    moved = _transfers(all, outages)
    times = run(moved.transfers, tolerance)
    sent = moved.transfers.bytes * moved.transfers.many
    return in_lanes(
        all.routes.fabric.hosts,
        (
            Span(int(moved.source[i]), 0, "wire", f"to host {moved.target[i]}",
                 float(times.begin[i]), float(times.end[i]), float(sent[i]))
            for i in range(len(moved.job))
        ),
    )  # fmt: skip


class _Moved(NamedTuple):
    """Transfers, of which the first move something, and barriers between steps come after these;
    and of each that moves something its job and hosts."""

    transfers: Transfers
    job: Ints
    source: Ints
    target: Ints


def _transfers(all: Together, outages: Outages) -> _Moved:
    routes = all.routes
    fabric, flows, bytes = routes.fabric, routes.flows, as_bytes(routes.amount, routes.unit)
    later = [together(jobs).routes for _, jobs in outages.converged]
    keys = np.stack([
        flows.step[routes.flow], flows.start_ns[routes.flow], flows.src[routes.flow],
        flows.dst[routes.flow], routes.path,
        np.unique(bytes, return_inverse=True)[1], all.job[routes.flow],
        *(np.where(routes.path >= 0, paths_after(routes, after), routes.path) for after in later),
    ])  # fmt: skip
    order = np.lexsort(keys[::-1])
    keys = keys[:, order]
    is_new = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(0))[: len(order)]
    many = np.diff(np.append(np.flatnonzero(is_new), len(order)))
    step, start, source, target, path, _, job, *paths = keys[:, is_new]
    row, link, part = uses_of(fabric, source, target, path)
    sprayed = flows[np.unique(routes.flow[routes.path == EVERY])]
    barriers, after = _barriers(step, job)
    n = len(step) + barriers
    changes = [
        Change(when, Rows.of(*uses[:2], n), uses[2], all_rates(now) / 8)
        for when, now, own in _situations(fabric, outages, [path, *paths], sprayed)
        for uses in [uses_of(now, source, target, own)]
    ]
    transfers = Transfers(
        Rows.of(row, link, n), part, np.append(bytes[order][is_new], np.zeros(barriers)),
        np.append(many, np.ones(barriers)).astype(float), after,
        np.append(start * 1e-9, np.zeros(barriers)),
        all_rates(fabric) / 8, tuple(changes),
    )  # fmt: skip
    return _Moved(transfers, job, source, target)


def _situations(
    fabric: Fabric, outages: Outages, paths: Sequence[Ints], sprayed: Flows
) -> Iterator[tuple[float, Fabric, Ints]]:
    """From when on, on which fabric, by which paths: what is pinned stays on a dead link until
    routing has converged, and what is sprayed leaves it at once. NetworkError for what is sprayed
    and has no path any more."""
    turns = list[tuple[float, int, Link | None]]()
    turns += [(when, 0, link) for link, when in outages.fails.items()]
    turns += [(when, 1 + i, None) for i, (when, _) in enumerate(outages.converged)]
    now = 0
    for when, number, link in sorted(turns, key=lambda turn: turn[:2]):
        if link is not None:
            fabric = fabric.without(link)
            refuse_disconnected(fabric, sprayed)
        else:
            now = number
        yield when, fabric, paths[now]


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


def _barriers(step: Ints, job: Ints) -> tuple[int, Rows]:
    """Barriers between steps, which do not fall: how many barriers come after the transfers, and
    which transfers and barriers follow which. Nobody waits for that at the end of a job."""
    n = len(step)
    number = np.unique(step, return_inverse=True)[1]
    barriers = int(number.max(initial=0))
    begins = np.searchsorted(job, job)  # the first transfer of its job
    to_barrier, to_next = (
        np.flatnonzero(number < barriers),
        np.flatnonzero(number > number[begins]),
    )
    rows = np.concatenate([to_barrier, n + number[to_next] - 1])
    return barriers, Rows.of(rows, np.concatenate([n + number[to_barrier], to_next]), n + barriers)
