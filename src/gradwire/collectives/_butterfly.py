"""The partners of each rank where ranks pair up round after round, for any number of ranks.

rank   0   1   2   3   4   5          4 and 5 are beyond the largest power of two:
       ◄───────────────┘   │   fold   they send all to 0 and 1, wait,
           ◄───────────────┘
       ◄──►    ◄──►            pairs
       ◄──────►    (1 and 3)   pairs
       ────────────────►   ►   unfold and get the result
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Butterfly:
    """One rank's partners."""

    rank: int
    world: int

    @property
    def core(self) -> int:
        """The number of ranks that pair up: the largest power of two."""
        return 1 << (self.world.bit_length() - 1)

    @property
    def is_folded(self) -> bool:
        """Whether this rank sends all to its host, and waits for the result."""
        return self.rank >= self.core

    @property
    def host(self) -> int:
        """The rank to which this one, if folded, sends all."""
        return self.rank - self.core

    @property
    def guest(self) -> int | None:
        """The folded rank that sends all to this one; None if there is none."""
        other = self.rank + self.core
        return other if not self.is_folded and other < self.world else None

    @property
    def partners(self) -> list[int]:
        """The partner in each round; a folded rank takes part in the rounds without a partner."""
        return [self.rank ^ 1 << j for j in range(self.core.bit_length() - 1)]
