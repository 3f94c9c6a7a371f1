"""A bucket split among owners: the messages to each, and what each sends to all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gradwire.buckets import Bucket
from gradwire.layout.message import Layout
from gradwire.layout.pieces import Pieces
from gradwire.moves import AllToAll
from gradwire.strategy import Compressor

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ShardLayout:
    """pieces: of each parameter. layouts: of the message to each owner, by rank; answers: of each
    owner's to all."""

    pieces: tuple[Pieces, ...]
    layouts: tuple[Layout, ...]
    answers: tuple[Layout, ...]

    @staticmethod
    def of(
        compressor: Compressor, bucket: Bucket, world: int, pieces: Sequence[Pieces] | None = None,
        means: Compressor | None = None,
    ) -> ShardLayout:  # fmt: skip
        """pieces: of each parameter, if they are not to be cut evenly, as `Pieces.of` does. means:
        what compresses the owners' means, if it is another one."""
        own = pieces or [Pieces.of(p.name, p.elements, world) for p in bucket.parameters]
        by_owner = [
            tuple(end - begin for begin, end in (p.of_owner(owner) for p in own))
            for owner in range(world)
        ]

        def layouts(by: Compressor) -> tuple[Layout, ...]:
            known = {
                sizes: Layout.of([by.claims(n, bucket.dtype) for n in sizes])
                for sizes in dict.fromkeys(by_owner)
            }
            return tuple(known[sizes] for sizes in by_owner)

        there = layouts(compressor)
        return ShardLayout(tuple(own), there, layouts(means) if means else there)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes to each owner."""
        return tuple(layout.bytes for layout in self.layouts)

    @property
    def answer_bytes(self) -> int:
        """Bytes of an owner's message to all: as long as the longest."""
        return max(layout.bytes for layout in self.answers)

    def outgoing(self, sent: Tensor, rank: int) -> AllToAll:
        """A rank's first move, of (sum(sizes),) bytes."""
        return AllToAll(sent, self.sizes, (self.sizes[rank],) * len(self.sizes), rank, alike=True)
