"""Simulates packets in queues, one by one.

    host ─► leaf ─► spine ─► leaf ─► host      every arrow is a link: a queue, first in first out,
      ▲                               │        then so long for each byte, then its latency
      └───────── acknowledgement ─────┘        which waits in no queue: one latency a link

An acknowledgement with bytes takes time of links, on a way back of its own hash: what comes later
waits for it. A connection has at most a window of packets under way, and the connections of a host
take turns at its own link, a packet each, as in network cards. Pinned ones go back to the first
missing packet when a later one arrives (go-back-N, as RoCE), or when a timer runs out; then they
may take another path. Sprayed ones choose a path for every packet, or switches do. Their packets
count in whatever order they arrive, and only trimmed ones and those whose timer ran out are sent
again. A piece below a leaf has a connection for each port of the hosts. A packet that finds a
queue full is dropped, or trimmed; one that waits longer than the mark allows is marked. Windows
may shrink by marks, as those of DCTCP do (Alizadeh et al. 2010).

A link that fails loses what is on it and all that is sent into it. Once routing has converged,
senders have its new paths; until then none gives up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network import native
from gradwire.network.amounts import as_bytes
from gradwire.network.checked import Ints, Reals
from gradwire.network.engines import packet_twin
from gradwire.network.engines.transport import CHOICES, Connections, Paths, Transport
from gradwire.network.fabric import BELOW, EVERY, Fabric, count
from gradwire.network.flows import Flows
from gradwire.network.jobs import Jobs, Together, together
from gradwire.network.lanes import in_lanes
from gradwire.network.loads import all_rates, port_shares
from gradwire.network.native import TOO_LATE, TOO_MANY, columns, tiers
from gradwire.network.outages import NONE, Outages, paths_after
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing
from gradwire.trace import Span, Trace

MOST_PACKETS = 1 << 30
"""The most packets of a run, which takes five to thirty minutes. Each time sent counts."""
MOST_UNDER_WAY = 1 << 26
"""The most packets under way in a step: some gigabytes of memory."""
LATEST = 10**18
"""The longest run, in picoseconds: a million seconds."""
_NEVER = -1
_JITTER = 1


class Sent(NamedTuple):
    """The result of a run. seconds: when the last byte of each piece arrived, inf: never, in the
    order of `pieces`, which are rows of the routes; longest_wait: seconds at each link; events:
    packets at ends of links and notices at senders; dropped, marked, trimmed: packets."""

    seconds: Reals
    pieces: Ints
    longest_wait: Reals
    events: int
    dropped: int
    marked: int
    trimmed: int


def send(
    routes: Jobs, transport: Transport | None = None, outages: Outages = NONE, seed: int = 0
) -> Sent:
    """Sends all pieces of all steps, of one job or of several, whose rows follow each other. Equal
    seeds give equal results. Raises NetworkError for jobs on different topologies, unknown links,
    and a run beyond MOST_PACKETS, MOST_UNDER_WAY or LATEST. Ctrl-C ends it."""
    how, all = transport or Transport(), together(routes)
    count("seed", seed, 0)
    rows, connections = _connections(all, how, outages, seed)
    _refuse_too_many(connections, how)
    fabric = all.routes.fabric
    rates, down = all_rates(fabric), _fails(fabric, outages)
    fast = native.core()
    limits = MOST_PACKETS, LATEST
    if fast is None:
        end, wait, totals = packet_twin.run(connections, fabric, rates, down, how, seed, limits)
    else:
        end, wait = np.zeros(len(rows), np.int64), np.zeros(len(rates), np.int64)
        given = columns(*connections[:-1])
        leaf_of, plane_of, rates, down = columns(fabric.leaf_of, fabric.plane_of, rates, down)
        source, target, bytes, choice, start, step, job = (c.ctypes.data for c in given)
        totals = fast.send_packets(
            (len(rows), source, target, bytes, choice, start, step, job,
             [_given_paths(paths) for paths in connections.paths]),
            tiers(fabric),
            (fabric.hosts, fabric.host_up.shape[1], leaf_of.ctypes.data, plane_of.ctypes.data,
             rates.ctypes.data, down.ctypes.data),
            _given(how, seed), limits, end.ctypes.data, wait.ctypes.data,
        )  # fmt: skip
    *counted, stopped = totals
    if stopped == TOO_MANY:
        raise _too_many(f"that many were sent for {len(rows):,} messages, with those resent")
    if stopped == TOO_LATE:
        raise NetworkError(
            f"a simulation of packets can last at most {LATEST // 10**12:,} seconds; this one is "
            f"longer, its slowest link has {rates[rates > 0].min():,} bit/s. Send fewer bytes, or "
            "give links higher rates."
        )
    own, first, place = np.unique(rows, return_index=True, return_inverse=True)
    seconds = np.zeros(len(own))
    np.maximum.at(seconds, place, np.where(end == _NEVER, np.inf, end / 1e12))
    order = np.argsort(first)
    return Sent(seconds[order], own[order], wait / 1e12, *counted)


def trace_of(routes: Jobs, transport: Transport | None = None, seed: int = 0) -> Trace:
    """Returns when messages are under way, packet by packet, from when they may begin to their
    last byte: spans as in `flow.trace_of`. One that never arrives has none. Raises NetworkError as
    `send` does."""
    sent, all = send(routes, transport, seed=seed), together(routes)
    flows, flow = all.routes.flows, all.routes.flow[sent.pieces]
    steps = np.stack([all.job[flow], flows.step[flow]])
    begin = flows.start_ns[flow] / 1e9
    ends = dict[int, float]()  # the end of the step before, by job
    for job, step in np.unique(steps, axis=1).T.tolist():
        own = (steps[0] == job) & (steps[1] == step)
        begin[own] += ends.get(job, 0.0)
        ends[job] = float(sent.seconds[own].max())
    bytes = as_bytes(all.routes.amount, all.routes.unit)[sent.pieces]
    columns = zip(flows.src[flow], flows.dst[flow], begin, sent.seconds, bytes)
    return in_lanes(
        all.routes.fabric.hosts,
        (
            Span(int(source), 0, "wire", f"to host {target}", float(since), float(until), float(n))
            for source, target, since, until, n in columns
            if np.isfinite(until)
        ),
    )


def _fails(fabric: Fabric, outages: Outages) -> Ints:
    """Returns when each link goes down, in picoseconds; hosts' own links never do."""
    down = np.full(len(all_rates(fabric)), _NEVER)
    when = np.rint(np.minimum([*outages.fails.values()], LATEST / 1e12) * 1e12)
    down[fabric.numbers_of(outages.fails)] = when
    return down


def _refuse_too_many(connections: Connections, how: Transport) -> None:
    packets = np.ceil(connections.bytes / how.packet_bytes)  # floats: sums may exceed int64
    if packets.sum() > MOST_PACKETS:
        raise _too_many(f"this one has {packets.sum():,.0f}, of {how.packet_bytes:,} bytes")
    under_way = np.bincount(connections.step, np.minimum(packets, how.window)).max(initial=0)
    if under_way > MOST_UNDER_WAY:
        raise NetworkError(
            f"all connections of a step can have at most {MOST_UNDER_WAY:,} packets under way; "
            f"got {under_way:,.0f}, with windows of {how.window:,}. Use a smaller window."
        )


def _too_many(got: str) -> NetworkError:
    return NetworkError(
        f"a simulation of packets can have at most {MOST_PACKETS:,} packets; {got}. Send fewer "
        "bytes, in larger packets (packet_bytes), or use the engine 'flow'."
    )


def _given(how: Transport, seed: int) -> native.Transport:
    return (
        how.packet_bytes, how.header_bytes, how.window, round(how.latency_ns * 1e3),
        round(how.timeout_us * 1e6), how.queue_bytes, how.mark_bytes, how.ack_bytes,
        how.ack_packets, how.band_bytes, how.entropies, round(how.exclude_us * 1e6), how.repath,
        how.slow_down, how.trim, how.is_selective, seed % (1 << 64),
    )  # fmt: skip


def _given_paths(paths: Paths) -> native.Paths:
    table = paths.table
    at, width = (0, 0) if table is None else (table.ctypes.data, table.shape[1])
    path, counts, pair = (c.ctypes.data for c in (paths.path, paths.counts, paths.pair))
    return paths.since, path, counts, pair, at, width


def _connections(
    all: Together, how: Transport, outages: Outages, seed: int
) -> tuple[Ints, Connections]:
    """Returns rows of the routes, and the connections of each, in the engine's order."""
    routes = all.routes
    flows = routes.flows
    row, bytes, path = _by_port(routes)
    dice = np.random.default_rng([seed, _JITTER])  # other numbers than a scheme drew
    start = np.rint(dice.random(len(bytes)) * how.jitter_ns * 1e3).astype(np.int64)
    start += flows.start_ns[routes.flow[row]] * 1000
    steps = np.unique(flows.step[routes.flow[row]], return_inverse=True)[1]
    one = np.flatnonzero(bytes > 0)
    one = one[np.lexsort((row[one], start[one], steps[one]))]
    rows, path = row[one], path[one]
    flow = routes.flow[rows]
    paths = [_paths(routes.fabric, flows, flow, path, 0)]
    for when, later in outages.converged:
        after = together(later).routes
        own = np.where(path >= 0, paths_after(routes, after)[rows], path)
        since = round(min(when * 1e12, LATEST))
        paths.append(_paths(after.fabric, flows, flow, own, since))
    choice = np.where(routes.path[rows] == EVERY, CHOICES.index(how.spraying), 0)
    return rows, Connections(
        flows.src[flow], flows.dst[flow], bytes[one], choice, start[one],
        np.unique(steps[one], return_inverse=True)[1],
        np.unique(all.job[flow], return_inverse=True)[1], tuple(paths),
    )  # fmt: skip


def _paths(fabric: Fabric, flows: Flows, flow: Ints, path: Ints, since: int) -> Paths:
    """Returns the paths of connections, each of a flow, and those that they may take."""
    far = fabric.leaf_of[flows.src[flow]] != fabric.leaf_of[flows.dst[flow]]
    crossing = Crossing(fabric, flows)
    usable, place = crossing.usable, np.zeros(len(flows), np.int64)
    place[crossing.which] = np.arange(len(crossing.which))
    counts, pair = np.ones(len(flow), np.int64), np.zeros(len(flow), np.int64)
    counts[far] = usable.counts[place[flow[far]]]
    if usable.pair is not None:
        pair[far] = usable.pair[place[flow[far]]]
    table = None if usable.table is None else np.ascontiguousarray(usable.table, np.int64)
    path, counts, pair = columns(path, counts, pair)
    return Paths(since, path, counts, pair, table)


def _by_port(routes: Routes) -> tuple[Ints, Ints, Ints]:
    """Returns row, bytes and path of every connection. A piece below a leaf is divided over ports
    in proportion to their rates; instead of a path it has BELOW - port."""
    row, bytes = np.arange(len(routes.flow)), _whole_bytes(routes)
    path, planes = routes.path.astype(np.int64), routes.fabric.host_up.shape[1]
    below = np.flatnonzero(path == BELOW)
    if planes == 1 or not len(below):
        return row, bytes, path
    flow = routes.flow[below]
    ends = routes.flows.src[flow], routes.flows.dst[flow]
    shares = np.cumsum(port_shares(routes.fabric, *ends, path[below]), 1)
    shares[:, -1] = 1.0
    parts = np.diff(np.floor(shares * bytes[below, None]).astype(np.int64), prepend=0)
    kept = np.flatnonzero(path != BELOW)
    by_port = np.tile(BELOW - np.arange(planes), len(below))
    return (
        np.concatenate([row[kept], np.repeat(below, planes)]),
        np.concatenate([bytes[kept], parts.reshape(-1)]),
        np.concatenate([path[kept], by_port]),
    )


def _whole_bytes(routes: Routes) -> Ints:
    """Returns whole bytes of pieces: a flow's in all, and each within one of its part."""
    order = np.argsort(routes.flow, kind="stable")
    is_large = max(routes.unit, routes.amount.astype(np.float64).sum()) >= 1 << 62
    kind = object if is_large else routes.amount.dtype
    ends = np.cumsum(routes.amount[order].astype(kind)) // routes.unit
    found = np.empty(len(order), np.int64)
    found[order] = np.diff(ends, prepend=0)
    return found
