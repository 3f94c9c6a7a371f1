"""What the slow obvious engine of packets keeps: packets, notices, and what is known."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Packet(NamedTuple):
    """Under way: over which links, and at which of them. turn: of its sender, when it left."""

    connection: int
    number: int
    path: int
    links: tuple[int, ...]
    hop: int
    marked: bool
    turn: int
    asks: bool


class Notice(NamedTuple):
    """What a sender hears of a packet, or of many; or that it may begin."""

    kind: str
    connection: int
    number: int
    path: int = -1
    marked: bool = False
    turn: int = 0
    packets: int = 1


FREED = Notice("freed", -1, -1)
"""A host's link has nothing to send any more."""


@dataclass
class Port:
    """A host's link up. Connections with packets are in line, but for the one served last."""

    line: deque[int] = field(default_factory=deque)
    waiting: defaultdict[int, deque[Packet]] = field(default_factory=lambda: defaultdict(deque))
    served: int | None = None
    busy: bool = False

    def push(self, packet: Packet) -> None:
        """Behind what its connection has there."""
        one = packet.connection
        if not self.waiting[one] and one != self.served:
            self.line.append(one)
        self.waiting[one].append(packet)

    def pop(self) -> Packet | None:
        """One packet of who has waited longest for a turn."""
        if self.served is not None and self.waiting[self.served]:
            self.line.append(self.served)
        if not self.line:
            return None
        self.served = self.line.popleft()
        return self.waiting[self.served].popleft()


@dataclass
class Sender:
    """One connection, both of its ends."""

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
    """How many random numbers it has drawn, and the ways up that it has not taken this round."""

    drawn: int = 0
    round: list[int] = field(default_factory=list)
