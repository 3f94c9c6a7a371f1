"""What ranks do in a training step: work, messages between them, and waits between these.

    work ──► message ──► work ──► message        a row each; an arrow is a wait
               0 → 3      rank 3    3 → 5

A message is sent on a connection, which keeps its path however many messages it carries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradwire.network.amounts import as_bytes
from gradwire.network.checked import Ints, Reals, each, real, same_length, whole
from gradwire.network.engines.flow import uses_of
from gradwire.network.engines.maxmin import Rows, Transfers, run
from gradwire.network.fabric import BELOW, Fabric, count
from gradwire.network.flows import Flows, joined
from gradwire.network.lanes import in_lanes
from gradwire.network.loads import all_rates
from gradwire.network.placement import Placement
from gradwire.network.routing.route import route
from gradwire.network.routing.scheme import Scheme
from gradwire.trace import Span, Trace

NOBODY = -1
"""The connection of rows that are work."""
_MOST = 1 << 24  # ranks, and rows that are added at once


class Workload:
    """The work and messages of ranks 0 to ranks - 1. Rows are numbered as they are added. Methods
    raise NetworkError for unknown ranks, rows and connections, and invalid seconds and bytes."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.rows = count("ranks", ranks, most=_MOST), 0
        self._seconds = [np.zeros(0)]
        self._connection, self._bytes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        self._before, self._after = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        self._connections = list[Flows]()
        self._steps = self._connected = 0
        self._known = dict[tuple[int, bytes, bytes], Ints]()
        self._shown = list[_Shown]()

    # -- rows and connections ----------------------------------------------------------------

    def connect(self, flows: Flows) -> Ints:
        """Adds connections between ranks, and returns their numbers. They are routed for the
        flows' bytes. Those of one step are used at the same time, and routed together."""
        flows.refuse_beyond(self.ranks, "rank")
        own = Flows(flows.src, flows.dst, flows.bytes, flows.step + self._steps)
        numbers = self._connected + np.arange(len(own))
        self._connections.append(own)
        self._connected += len(own)
        self._steps = int(own.step.max(initial=self._steps - 1)) + 1
        return numbers

    def work(self, seconds: float | Reals, rows: int) -> Ints:
        """Adds rows of work, each with its own seconds or all with the same; returns the rows."""
        nobody = np.full(count("rows of work", rows, 0, _MOST), NOBODY)
        own = real("seconds of work", seconds)
        return self._add(nobody, each("seconds", own, rows), np.zeros_like(nobody))

    def send(self, connection: Ints, bytes: int | Ints) -> Ints:
        """Adds a message on each connection, cut as the connection's bytes are; returns the
        rows."""
        own = whole("connections", connection, self._connected)
        size = each("bytes", whole("bytes of messages", bytes), len(own))
        return self._add(own, np.zeros(len(own)), size)

    def wait(self, before: Ints, after: Ints) -> None:
        """Lets each row of `after` begin only when the same entry of `before` has ended."""
        before, after = (whole("rows that wait", rows, self.rows) for rows in (before, after))
        same_length(before=before, after=after)
        self._before.append(before)
        self._after.append(after)

    def show(
        self, kind: str, label: str, rank: Ints, first: Ints, last: Ints | None = None,
        bytes: int | Ints = 0,
    ) -> None:  # fmt: skip
        """Adds spans to the trace: for each of these ranks, from when a row begins to when a row
        ends, the same row by default. kind, label: as in `Span`; bytes: what the rank sends."""
        own = whole("ranks", rank, self.ranks)
        begin = whole("rows that spans begin with", first, self.rows)
        end = begin if last is None else whole("rows that spans end with", last, self.rows)
        same_length(rank=own, first=begin, last=end)
        size = each("bytes", whole("bytes of spans", bytes), len(own))
        self._shown.append(_Shown(kind, label, own, begin, end, size))

    def exchange(self, begin: Ints, flows: Flows, lane: int = 0, label: str = "exchange") -> Ints:
        """Adds a collective between ranks. A rank's messages of a step begin when all that it sent
        and received in the step before has arrived.

        begin: for each of all ranks, the row that it waits for. lane: the one whose connections
        are used. label: of the spans, one for each rank that sends. Returns the row with which
        each rank's part ends.
        """
        gate = each("rows", whole("rows that ranks wait for", begin, self.rows), self.ranks).copy()
        first = np.full(self.ranks, NOBODY)
        for rows, connection in self._by_step(flows, lane):
            source, target = flows.src[rows], flows.dst[rows]
            message = self.send(connection, flows.bytes[rows])
            first[source] = np.where(first[source] == NOBODY, message, first[source])
            self.wait(gate[source], message)
            ranks = np.unique(np.concatenate([source, target]))
            after = self.work(0.0, len(ranks))
            self.wait(gate[ranks], after)
            for end in (source, target):
                self.wait(message, after[np.searchsorted(ranks, end)])
            gate[ranks] = after
        own = np.flatnonzero(first != NOBODY)
        sent = np.bincount(flows.src, flows.bytes, self.ranks).astype(np.int64)
        self.show("wire", label, own, first[own], gate[own], sent[own])
        return gate

    def _by_step(self, flows: Flows, lane: int) -> Iterator[tuple[Ints, Ints]]:
        """Yields the rows of flows and their connections, step by step."""
        steps = list[tuple[int, Ints, Ints]]()
        for alike in flows.steps():
            own = flows[alike[0]]
            key = lane, own.src.tobytes(), own.dst.tobytes()
            if key not in self._known:
                self._known[key] = self.connect(Flows(own.src, own.dst, own.bytes))
            steps += [(int(flows.step[rows[0]]), rows, self._known[key]) for rows in alike]
        for _, rows, connection in sorted(steps, key=lambda step: step[0]):
            yield rows, connection

    def _add(self, connection: Ints, seconds: Reals, bytes: Ints) -> Ints:
        rows = self.rows + np.arange(len(connection))
        self.rows += len(connection)
        self._connection.append(connection)
        self._seconds.append(seconds)
        self._bytes.append(bytes)
        return rows

    # -- times -------------------------------------------------------------------------------

    def seconds(
        self, topology: Fabric, placement: Placement | None = None,
        scheme: str | Scheme = "coloured", *, tolerance: float = 0.01, seed: int = 0,
    ) -> float:  # fmt: skip
        """Returns the seconds until all rows have ended. placement: by default rank r on host r.
        tolerance: as in `engines.maxmin.run`. Raises NetworkError as `route` does, and for rows
        that wait for each other."""
        where = placement or Placement.in_order(self.ranks)
        times = run(self.transfers(topology, where, scheme, seed), tolerance)
        return float(times.end.max(initial=0.0))

    def trace(
        self, topology: Fabric, placement: Placement | None = None,
        scheme: str | Scheme = "coloured", *, tolerance: float = 0.01, seed: int = 0,
    ) -> Trace:  # fmt: skip
        """Returns the spans that `show` added, with their times. Arguments and errors are those of
        `seconds`."""
        where = placement or Placement.in_order(self.ranks)
        moved, row = self._cut(topology, where, scheme, seed)
        times = run(moved, tolerance)
        begin, end = np.full(self.rows, np.inf), np.zeros(self.rows)
        np.minimum.at(begin, row, times.begin - moved.delay)
        np.maximum.at(end, row, times.end)
        return in_lanes(
            self.ranks,
            (
                Span(rank, 0, own.kind, own.label, float(begin[one]), float(end[other]), sent)
                for own in self._shown
                for rank, one, other, sent in own.spans()
            ),
        )

    def work_seconds(self) -> float:
        """Returns the seconds of the longest chain of work, if messages took no time. Raises
        NetworkError for rows that wait for each other."""
        rows, none = self.rows, np.zeros(0, np.int64)
        before, after = np.concatenate(self._before), np.concatenate(self._after)
        order = np.argsort(before, kind="stable")
        alone = Transfers(
            Rows.of(none, none, rows), np.zeros(0), np.zeros(rows), np.ones(rows),
            Rows.of(before[order], after[order], rows), np.concatenate(self._seconds), np.ones(1),
        )  # fmt: skip
        return float(run(alone).end.max(initial=0.0))

    def connections(self) -> Flows:
        """Returns the connections between ranks. Those of one step are routed together."""
        return joined(self._connections)

    def transfers(
        self, fabric: Fabric, placement: Placement, scheme: str | Scheme, seed: int
    ) -> Transfers:
        """Returns messages as their pieces, each of which waits for all pieces of the rows before
        it."""
        return self._cut(fabric, placement, scheme, seed)[0]

    def _cut(
        self, fabric: Fabric, placement: Placement, scheme: str | Scheme, seed: int
    ) -> tuple[Transfers, Ints]:
        """Returns the transfers, and the row of each."""
        pieces = self._routed(fabric, placement, scheme, seed)
        connection = np.concatenate(self._connection)
        many = np.append(np.diff(pieces.start), 1)[connection]  # the last is work's: NOBODY is -1
        begin = np.cumsum(many) - many
        row = np.repeat(np.arange(len(many)), many)
        piece = np.append(pieces.start[:-1], 0)[connection][row] + np.arange(len(row)) - begin[row]
        bytes, is_message = np.zeros(len(row)), connection[row] >= 0
        size = np.concatenate(self._bytes)[row]
        bytes[is_message] = size[is_message] * pieces.part[piece[is_message]]
        moves = np.flatnonzero(bytes > 0)
        own = piece[moves]
        used, link, part = uses_of(
            fabric, pieces.source[own], pieces.target[own], pieces.path[own]
        )
        before, after = np.concatenate(self._before), np.concatenate(self._after)
        pairs = many[before] * many[after]
        edge = np.repeat(np.arange(len(pairs)), pairs)
        place = np.arange(len(edge)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
        one, other = np.divmod(place, many[after][edge])
        one, other = begin[before][edge] + one, begin[after][edge] + other
        order = np.argsort(one, kind="stable")
        moved = Transfers(
            Rows.of(moves[used], link, len(row)), part, bytes, np.ones(len(row)),
            Rows.of(one[order], other[order], len(row)),
            np.concatenate(self._seconds)[row], all_rates(fabric) / 8,
        )  # fmt: skip
        return moved, row

    def _routed(
        self, topology: Fabric, placement: Placement, scheme: str | Scheme, seed: int
    ) -> _Pieces:
        flows = self.connections()
        host = np.array(placement.host)
        far = placement.leaves_machine(flows)
        routes = route(placement.placed(flows), topology, scheme, seed)
        number = np.flatnonzero(far)[routes.flow]
        near = np.flatnonzero(~far)
        order = np.argsort(np.concatenate([number, near]), kind="stable")
        path = np.concatenate([routes.path, np.full(len(near), BELOW)])[order]
        amount = np.concatenate([as_bytes(routes.amount, routes.unit), np.zeros(len(near))])[order]
        own = np.concatenate([number, near])[order]
        part = amount / flows.bytes[own]
        start = np.searchsorted(own, np.arange(len(flows) + 1))
        return _Pieces(start, host[flows.src[own]], host[flows.dst[own]], path, part)


class _Shown(NamedTuple):
    """The arguments of a call of `show`."""

    kind: str
    label: str
    rank: Ints
    first: Ints
    last: Ints
    bytes: Ints

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields each span's rank, rows and bytes."""
        yield from zip(*(x.tolist() for x in self[2:]))


class _Pieces(NamedTuple):
    """The pieces of connections, in their order: [start[i] : start[i + 1]] are those of connection
    i.

    part: the part of its bytes. A connection within a machine is one piece of no bytes.
    """

    start: Ints
    source: Ints
    target: Ints
    path: Ints
    part: Reals
