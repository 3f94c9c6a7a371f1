"""Packets in queues, the slow obvious way: every packet is an event in one heap."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.network.checked import Ints
from gradwire.network.dice import draws, pick
from gradwire.network.fabric import BELOW, Fabric
from gradwire.network.native import TOO_LATE, TOO_MANY

if TYPE_CHECKING:
    from gradwire.network.engines.transport import Connections, Transport

_PINNED, _RANDOM, _ROTATING, _RECYCLED = range(4)
_TRIES = 64


class _Packet(NamedTuple):
    connection: int
    number: int
    path: int
    links: tuple[int, ...]
    hop: int
    marked: bool
    turn: int


class _Notice(NamedTuple):
    kind: str
    connection: int
    number: int
    path: int = -1
    marked: bool = False
    turn: int = 0


_FREED = _Notice("freed", -1, -1)


@dataclass
class _Port:
    """A host's link up. Connections with packets are in line, but for the one served last."""

    line: deque[int] = field(default_factory=deque)
    waiting: defaultdict[int, deque[_Packet]] = field(default_factory=lambda: defaultdict(deque))
    served: int | None = None
    busy: bool = False

    def push(self, packet: _Packet) -> None:
        one = packet.connection
        if not self.waiting[one] and one != self.served:
            self.line.append(one)
        self.waiting[one].append(packet)

    def pop(self) -> _Packet | None:
        """One packet of who has waited longest for a turn."""
        if self.served is not None and self.waiting[self.served]:
            self.line.append(self.served)
        if not self.line:
            return None
        self.served = self.line.popleft()
        return self.waiting[self.served].popleft()


@dataclass
class _Sender:
    packets: int
    window: float
    path: int
    next: int = 0
    acked: int = 0
    under_way: int = 0
    sent: int = 0
    turn: int = 0
    in_vain: int = 0
    seen: int = 0
    seen_marked: int = 0
    congestion: float = 1.0
    again: list[int] = field(default_factory=list)
    good: deque[int] = field(default_factory=deque)
    expected: int = 0
    told: bool = False


class _Stopped(Exception):
    """TOO_MANY or TOO_LATE."""


def run(
    connections: Connections, fabric: Fabric, rates: Ints, fails: Ints, how: Transport,
    seed: int, limits: tuple[int, int],
) -> tuple[Ints, Ints, tuple[int, int, int, int]]:  # fmt: skip
    """Picoseconds at which each has arrived, -1: never; the longest wait at each link; events,
    dropped and marked packets, and why it stopped. limits: packets, picoseconds."""
    engine = _Engine(connections, fabric, rates, fails, how, seed, limits)
    why = 0
    try:
        engine.begin(0, 0)
        engine.go()
    except _Stopped as stopped:
        why = stopped.args[0]
    return engine.end, engine.longest, (engine.events, engine.dropped, engine.marked, why)


class _Engine:
    def __init__(
        self, connections: Connections, fabric: Fabric, rates: Ints, fails: Ints,
        how: Transport, seed: int, limits: tuple[int, int],
    ) -> None:  # fmt: skip
        self.all, self.fabric, self.how, self.seed = connections, fabric, how, seed
        self.most, self.latest = limits
        self.fails = fails.tolist()
        self.per_byte = [8e12 / rate if rate else 0.0 for rate in rates.tolist()]
        self.latency = round(how.latency_ns * 1e3)
        self.timeout = round(how.timeout_us * 1e6)
        self.exclude = round(how.exclude_us * 1e6)
        self.avoided = dict[tuple[int, int, int], int]()
        self.free = [0] * len(rates)
        self.ports = defaultdict[int, _Port](_Port)
        self.longest = np.zeros(len(rates), np.int64)
        self.end = np.full(len(connections.source), -1, np.int64)
        self.open = np.bincount(connections.step).tolist()
        self.senders = [
            _Sender(-(-size // how.packet_bytes), float(how.window), path)
            for size, path in zip(connections.bytes.tolist(), connections.path.tolist())
        ]
        self.heap: list[tuple[int, int, int, _Packet | _Notice]] = []
        self.events = self.dropped = self.marked = self.pushed = self.emitted = 0

    def push(self, time: int, queue: int, item: _Packet | _Notice) -> None:
        """Add an event; of equal times the queue with the smaller number, and in it what came
        first."""
        self.pushed += 1
        heapq.heappush(self.heap, (time, queue, self.pushed, item))

    def begin(self, step: int, now: int) -> None:
        for one in np.flatnonzero(self.all.step == step).tolist():
            start = int(self.all.start[one])
            self.push(now + start, len(self.free) + 4, _Notice("start", one, 0))

    def go(self) -> None:
        while self.heap:
            now, queue, _, item = heapq.heappop(self.heap)
            if item is _FREED:
                self.serve(queue - len(self.free) - 5, now)
                continue
            if now > self.latest:
                raise _Stopped(TOO_LATE)
            self.events += 1
            if isinstance(item, _Notice):
                self.heard(item, now)
            elif item.hop + 1 == len(item.links):
                self.deliver(item, now)
            else:
                self.enqueue(item._replace(hop=item.hop + 1), now)

    # -- hosts that send -------------------------------------------------------------------

    def heard(self, notice: _Notice, now: int) -> None:
        sender, one = self.senders[notice.connection], notice.connection
        is_pinned = int(self.all.choice[one]) == _PINNED
        if notice.kind == "start":
            if self.may_repath(one) and self.avoids(one, sender.path, now):
                sender.path = self.other_path(one, now)
        else:
            (self.pinned_heard if is_pinned else self.sprayed_heard)(sender, notice, now)
        if sender.in_vain < (_TRIES if is_pinned else _TRIES * self.how.window):
            self.send(one, now)

    def pinned_heard(self, sender: _Sender, notice: _Notice, now: int) -> None:
        if notice.kind != "lost":
            if notice.number > sender.acked:
                sender.in_vain = 0
            sender.acked = max(sender.acked, notice.number)
            sender.next = max(sender.next, sender.acked)
        if notice.kind == "acknowledged":
            self.adapt(sender, notice.marked)
            return
        if notice.turn != sender.turn:
            return
        if notice.kind == "lost" and notice.number < sender.acked:
            return
        sender.next = sender.acked
        sender.turn += 1
        if notice.kind == "lost":
            sender.in_vain += 1
            if notice.path >= 0:
                self.avoided[self.way(notice.connection, notice.path)] = now + self.exclude
            if self.may_repath(notice.connection):
                sender.path = self.other_path(notice.connection, now)

    def sprayed_heard(self, sender: _Sender, notice: _Notice, now: int) -> None:
        sender.under_way -= 1
        sender.in_vain = sender.in_vain + 1 if notice.kind == "lost" else 0
        if notice.kind == "lost":
            sender.again.append(notice.number)
            return
        self.adapt(sender, notice.marked)
        if int(self.all.choice[notice.connection]) == _RECYCLED and not notice.marked:
            sender.good.append(notice.path)

    def adapt(self, sender: _Sender, marked: bool) -> None:
        if not self.how.slow_down:
            return
        sender.seen += 1
        sender.seen_marked += marked
        if sender.seen < sender.window:
            return
        part = sender.seen_marked / sender.seen
        sender.congestion += (part - sender.congestion) / 16
        less = max(1.0, sender.window * (1 - sender.congestion / 2))
        sender.window = less if part else min(sender.window + 1, float(self.how.window))
        sender.seen = sender.seen_marked = 0

    def send(self, one: int, now: int) -> None:
        sender = self.senders[one]
        window = int(sender.window)
        if int(self.all.choice[one]) == _PINNED:
            while sender.next < sender.packets and sender.next - sender.acked < window:
                sender.next += 1
                self.emit(one, sender.next - 1, now)
            return
        while sender.under_way < window and (sender.again or sender.next < sender.packets):
            if sender.again:
                self.emit(one, sender.again.pop(), now)
            else:
                sender.next += 1
                self.emit(one, sender.next - 1, now)

    def emit(self, one: int, number: int, now: int) -> None:
        self.emitted += 1
        if self.emitted > self.most:
            raise _Stopped(TOO_MANY)
        sender = self.senders[one]
        leaf = self.fabric.leaf_of
        stays = leaf[self.all.source[one]] == leaf[self.all.target[one]]
        path = sender.path if stays else self.next_path(one)
        sender.sent += 1
        sender.under_way += 1
        self.enqueue(_Packet(one, number, path, self.links(one, path), 0, False, sender.turn), now)

    def next_path(self, one: int) -> int:
        sender, count = self.senders[one], int(self.all.counts[one])
        choice = int(self.all.choice[one])
        if choice == _RANDOM:
            return self.usable(one, pick(self.drawn(one, sender.sent), count))
        if choice == _ROTATING:
            first = pick(self.drawn(one, 0), count)
            return self.usable(one, (first + sender.sent) % count)
        if choice == _RECYCLED:
            if sender.good and sender.sent >= self.how.window:
                return sender.good.popleft()
            drawn = self.drawn(one, sender.sent % self.how.entropies)
            return self.usable(one, pick(drawn, count))
        return sender.path

    def may_repath(self, one: int) -> bool:
        is_pinned = int(self.all.choice[one]) == _PINNED and self.senders[one].path >= 0
        return self.how.repath and is_pinned and int(self.all.counts[one]) > 1

    def way(self, one: int, path: int) -> tuple[int, int, int]:
        """The way of a host to a leaf."""
        leaf = int(self.fabric.leaf_of[self.all.target[one]])
        return int(self.all.source[one]), leaf, path

    def avoids(self, one: int, path: int, now: int) -> bool:
        return now < self.avoided.get(self.way(one, path), 0)

    def other_path(self, one: int, now: int) -> int:
        """Any of the others, or the next one after it that is not avoided, if there is one."""
        sender, count = self.senders[one], int(self.all.counts[one])
        number = pick(self.drawn(one, sender.sent), count - 1)
        if self.usable(one, number) == sender.path:
            number = count - 1
        paths = [self.usable(one, (number + i) % count) for i in range(count)]
        free = [p for p in paths if p != sender.path and not self.avoids(one, p, now)]
        return free[0] if free else paths[0]

    def drawn(self, one: int, index: int) -> int:
        return int(draws(self.seed + one, index + 1)[index])

    def usable(self, one: int, number: int) -> int:
        table = self.all.table
        return number if table is None else int(table[self.all.pair[one], number])

    # -- links -----------------------------------------------------------------------------

    def links(self, one: int, path: int) -> tuple[int, ...]:
        """The links from host to host."""
        fabric, ports = self.fabric, self.fabric.host_up.shape[1]
        source, target = int(self.all.source[one]), int(self.all.target[one])
        a, b = int(fabric.leaf_of[source]), int(fabric.leaf_of[target])
        far = fabric.pod_of[a] != fabric.pod_of[b]
        plane = BELOW - path
        if path >= 0:
            plane = int(fabric.plane_of[path // fabric.cores if far else path])
        first = len(fabric.rates) + source * ports + plane
        last = len(fabric.rates) + (fabric.hosts + target) * ports + plane
        if path < 0:
            return first, last
        (hops,) = fabric.hops(*np.array([[a], [b], [path]])).tolist()
        up, down, core_up, core_down = hops
        return (first, up, core_up, core_down, down, last) if far else (first, up, down, last)

    def size(self, packet: _Packet) -> int:
        most, sender = self.how.packet_bytes, self.senders[packet.connection]
        if packet.number + 1 < sender.packets:
            return most
        return int(self.all.bytes[packet.connection]) - (sender.packets - 1) * most

    def enqueue(self, packet: _Packet, now: int) -> None:
        link, size = packet.links[packet.hop], self.size(packet)
        per_byte, begins = self.per_byte[link], max(now, self.free[link])
        is_down = per_byte == 0 or 0 <= self.fails[link] <= now
        is_full = packet.hop > 0 and (
            begins - now + size * per_byte > self.how.queue_bytes * per_byte
        )
        if is_down or is_full:
            self.dropped += 1
            lost = _Notice(
                "lost", packet.connection, packet.number, packet.path, False, packet.turn
            )
            self.push(now + self.timeout, len(self.free) + 3, lost)
            return
        if packet.hop == 0:
            self.ports[link].push(packet)
            if not self.ports[link].busy:
                self.serve(link, now)
            return
        if not packet.marked and begins - now > self.how.mark_bytes * per_byte:
            packet = packet._replace(marked=True)
            self.marked += 1
        self.longest[link] = max(int(self.longest[link]), begins - now)
        self.transmit(link, packet, begins)

    def serve(self, link: int, now: int) -> None:
        """Whose turn it is. When a link is free again, that is asked last of all at that time."""
        packet = self.ports[link].pop()
        self.ports[link].busy = packet is not None
        if packet is not None:
            self.transmit(link, packet, now)
            self.push(self.free[link], len(self.free) + 5 + link, _FREED)

    def transmit(self, link: int, packet: _Packet, begins: int) -> None:
        self.free[link] = begins + int(self.size(packet) * self.per_byte[link] + 0.5)
        if self.free[link] > self.latest:
            raise _Stopped(TOO_LATE)
        self.push(self.free[link] + self.latency, link, packet)

    # -- hosts that receive ----------------------------------------------------------------

    def deliver(self, packet: _Packet, now: int) -> None:
        one, sender = packet.connection, self.senders[packet.connection]
        hops = len(packet.links)
        when, queue = now + hops * self.latency, len(self.free) + (2, 4, 6).index(hops)
        kind, number = "acknowledged", packet.number
        if int(self.all.choice[one]) != _PINNED:
            sender.expected += 1
        else:
            if packet.number > sender.expected:
                if sender.told:
                    return
                sender.told, kind = True, "gap"
            elif packet.number == sender.expected:
                sender.expected += 1
                sender.told = False
            number = sender.expected
        self.push(when, queue, _Notice(kind, one, number, packet.path, packet.marked, packet.turn))
        if sender.expected == sender.packets and self.end[one] < 0:
            self.ended(one, now)

    def ended(self, one: int, now: int) -> None:
        self.end[one] = now
        step = int(self.all.step[one])
        self.open[step] -= 1
        if not self.open[step] and step + 1 < len(self.open):
            self.begin(step + 1, now)
