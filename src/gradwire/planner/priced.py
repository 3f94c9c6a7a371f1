"""What a strategy costs one rank, step by step: moves with their bytes, and local work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

WorkKind: TypeAlias = Literal["encode", "decode", "accumulate", "copy"]


class PricedMove(NamedTuple):
    """One move of one rank. bytes: of the data that the rank brings, of that dtype.

    group: "world", "node" or "cross"; ranks: of the group. sent, received: bytes, by the formulas
    of `moves`. to: of an exchange, which ranks get how many bytes.
    """

    name: str
    bytes: int
    sent: float
    received: float
    dtype: str
    group: str
    ranks: int
    to: tuple[tuple[int, int], ...] = ()

    @property
    def busiest(self) -> float:
        """What a link that is full both ways waits for."""
        return max(self.sent, self.received)


class Work(NamedTuple):
    """Local work on one parameter, or on what a rank has of it.

    elements: that are read (encode), written, or go between device and host (copy);
    contributions: payloads that are added up; entries: of how many elements each payload speaks.
    device: "gpu", where the gradient lies, or "cpu", the host's memory. pieces: that are encoded
    by themselves, one for each who will have to have his own.
    """

    kind: WorkKind
    elements: int
    contributions: int = 1
    entries: int = 0
    device: str = "gpu"
    pieces: int = 1

    @property
    def touched(self) -> int:
        """Numbers that are read or written: what its time is taken to be proportional to."""
        return self.elements + self.contributions * self.entries


Step: TypeAlias = "PricedMove | Work"


@dataclass(frozen=True)
class Priced:
    """One rank's way through a strategy, in order. estimated: sizes depend on the data."""

    steps: tuple[Step, ...]
    estimated: bool = False

    @property
    def moves(self) -> tuple[PricedMove, ...]:
        """The moves alone, in order."""
        return tuple(step for step in self.steps if isinstance(step, PricedMove))

    @property
    def work(self) -> tuple[Work, ...]:
        """The local work alone, in order."""
        return tuple(step for step in self.steps if isinstance(step, Work))

    @property
    def bytes_sent(self) -> float:
        """Bytes that this rank sends, over all moves."""
        return sum(move.sent for move in self.moves)

    @property
    def calls(self) -> int:
        """Payloads that are written or read."""
        return sum(work.contributions for work in self.work)

    @property
    def encode(self) -> tuple[Work, ...]:
        """What is done before the first move."""
        return tuple(self._until_a_move())

    @property
    def decode(self) -> tuple[Work, ...]:
        """What is done between moves and after."""
        return self.work[len(self.encode) :]

    def _until_a_move(self) -> Iterator[Work]:
        for step in self.steps:
            if isinstance(step, PricedMove):
                return
            yield step
