"""Transfers over links, and what each waits for: what the flow engine runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.arrays import Ints, Reals
from gradwire.network.checked import real, same_length, whole

_MOST = 1 << 32  # the extension's numbers of transfers, links and uses


class Rows(NamedTuple):
    """Rows of different lengths: row i is value[start[i] : start[i + 1]]."""

    start: Ints
    value: Ints

    @staticmethod
    def of(row: Ints, value: Ints, rows: int) -> Rows:
        """Make rows of values and of the row of each, which does not fall."""
        start = np.zeros(rows + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=rows), out=start[1:])
        return Rows(start, np.ascontiguousarray(value, np.int64))

    def checked(self, name: str, rows: int, end: int) -> Rows:
        """NetworkError unless they are so many rows of numbers from 0 to below `end`."""
        start, value = whole(f"begins of {name}", self.start), whole(name, self.value, end)
        is_fit = len(start) == rows + 1 and start[0] == 0 and start[-1] == len(value)
        if not is_fit or (np.diff(start) < 0).any():
            raise NetworkError(
                f"{name} are {rows} rows, each from its begin to the next; got {len(start)} "
                f"begins for {len(value)} numbers. Make them with Rows.of."
            )
        return Rows(start, value)

    def of_row(self, row: int) -> Ints:
        """The values of one row."""
        return self.value[self.start[row] : self.start[row + 1]]


@dataclass(frozen=True, eq=False)
class Transfers:
    """Columns, a row for each; one may stand for `many` that are alike.

    uses: links of each, by numbers below len(rate), and `part`, of each use, of the transfer's
    rate; bytes: 0 for what only waits. next: transfers that begin `delay` seconds after the last
    one before them. rate: of links, bytes per second. NetworkError for columns that do not fit
    together, and numbers that are negative, not finite, or beyond 10^20.
    """

    uses: Rows
    part: Reals
    bytes: Reals
    many: Reals
    next: Rows
    delay: Reals
    rate: Reals

    def __post_init__(self) -> None:
        for name in ("part", "bytes", "many", "delay", "rate"):
            object.__setattr__(self, name, real(f"{name} of transfers", getattr(self, name)))
        same_length(bytes=self.bytes, many=self.many, delay=self.delay)
        n, links = len(self), len(self.rate)
        for name, end in (("uses", links), ("next", n)):
            object.__setattr__(self, name, getattr(self, name).checked(name, n, end))
        same_length(uses=self.uses.value, part=self.part)
        if max(n, links, len(self.part)) >= _MOST:
            raise NetworkError(
                f"transfers, links and uses are below 2^32 each; got {n}, {links} and "
                f"{len(self.part)}. Take some steps at a time."
            )

    def __len__(self) -> int:
        return len(self.bytes)
