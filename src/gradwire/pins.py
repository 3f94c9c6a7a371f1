"""The path of a message between two hosts, whatever its size: a network plan, for senders.

    {"format": 1, "hosts": 16, "pairs": [[0, 5, 2, [[3, 1]]], …]}

A pair is: from, to, the turn in which it sends, and its paths with the amount on each, in any
unit. `gradwire network export --format pins` writes this file. Connections are opened once and
stay open, so one rule holds for all that a pair sends: each message is cut in the same ratio as
the pair's bytes in the plan, and mostly not at all.
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
"""Messages up to this size are not cut: a second launch would cost more than the bytes."""

Pair = tuple[int, int]


class Part(NamedTuple):
    """The bytes from start to end of a message. path: None if none is needed, or was planned."""

    path: int | None
    start: int
    end: int


@dataclass(frozen=True)
class Pins:
    """hosts: their number. shares: for each pair of hosts, its paths and the amount on each, in
    any unit. turns: for each pair, the step in which it is planned to send."""

    hosts: int
    shares: Mapping[Pair, tuple[tuple[int, int], ...]]
    turns: Mapping[Pair, int]

    def parts(self, source: int, target: int, size: int) -> Iterator[Part]:
        """Cut a message from host to host; sender and receiver cut alike."""
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
        """Returns when a host sends to another, if all messages are large: pairs of the same turn
        were planned not to share links."""
        return self.turns.get((source, target), 0)

    @property
    def paths(self) -> int:
        """The number of paths: one more than the highest that is used."""
        return 1 + max((path for own in self.shares.values() for path, _ in own), default=-1)

    def to_json(self) -> str:
        """Returns JSON; reading it back gives equal pins."""
        pairs = [
            [*pair, self.turn(*pair), self.shares.get(pair, ())]
            for pair in sorted({*self.shares, *self.turns})
        ]
        return json.dumps({"format": FORMAT, "hosts": self.hosts, "pairs": pairs}) + "\n"

    @staticmethod
    def from_json(text: str) -> Pins:
        """Read a text. PlanError if it is no such document."""
        pins: Pins = _DOCUMENT.read(text)
        return pins

    @staticmethod
    def load(path: str | Path) -> Pins:
        """Read a file. PlanError if it cannot be read, or holds no pins."""
        pins: Pins = _DOCUMENT.load(path)
        return pins


def _pins(hosts: int, pairs: list[tuple[int, int, int, list[tuple[int, int]]]]) -> Pins:
    known = set[Pair]()
    for i, (source, target, *_) in enumerate(pairs):
        if source == target or max(source, target) >= hosts:
            rule = f"must be a pair of different hosts, each below {hosts}"
            raise broken(rule, [source, target], f".pairs[{i}]")
        if (source, target) in known:
            raise broken("must be a pair that occurs once", [source, target], f".pairs[{i}]")
        known.add((source, target))
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
