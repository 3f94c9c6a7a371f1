"""Transfers over links, and what each waits for: what the flow engine runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Reals = NDArray[np.float64]


class Rows(NamedTuple):
    """Rows of different lengths: row i is value[start[i] : start[i + 1]]."""

    start: Numbers
    value: Numbers

    @staticmethod
    def of(row: Numbers, value: Numbers, rows: int) -> Rows:
        """Of values and the row of each, which does not fall."""
        start = np.zeros(rows + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=rows), out=start[1:])
        return Rows(start, np.ascontiguousarray(value, np.int64))

    def of_row(self, row: int) -> Numbers:
        return self.value[self.start[row] : self.start[row + 1]]


@dataclass(frozen=True, eq=False)
class Transfers:
    """Columns, a row for each; one may stand for `many` that are alike.

    uses: links of each, by numbers below len(rate), and `part`, of each use, of the transfer's
    rate; bytes: 0 for what only waits. next: transfers that begin `delay` seconds after the last
    one before them. rate: of links, bytes per second.
    """

    uses: Rows
    part: Reals
    bytes: Reals
    many: Reals
    next: Rows
    delay: Reals
    rate: Reals

    def __len__(self) -> int:
        return len(self.bytes)
