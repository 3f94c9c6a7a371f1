"""The slow twin of the packet engine: every packet is an event in one heap."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from gradwire.network.checked import Ints
from gradwire.network.dice import draws, pick
from gradwire.network.engines.packet_state import FREED, Notice, Packet, Port, Sender, Switch
from gradwire.network.fabric import BELOW, Fabric
from gradwire.network.native import TOO_LATE, TOO_MANY

if TYPE_CHECKING:
    from gradwire.network.engines.transport import Connections, Transport

_PINNED, _RANDOM, _ROTATING, _RECYCLED, _ADAPTIVE, _ROUND_ROBIN = range(6)
_TRIES = 64
_WAY_BACK = 1 << 32
_BACK, _TIMERS, _CHANGES, _TRIMMED, _STARTS = 0, 3, 4, 5, 17
_LAST = 1 << 40
"""The order of events at equal times: numbers of queues, after those of links."""


class _Stopped(Exception):
    """TOO_MANY or TOO_LATE."""


def run(
    connections: Connections, fabric: Fabric, rates: Ints, fails: Ints, how: Transport,
    seed: int, limits: tuple[int, int],
) -> tuple[Ints, Ints, tuple[int, int, int, int, int]]:  # fmt: skip
    """Returns the picoseconds at which each arrived, -1: never; the longest wait at each link;
    events, dropped, marked and trimmed packets, why it stopped. limits: packets, picoseconds."""
    engine = _Engine(connections, fabric, rates, fails, how, seed, limits)
    why = 0
    try:
        engine.go()
    except _Stopped as stopped:
        why = stopped.args[0]
    counted = engine.events, engine.dropped, engine.marked, engine.trimmed
    return engine.end, engine.longest, (*counted, why)


def _missing(kind: str, packet: Packet) -> Notice:
    return Notice(kind, packet.connection, packet.number, packet.path, False, packet.turn)


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
        self.free, self.owed = [0] * len(rates), [0] * len(rates)
        self.switches = defaultdict[int, Switch](Switch)
        self.ports = defaultdict[int, Port](Port)
        self.longest = np.zeros(len(rates), np.int64)
        self.end = np.full(len(connections.source), -1, np.int64)
        self.open = np.bincount(connections.step).tolist()
        self.routing, self.settled = connections.paths[0], connections.paths[-1].since
        self.owes = how.ack_bytes > 0 or (how.trim and how.header_bytes > 0)
        self.senders = [
            Sender(-(-size // how.packet_bytes), float(how.window), path)
            for size, path in zip(connections.bytes.tolist(), self.routing.path.tolist())
        ]
        self.heap: list[tuple[int, int, int, Packet | Notice]] = []
        self.events = self.dropped = self.marked = self.trimmed = 0
        self.pushed = self.emitted = 0

    def push(self, time: int, queue: int, item: Packet | Notice) -> None:
        """Adds an event; at equal times the smaller queue number comes first, then the one added
        first."""
        self.pushed += 1
        heapq.heappush(self.heap, (time, queue, self.pushed, item))

    def begin(self, step: int, now: int) -> None:
        for one in np.flatnonzero(self.all.step == step).tolist():
            start = int(self.all.start[one])
            queue = len(self.free) + _STARTS + int(self.all.job[one])
            self.push(now + start, queue, Notice("start", one, 0))

    def go(self) -> None:
        for number, paths in enumerate(self.all.paths[1:], 1):
            self.push(paths.since, len(self.free) + _CHANGES, Notice("change", 0, number))
        for job in range(int(self.all.job.max(initial=-1)) + 1):
            self.begin(int(self.all.step[self.all.job == job].min()), 0)
        while self.heap:
            now, queue, _, item = heapq.heappop(self.heap)
            if item is FREED:
                self.serve(queue - _LAST, now)
                continue
            if now > self.latest:
                raise _Stopped(TOO_LATE)
            self.events += 1
            if isinstance(item, Notice):
                (self.change if item.kind == "change" else self.heard)(item, now)
            elif 0 <= self.fails[queue] < now:  # the link failed meanwhile
                self.lose(item, now)
            elif item.hop + 1 == len(item.links):
                self.deliver(item, now)
            else:
                self.enqueue(self.steered(item._replace(hop=item.hop + 1), now), now)

    # -- hosts that send -------------------------------------------------------------------

    def heard(self, notice: Notice, now: int) -> None:
        sender, one = self.senders[notice.connection], notice.connection
        goes_back = self.goes_back(one)
        if notice.kind == "start":
            if self.may_repath(one) and self.avoids(one, sender.path, now):
                sender.path = self.other_path(one, now)
        else:
            (self.back_heard if goes_back else self.single_heard)(sender, notice, now)
        most = _TRIES if goes_back else _TRIES * self.how.window
        if sender.in_vain < most or now <= self.settled:
            self.send(one, now)

    def goes_back(self, one: int) -> bool:
        return int(self.all.choice[one]) == _PINNED and not self.how.is_selective

    def back_heard(self, sender: Sender, notice: Notice, now: int) -> None:
        is_lost = notice.kind == "lost"
        if not is_lost:
            if notice.number > sender.acked:
                sender.in_vain = 0
            sender.acked = max(sender.acked, notice.number)
            sender.next = max(sender.next, sender.acked)
        if notice.kind == "acknowledged":
            self.adapt(sender, notice)
        if notice.kind == "acknowledged" or notice.turn != sender.turn:
            return
        if is_lost and notice.number < sender.acked:
            return
        sender.next = sender.acked
        sender.turn += 1
        if is_lost:
            sender.in_vain += 1
            self.suspect(sender, notice, now)

    def single_heard(self, sender: Sender, notice: Notice, now: int) -> None:
        sender.under_way -= notice.packets
        if notice.kind == "acknowledged":
            sender.in_vain = 0
            self.adapt(sender, notice)
            if int(self.all.choice[notice.connection]) == _RECYCLED and not notice.marked:
                sender.good.append(notice.path)
            return
        sender.again.append(notice.number)
        if notice.kind == "trimmed":
            self.adapt(sender, notice)
        else:
            sender.in_vain += 1
            self.suspect(sender, notice, now)

    def suspect(self, sender: Sender, notice: Notice, now: int) -> None:
        """Avoids a path on which a timer ran out."""
        one = notice.connection
        if notice.path < 0 or int(self.all.choice[one]) >= _ADAPTIVE:
            return
        self.avoided[self.way(one, notice.path)] = now + self.exclude
        if self.may_repath(one) and notice.path == sender.path:
            sender.path = self.other_path(one, now)

    def change(self, notice: Notice, now: int) -> None:
        """Changes to the paths of converged routing."""
        self.routing = self.all.paths[notice.number]
        self.avoided.clear()
        for sender, path in zip(self.senders, self.routing.path.tolist()):
            sender.path, sender.in_vain = path, 0
            sender.good.clear()

    def adapt(self, sender: Sender, notice: Notice) -> None:
        if not self.how.slow_down:
            return
        sender.seen += notice.packets
        sender.seen_marked += notice.marked
        if sender.seen < sender.window:
            return
        part = sender.seen_marked / sender.seen
        sender.congestion += (part - sender.congestion) / 16
        less = max(1.0, sender.window * (1 - sender.congestion / 2))
        sender.window = less if part else min(sender.window + 1, float(self.how.window))
        sender.seen = sender.seen_marked = 0

    def send(self, one: int, now: int) -> None:
        while (number := self.next_number(one)) is not None:
            self.emit(one, number, now)

    def next_number(self, one: int) -> int | None:
        """Takes the next packet, if the window allows one."""
        sender = self.senders[one]
        if not self.may_send(one):
            return None
        if not self.goes_back(one) and sender.again:
            return sender.again.pop()
        sender.next += 1
        return sender.next - 1

    def may_send(self, one: int) -> bool:
        sender, window = self.senders[one], int(self.senders[one].window)
        if self.goes_back(one):
            return sender.next < min(sender.packets, sender.acked + window)
        return sender.under_way < window and (bool(sender.again) or sender.next < sender.packets)

    def emit(self, one: int, number: int, now: int) -> None:
        """Sends a packet; one that no other may follow asks for an acknowledgement at once."""
        self.emitted += 1
        if self.emitted > self.most:
            raise _Stopped(TOO_MANY)
        sender = self.senders[one]
        leaf = self.fabric.leaf_of
        stays = leaf[self.all.source[one]] == leaf[self.all.target[one]]
        path = sender.path if stays else self.next_path(one, now)
        sender.sent += 1
        sender.under_way += 1
        asks, links = not self.may_send(one), self.links(one, path)
        self.enqueue(Packet(one, number, path, links, 0, False, sender.turn, asks), now)

    def next_path(self, one: int, now: int) -> int:
        sender, count = self.senders[one], self.count(one)
        choice = int(self.all.choice[one])
        if choice == _PINNED:
            return sender.path
        if choice in (_ADAPTIVE, _ROUND_ROBIN):
            return self.usable(one, pick(self.drawn(one, sender.sent), count))
        if choice == _ROTATING:
            number = (pick(self.drawn(one, 0), count) + sender.sent) % count
        elif choice == _RECYCLED:
            while sender.good and sender.sent >= self.how.window:
                path = sender.good.popleft()
                if not self.avoids(one, path, now):
                    return path
            number = pick(self.drawn(one, sender.sent % self.how.entropies), count)
        else:
            number = pick(self.drawn(one, sender.sent), count)
        return self.unavoided(one, number, now)

    def count(self, one: int) -> int:
        return int(self.routing.counts[one])

    def may_repath(self, one: int) -> bool:
        is_pinned = int(self.all.choice[one]) == _PINNED and self.senders[one].path >= 0
        return self.how.repath and is_pinned and self.count(one) > 1

    def way(self, one: int, path: int) -> tuple[int, int, int]:
        """Returns the key in `avoided` of a path: source host, target leaf, path."""
        leaf = int(self.fabric.leaf_of[self.all.target[one]])
        return int(self.all.source[one]), leaf, path

    def avoids(self, one: int, path: int, now: int) -> bool:
        return now < self.avoided.get(self.way(one, path), 0)

    def other_path(self, one: int, now: int) -> int:
        """Returns a random one of the other paths."""
        sender, count = self.senders[one], self.count(one)
        number = pick(self.drawn(one, sender.sent), count - 1)
        if self.usable(one, number) == sender.path:
            number = count - 1
        return self.unavoided(one, number, now, sender.path)

    def unavoided(self, one: int, number: int, now: int, but: int = -1) -> int:
        """Returns the usable path of this number, or the next one that is not avoided, if any."""
        count = self.count(one)
        paths = [self.usable(one, (number + i) % count) for i in range(count)]
        free = [p for p in paths if p != but and not self.avoids(one, p, now)]
        return free[0] if free else paths[0]

    def drawn(self, one: int, index: int) -> int:
        return int(draws(self.seed + one, index + 1)[index])

    def usable(self, one: int, number: int) -> int:
        table = self.routing.table
        return number if table is None else int(table[self.routing.pair[one], number])

    # -- links -----------------------------------------------------------------------------

    def links(self, one: int, path: int, back: bool = False) -> tuple[int, ...]:
        """Returns the links from host to host, or back."""
        fabric, ports = self.fabric, self.fabric.host_up.shape[1]
        source, target = int(self.all.source[one]), int(self.all.target[one])
        if back:
            source, target = target, source
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

    def size(self, packet: Packet) -> int:
        most, sender = self.how.packet_bytes, self.senders[packet.connection]
        if packet.number + 1 < sender.packets:
            return self.how.header_bytes + most
        last = int(self.all.bytes[packet.connection]) - (sender.packets - 1) * most
        return self.how.header_bytes + last

    def is_down(self, link: int, now: int) -> bool:
        return self.per_byte[link] == 0 or 0 <= self.fails[link] <= now

    def ready(self, link: int, now: int) -> int:
        """Returns when a link can begin with what comes now: acknowledgements took its idle time,
        and take the rest of their time from what comes after them."""
        begins = max(now, self.free[link])
        return begins + max(0, self.owed[link] - (begins - self.free[link]))

    def enqueue(self, packet: Packet, now: int) -> None:
        link, size = packet.links[packet.hop], self.size(packet)
        per_byte, begins = self.per_byte[link], self.ready(link, now)
        is_full = packet.hop > 0 and (
            begins - now + size * per_byte > self.how.queue_bytes * per_byte
        )
        if is_full or self.is_down(link, now):
            ways = packet.links[packet.hop :]
            is_broken = any(self.is_down(way, now) for way in ways)
            headers = begins - max(now, self.free[link])
            has_room = size <= self.how.queue_bytes and headers <= size * per_byte
            is_cut = self.how.trim and not is_broken and has_room
            (self.trim if is_cut else self.lose)(packet, now)
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

    def lose(self, packet: Packet, now: int) -> None:
        self.dropped += 1
        when, lost = now + self.timeout, _missing("lost", packet)
        self.push(when, len(self.free) + _TIMERS, lost)

    def trim(self, packet: Packet, now: int) -> None:
        """Sends on only a packet's header, before all else, and notifies the sender."""
        self.trimmed += 1
        for link in packet.links[packet.hop :]:
            self.owe(link, self.how.header_bytes)
        hops = 2 * len(packet.links) - packet.hop
        when, queue = now + hops * self.latency, len(self.free) + _TRIMMED + hops
        self.push(when, queue, _missing("trimmed", packet)._replace(marked=True))
        if self.how.ack_bytes:
            self.take_way_back(packet)

    def owe(self, link: int, bytes: int) -> None:
        self.owed[link] += int(bytes * self.per_byte[link] + 0.5)
        if self.owed[link] > self.latest:
            raise _Stopped(TOO_LATE)

    def serve(self, link: int, now: int) -> None:
        """Sends the packet whose turn it is. A free link is served last of all at that time."""
        packet = self.ports[link].pop()
        self.ports[link].busy = packet is not None
        if packet is not None:
            self.transmit(link, packet, self.ready(link, now))
            self.push(self.free[link], _LAST + link, FREED)

    def transmit(self, link: int, packet: Packet, begins: int) -> None:
        self.free[link] = begins + int(self.size(packet) * self.per_byte[link] + 0.5)
        if self.free[link] > self.latest:
            raise _Stopped(TOO_LATE)
        self.owed[link] = 0
        self.push(self.free[link] + self.latency, link, packet)

    # -- switches that choose --------------------------------------------------------------

    def steered(self, packet: Packet, now: int) -> Packet:
        """Returns the packet on the way up that a switch chooses: a leaf its uplink, of those of
        the same port of hosts, the switch above it a core."""
        one, hops = packet.connection, len(packet.links)
        choice, is_leaf = int(self.all.choice[one]), packet.hop == 1
        if choice < _ADAPTIVE or packet.hop not in {4: (1,), 6: (1, 2)}.get(hops, ()):
            return packet
        cores = self.fabric.cores if hops == 6 else 1
        plane, own, ways = self.fabric.plane_of, packet.path // cores, dict[int, int]()
        for number in range(self.count(one)):
            path = self.usable(one, number)
            up, core = divmod(path, cores)
            if plane[up] == plane[own] if is_leaf else up == own:
                ways.setdefault(up if is_leaf else core, path)
        if not ways:  # routing has left this way meanwhile: it goes on to a dead link
            return packet
        leaf = int(self.fabric.leaf_of[self.all.source[one]])
        above = int(self.fabric.pod_of[leaf]) * len(self.fabric.uplinks) + own
        which = leaf if is_leaf else self.fabric.leaves + above
        if choice == _ADAPTIVE:
            way = self.shortest(which, one, packet.hop, ways, now)
        else:
            way = self.in_turn(which, ways, len(self.fabric.uplinks) if is_leaf else cores)
        return packet._replace(path=ways[way], links=self.links(one, ways[way]))

    def shortest(self, which: int, one: int, hop: int, ways: dict[int, int], now: int) -> int:
        """Returns a random one of the ways whose queue is shortest."""
        waits = dict[int, int]()
        for way, path in ways.items():
            link = self.links(one, path)[hop]
            band = self.how.band_bytes * self.per_byte[link]
            down = self.is_down(link, now)
            waits[way] = self.latest if down else int((self.ready(link, now) - now) / band)
        best = [way for way, wait in waits.items() if wait == min(waits.values())]
        return best[self.at_random(which, len(best))]

    def in_turn(self, which: int, ways: dict[int, int], of_all: int) -> int:
        """Takes the first way that is left in this round; if none is, another round begins."""
        switch = self.switches[which]
        while not set(ways) & set(switch.round):
            switch.round = list(range(of_all))
            for i in range(of_all, 1, -1):
                j = self.at_random(which, i)
                switch.round[i - 1], switch.round[j] = switch.round[j], switch.round[i - 1]
        way = next(way for way in switch.round if way in ways)
        switch.round.remove(way)
        return way

    def at_random(self, which: int, count: int) -> int:
        switch = self.switches[which]
        switch.drawn += 1
        return pick(int(draws(~self.seed - which, switch.drawn)[-1]), count)

    # -- hosts that receive ----------------------------------------------------------------

    def deliver(self, packet: Packet, now: int) -> None:
        one, sender = packet.connection, self.senders[packet.connection]
        is_spread = not self.goes_back(one)
        if not is_spread and packet.number > sender.expected:
            if not sender.told:
                self.answer(packet, "gap", sender.expected, now)
            sender.told = True
            return
        is_new = is_spread or packet.number == sender.expected
        sender.expected += is_new
        sender.told = sender.told and not is_new
        if sender.expected == sender.packets and self.end[one] < 0:
            self.ended(one, now)
        is_due = sender.silent + 1 >= self.how.ack_packets or packet.asks or packet.marked
        if is_due or not is_new:
            number = packet.number if is_spread else sender.expected
            self.answer(packet, "acknowledged", number, now)
        else:
            sender.silent += 1

    def answer(self, packet: Packet, kind: str, number: int, now: int) -> None:
        """Notifies the sender about this packet and those since the last answer."""
        one, sender, hops = packet.connection, self.senders[packet.connection], len(packet.links)
        when, queue = now + hops * self.latency, len(self.free) + _BACK + (2, 4, 6).index(hops)
        path, marked, turn = packet.path, packet.marked, packet.turn
        self.push(when, queue, Notice(kind, one, number, path, marked, turn, sender.silent + 1))
        sender.silent = 0
        self.take_way_back(packet)

    def take_way_back(self, packet: Packet) -> None:
        one, path = packet.connection, packet.path
        if path >= 0:
            drawn = int(draws(self.seed + _WAY_BACK + one, path + 1)[path])
            path = self.usable(one, pick(drawn, self.count(one)))
        for link in self.links(one, path, back=True):
            self.owe(link, self.how.ack_bytes)

    def ended(self, one: int, now: int) -> None:
        self.end[one] = now
        step = int(self.all.step[one])
        self.open[step] -= 1
        of_next = self.all.job[self.all.step == step + 1]
        if not self.open[step] and self.all.job[one] in of_next:
            self.begin(step + 1, now)
