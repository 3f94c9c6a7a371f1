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
    """Makes transfers of pieces: equal pieces are one transfer, and those of a step wait for all
    of their job's step before. Sprayed pieces use all of their paths at once. Links: those of the
    fabric, then of hosts' ports up, then down. Raises NetworkError for jobs on different
    topologies, and unknown links."""
    return _transfers(together(routes), outages).transfers


def ends_of(routes: Jobs, tolerance: float = 0.0, outages: Outages = NONE) -> Reals:
    """Returns the second at which each job ends, by fair shares. Raises NetworkError as
    `transfers_of` and `maxmin.run` do."""
    all = together(routes)
    moved = _transfers(all, outages)
    found = np.zeros(len(all.offset) - 1)
    np.maximum.at(found, moved.job, run(moved.transfers, tolerance).end[: len(moved.job)])
    return found


def trace_of(routes: Jobs, tolerance: float = 0.0, outages: Outages = NONE) -> Trace:
    """Returns when messages are under way, by fair shares: spans of the hosts that send them,
    which are the trace's ranks. Messages that a host sends at once have different lanes. Raises
    NetworkError as `ends_of` does."""
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
    """Transfers, first those that move bytes, then barriers between steps; and the job and hosts
    of each that moves bytes."""

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
    """Yields each change: its second, the fabric, and the paths. Pinned pieces stay on a dead link
    until routing has converged; sprayed ones leave it at once. Raises NetworkError for sprayed
    flows that have no path any more."""
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
    """Returns which transfer between hosts, by its path, uses which link with which part of its
    rate, transfer by transfer: rows, links, parts."""
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
    """Makes barriers between steps, whose numbers do not fall: returns how many come after the
    transfers, and which transfers and barriers follow which. Nothing waits for a job's last."""
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
