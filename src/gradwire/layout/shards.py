"""A bucket split among owners: the messages to each owner, and the message of each to all."""

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
    """A bucket's layouts. pieces: of each parameter. layouts: of the message to each owner, by
    rank. answers: of each owner's message to all."""

    pieces: tuple[Pieces, ...]
    layouts: tuple[Layout, ...]
    answers: tuple[Layout, ...]

    @staticmethod
    def of(
        compressor: Compressor, bucket: Bucket, world: int, pieces: Sequence[Pieces] | None = None,
        means: Compressor | None = None,
    ) -> ShardLayout:  # fmt: skip
        """Returns a bucket's layouts. pieces: of each parameter; by default `Pieces.of` cuts
        evenly. means: the compressor of the owners' means, if another one."""
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
        """The number of bytes to each owner."""
        return tuple(layout.bytes for layout in self.layouts)

    @property
    def answer_bytes(self) -> int:
        """The size in bytes of an owner's message to all: that of the longest one."""
        return max(layout.bytes for layout in self.answers)

    def outgoing(self, sent: Tensor, rank: int) -> AllToAll:
        """Returns a rank's first move, of (sum(sizes),) bytes."""
        return AllToAll(sent, self.sizes, (self.sizes[rank],) * len(self.sizes), rank, alike=True)
