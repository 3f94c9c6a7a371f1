"""What arrived for one bucket: one message per rank, as views of the network's buffer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.layout.message import Layout
from gradwire.runtime.message import check_ragged_size, check_size, split_ragged
from gradwire.strategy import Sections


class Inbox:
    """Reads the messages of a bucket, step after step; views are kept while the buffer stays.

    ragged: messages are as long as the longest of the step, and payloads follow one another.
    """

    def __init__(self, layout: Layout, world: int, ragged: bool) -> None:
        self.layout, self.world, self.ragged = layout, world, ragged
        self._address = 0
        self._payloads: list[list[Sections]] = []

    def check(self, messages: Tensor) -> None:
        """PayloadError unless there is one message per rank, of the size that it must have."""
        if self.ragged:
            check_ragged_size(messages, self.world, self.layout.bytes)
        else:
            check_size(messages, self.world, self.layout.bytes)

    def payloads(self, messages: Tensor) -> Sequence[Sequence[Sections]]:
        """The payloads, by parameter, then by rank. Raises PayloadError."""
        if self.ragged:
            return self._split(messages)
        if self._address != messages.data_ptr():
            by_rank = [self.layout.views(message) for message in messages]
            self._address = messages.data_ptr()
            self._payloads = [list(parts) for parts in zip(*by_rank)]
        return self._payloads

    def _split(self, messages: Tensor) -> Sequence[Sequence[Sections]]:
        capacities = [end - begin for ((_, begin, end),) in self.layout.sections]
        by_rank = [split_ragged(message, capacities, r) for r, message in enumerate(messages)]
        return [[(part,) for part in parts] for parts in zip(*by_rank)]
