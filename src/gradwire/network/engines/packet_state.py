"""The state of the packet engine's twin: packets, notices, ports, senders and switches."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Packet(NamedTuple):
    """A packet under way: its links, and at which of them (`hop`) it is. turn: its sender's turn
    when it left."""

    connection: int
    number: int
    path: int
    links: tuple[int, ...]
    hop: int
    marked: bool
    turn: int
    asks: bool


class Notice(NamedTuple):
    """A notice to a sender about a packet, or about many; or that it may begin."""

    kind: str
    connection: int
    number: int
    path: int = -1
    marked: bool = False
    turn: int = 0
    packets: int = 1


FREED = Notice("freed", -1, -1)
"""A host's link is free for the next packet."""


@dataclass
class Port:
    """A host's link up. Connections with packets are in line, except the one served last."""

    line: deque[int] = field(default_factory=deque)
    waiting: defaultdict[int, deque[Packet]] = field(default_factory=lambda: defaultdict(deque))
    served: int | None = None
    busy: bool = False

    def push(self, packet: Packet) -> None:
        """Adds a packet behind those of its connection."""
        one = packet.connection
        if not self.waiting[one] and one != self.served:
            self.line.append(one)
        self.waiting[one].append(packet)

    def pop(self) -> Packet | None:
        """Takes a packet of the connection that has waited longest for a turn, if there is any."""
        if self.served is not None and self.waiting[self.served]:
            self.line.append(self.served)
        if not self.line:
            return None
        self.served = self.line.popleft()
        return self.waiting[self.served].popleft()


@dataclass
class Sender:
    """The state of one connection, at both of its ends."""

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
    silent: int = 0


@dataclass
class Switch:
    """The random numbers that a switch has drawn, and the ways up left to it in this round."""

    drawn: int = 0
    round: list[int] = field(default_factory=list)
