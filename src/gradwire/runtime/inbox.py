"""What arrived for one bucket: one message per rank, checked, as views of the network's buffer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.layout.message import Layout
from gradwire.runtime.message import (
    check_headers,
    check_ragged_size,
    check_size,
    header_of,
    split_ragged,
)
from gradwire.strategy import Sections


class Inbox:
    """Reads the messages of a bucket, step after step; views are kept while the buffer stays.

    ragged: messages are as long as the longest of the step, and payloads follow one another.
    """

    def __init__(self, layout: Layout, world: int, digest: int, ragged: bool) -> None:
        self.layout, self.world, self.digest, self.ragged = layout, world, digest, ragged
        self._address = 0
        self._headers: Tensor | None = None  # (world, 4)
        self._payloads: list[list[Sections]] = []

    def read(self, messages: Tensor, step: int) -> Sequence[Sequence[Sections]] | None:
        """The payloads, by parameter, then by rank; None if some rank saw inf or NaN.

        Raises PayloadError.
        """
        if self.ragged:
            return self._read_ragged(messages, step)
        check_size(messages, self.world, self.layout.bytes)
        if self._headers is None or self._address != messages.data_ptr():
            by_rank = [self.layout.views(message) for message in messages]
            self._address, self._headers = messages.data_ptr(), header_of(messages)
            self._payloads = [list(parts) for parts in zip(*by_rank)]
        return self._payloads if check_headers(self._headers, self.digest, step) else None

    def _read_ragged(self, messages: Tensor, step: int) -> Sequence[Sequence[Sections]] | None:
        check_ragged_size(messages, self.world, self.layout.bytes)
        if not check_headers(header_of(messages), self.digest, step):
            return None
        capacities = [end - begin for ((_, begin, end),) in self.layout.sections]
        by_rank = [split_ragged(message, capacities, r) for r, message in enumerate(messages)]
        return [[(part,) for part in parts] for parts in zip(*by_rank)]
