"""One parameter in as many pieces as there are ranks, each with an owner."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

GRAIN = 64  # elements: pieces begin at cache lines, unless another grain is requested


@dataclass(frozen=True)
class Pieces:
    """Piece j is elements begin ... end - 1 of a parameter, and belongs to rank owner.

    The first owner follows from the name, so that small parameters do not all fall to rank 0.
    """

    bounds: tuple[tuple[int, int], ...]
    first_owner: int

    @staticmethod
    def of(name: str, n: int, world: int, grain: int = GRAIN) -> Pieces:
        """Cuts n elements into a piece per rank; all but the last are multiples of `grain`."""
        size = -(-n // (world * grain)) * grain
        bounds = tuple((min(j * size, n), min((j + 1) * size, n)) for j in range(world))
        return Pieces(bounds, zlib.crc32(name.encode()) % world)

    def of_owner(self, rank: int) -> tuple[int, int]:
        """Returns the bounds of the piece that belongs to a rank."""
        return self.bounds[self.number_of(rank)]

    def number_of(self, rank: int) -> int:
        """Returns the index of the piece that belongs to a rank."""
        return (rank - self.first_owner) % len(self.bounds)

    def owners(self) -> list[int]:
        """Returns the owner of each piece."""
        return [(self.first_owner + j) % len(self.bounds) for j in range(len(self.bounds))]
