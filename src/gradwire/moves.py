"""All that a rank may ask of the network: frozen values, yielded by collectives.

A move is performed by every member of its group or by none. `bytes_sent(n)` is what one rank of n
puts on the wire, by the formula of the best algorithm for that move; headers are in the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Move:
    """One collective operation over one group of ranks. `data` is 1-D and contiguous."""

    data: Tensor
    name: ClassVar[str]

    @property
    def bytes(self) -> int:
        """Bytes this rank contributes."""
        return self.data.numel() * self.data.element_size()

    def bytes_sent(self, n: int) -> float:
        """Bytes one rank of n puts on the wire."""
        raise NotImplementedError

    def __str__(self) -> str:
        dtype = str(self.data.dtype).removeprefix("torch.")
        return f"{self.name}({self.data.numel()} × {dtype})"


@dataclass(frozen=True, eq=False)
class AllReduce(Move):
    """Every rank gets the sum, element by element. Arrives as: data's shape and dtype.

    The performer may use data's memory for the result.
    """

    name: ClassVar[str] = "all_reduce"

    def bytes_sent(self, n: int) -> float:
        return 2 * (n - 1) / n * self.bytes


@dataclass(frozen=True, eq=False)
class AllGather(Move):
    """Every rank gets every rank's data, all of one size. Arrives as: (n, len(data))."""

    name: ClassVar[str] = "all_gather"

    def bytes_sent(self, n: int) -> float:
        return (n - 1) * self.bytes


@dataclass(frozen=True, eq=False)
class AllToAll(Move):
    """Every rank sends each rank a part of its own. Arrives as: the parts, in rank order, 1-D.

    sizes: elements for each rank; arriving: elements from each rank. All ranks know both.
    """

    sizes: tuple[int, ...]
    arriving: tuple[int, ...]
    rank: int
    name: ClassVar[str] = "all_to_all"

    def bytes_sent(self, n: int) -> float:
        return float(self.bytes - self.sizes[self.rank] * self.data.element_size())
