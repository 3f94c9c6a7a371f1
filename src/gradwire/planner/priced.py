"""A strategy's cost on one rank, step by step: moves with their bytes, and local work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

WorkKind: TypeAlias = Literal["encode", "decode", "accumulate", "copy"]


class PricedMove(NamedTuple):
    """One move of one rank. bytes: of the data that the rank brings; dtype: of that data.

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
        """The larger of bytes sent and received, for which a full-duplex link waits."""
        return max(self.sent, self.received)


class Work(NamedTuple):
    """Local work on one parameter, or on a rank's part of it.

    elements: those read (encode), written, or copied between device and host (copy);
    contributions: the number of payloads that are added up; entries: in each payload. device:
    "gpu", where the gradient is, or "cpu", the host's memory. pieces: the number of pieces that
    are encoded separately, one for each rank that needs its own.
    """

    kind: WorkKind
    elements: int
    contributions: int = 1
    entries: int = 0
    device: str = "gpu"
    pieces: int = 1

    @property
    def touched(self) -> int:
        """The numbers read or written, to which the time is assumed to be proportional."""
        return self.elements + self.contributions * self.entries


Step: TypeAlias = "PricedMove | Work"


@dataclass(frozen=True)
class Priced:
    """One rank's moves and work by a strategy, in order. estimated: sizes depend on the data."""

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
        """The number of payloads written or read."""
        return sum(work.contributions for work in self.work)

    @property
    def encode(self) -> tuple[Work, ...]:
        """The local work before the first move."""
        return tuple(self._until_a_move())

    @property
    def decode(self) -> tuple[Work, ...]:
        """The local work between moves and after."""
        return self.work[len(self.encode) :]

    def _until_a_move(self) -> Iterator[Work]:
        for step in self.steps:
            if isinstance(step, PricedMove):
                return
            yield step
