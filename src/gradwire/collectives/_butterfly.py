"""Who talks to whom where the ranks pair up again and again, for any number of them.

rank   0   1   2   3   4   5          4 and 5 are beyond the largest power of two:
       ◄───────────────┘   │   fold   they hand over to 0 and 1, wait,
           ◄───────────────┘
       ◄──►    ◄──►            pairs
       ◄──────►    (1 and 3)   pairs
       ────────────────►   ►   unfold and get the result
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Butterfly:
    """One rank's place in it."""

    rank: int
    world: int

    @property
    def core(self) -> int:
        """The ranks that pair up: the largest power of two."""
        return 1 << (self.world.bit_length() - 1)

    @property
    def is_folded(self) -> bool:
        """Whether this rank hands over to its host, and waits."""
        return self.rank >= self.core

    @property
    def host(self) -> int:
        """The rank to which a folded one hands over."""
        return self.rank - self.core

    @property
    def guest(self) -> int | None:
        """Who hands over to this rank."""
        other = self.rank + self.core
        return other if not self.is_folded and other < self.world else None

    @property
    def partners(self) -> list[int]:
        """One per round; a folded rank has the rounds, and nobody to talk to."""
        return [self.rank ^ 1 << j for j in range(self.core.bit_length() - 1)]
