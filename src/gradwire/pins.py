"""Which path a message between two hosts takes, whatever its size: a network plan, for senders.

    {"format": 1, "hosts": 16, "pairs": [[0, 5, 2, [[3, 1]]], …]}

Of each pair: from, to, the turn in which it sends, and paths with what each carries, in any unit.
Written by `gradwire network export --format pins`. Connections live long and are opened once, so
what a pair sends in all steps of a plan shares one rule: a message is cut as the pair's bytes
were, and mostly not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from gradwire.document import Document
from gradwire.errors import PlanError
from gradwire.schema import List, Row, Table, Whole, broken

FORMAT = 1
WHOLE_BYTES = 64 * 1024
"""Messages up to here are not cut: two starts would cost more than the bytes."""

Pair = tuple[int, int]


class Part(NamedTuple):
    """Bytes from start to end of a message. path: None: it needs none, or none was planned."""

    path: int | None
    start: int
    end: int


@dataclass(frozen=True)
class Pins:
    """hosts: how many there are. shares: of pairs of hosts, paths and what each of them carries,
    in any unit. turns: of pairs, the step in which they are planned to send."""

    hosts: int
    shares: Mapping[Pair, tuple[tuple[int, int], ...]]
    turns: Mapping[Pair, int]

    def parts(self, source: int, target: int, size: int) -> Iterator[Part]:
        """Cut a message from host to host; both ends cut alike."""
        shares = self.shares.get((source, target), ())
        if not shares:
            yield Part(None, 0, size)
            return
        if size <= WHOLE_BYTES:
            shares = (max(shares, key=lambda share: share[1]),)
        total = sum(amount for _, amount in shares)
        ends = [0, *(size * sum_ // total for sum_ in accumulate(a for _, a in shares))]
        for (path, _), (start, end) in zip(shares, pairwise(ends)):
            if end > start:
                yield Part(path, start, end)

    def turn(self, source: int, target: int) -> int:
        """When a host sends to another, if all that is sent is large: those who send in the same
        turn were planned not to meet."""
        return self.turns.get((source, target), 0)

    @property
    def paths(self) -> int:
        """One more than the highest that is used."""
        return 1 + max((path for own in self.shares.values() for path, _ in own), default=-1)

    def to_json(self) -> str:
        """Equal when read back."""
        pairs = [
            [*pair, self.turn(*pair), self.shares.get(pair, ())]
            for pair in sorted({*self.shares, *self.turns})
        ]
        return json.dumps({"format": FORMAT, "hosts": self.hosts, "pairs": pairs}) + "\n"

    @staticmethod
    def from_json(text: str) -> Pins:
        """PlanError for what is no such document."""
        pins: Pins = _DOCUMENT.read(text)
        return pins

    @staticmethod
    def load(path: str | Path) -> Pins:
        """Read a file. PlanError if it cannot be read, or is none."""
        pins: Pins = _DOCUMENT.load(path)
        return pins


def _pins(hosts: int, pairs: list[tuple[int, int, int, list[tuple[int, int]]]]) -> Pins:
    for i, (source, target, *_) in enumerate(pairs):
        if source == target or max(source, target) >= hosts:
            raise broken(f"is a pair of {hosts} hosts", [source, target], f".pairs[{i}]")
    return Pins(
        hosts,
        {(source, target): tuple(shares) for source, target, _, shares in pairs if shares},
        {(source, target): turn for source, target, turn, _ in pairs},
    )


_PAIR = Row(Whole(), Whole(), Whole(), List(Row(Whole(), Whole(1, None))))
_DOCUMENT = Document(
    "a document of pins", Table({"hosts": Whole(), "pairs": List(_PAIR)}, make=_pins), PlanError,
    "Export them again, by gradwire network export --format pins", FORMAT,
)  # fmt: skip
