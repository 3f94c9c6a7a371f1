"""One link and the lanes beside it: what a group costs, and what it does to the lanes' clocks.

What lanes are, and where the model comes from: `gradwire.planner.joint`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple, TypeAlias

LANES = ("none", "gpu", "cpu")  # position = the number that the extension uses
NONE, GPU, CPU = range(3)

Row: TypeAlias = tuple[float, float, float]
"""A point of a curve and what follows it: size, seconds, seconds per unit up to the next point."""


class Option(NamedTuple):
    """A lane's number and three curves by their rows; lane none has encode and decode of zero."""

    lane: int
    encode: Sequence[Row]
    send: Sequence[Row]
    decode: Sequence[Row]


@dataclass(frozen=True)
class Problem:
    """Tensors in the order of backward. ready: (n,) seconds; position: (n + 1,), sums of sizes
    from 0; max_span: tensors in a group; max_groups: groups."""

    ready: Sequence[float]
    position: Sequence[float]
    options: Sequence[Option]
    max_span: int
    max_groups: int

    @property
    def n(self) -> int:
        """How many tensors there are."""
        return len(self.ready)

    def group(self, first: int, end: int, option: int) -> Group:
        """What tensors first … end-1 cost by an option."""
        by, size = self.options[option], self.position[end] - self.position[first]
        costs = (value_of(curve, size) for curve in (by.encode, by.send, by.decode))
        return Group(by.lane, self.ready[end - 1], *costs)


class Group(NamedTuple):
    """A lane's number, when the last gradient is ready if nothing delays it, and three costs."""

    lane: int
    ready: float
    encode: float
    send: float
    decode: float


class Clocks(NamedTuple):
    """The lanes after some groups. Decodes come last of all; they take as long if they come first
    of all, so every clock includes them. delay: of what backward computes."""

    delay: float = 0.0
    cpu: float = 0.0
    link: float = 0.0

    def after(self, g: Group) -> Clocks:
        """With one group more."""
        cpu, link = self.cpu + g.decode, self.link + g.decode
        delay = self.delay + (g.decode + g.encode if g.lane == GPU else g.decode)
        encoded = g.ready + delay
        if g.lane == CPU:
            encoded = cpu = max(cpu, encoded) + g.encode
        return Clocks(delay, cpu, max(link, encoded) + g.send)


_size_of = itemgetter(0)


def value_of(rows: Sequence[Row], size: float) -> float:
    """The value at a size of the curve through these rows: the first point's before it."""
    at = bisect_right(rows, size, key=_size_of) - 1
    if at < 0:
        return rows[0][1]
    x, y, slope = rows[at]
    value = y + (size - x) * slope
    return value if at + 1 == len(rows) else min(value, rows[at + 1][1])
