"""Moves, all that a rank may ask of the network: frozen values, yielded by collectives.

Either all members of a group perform a move or none. `bytes_sent(n)` is what one rank of n puts
on the wire, by the formula of the best algorithm for that move; headers are part of the data.
Rank numbers in a move (of receivers, of parts) are ranks within its group. What arrives is valid
until something else does, which takes its memory: copy what is needed longer, or sent on.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gradwire.groups import Group


@dataclass(frozen=True, eq=False)
class Move:
    """One communication operation over a group of ranks; None: all ranks."""

    name: ClassVar[str]
    group: Group | None = field(default=None, kw_only=True)

    @property
    def device(self) -> torch.device | None:
        """The device of the data that this rank sends; None: it sends nothing."""
        return None

    @property
    def where(self) -> str:
        """The name of its group: "world", "node" or "cross"."""
        return self.group.name if self.group else "world"

    def bytes_sent(self, n: int) -> float:
        """Returns the bytes that one rank of n puts on the wire."""
        raise NotImplementedError

    def bytes_received(self, n: int) -> float:
        """Returns the bytes that arrive at one rank of n; by default as many as it sends."""
        return self.bytes_sent(n)

    def _facts(self) -> str:
        """Returns its description, without the name."""
        return ""

    def __str__(self) -> str:
        return f"{self.name}{self._facts()}{f' in {self.group}' if self.group else ''}"


_T = TypeVar("_T")


def over(group: Group, rounds: Generator[Move, Any, _T]) -> Generator[Move, Any, _T]:
    """Yield the moves of these rounds, each over this group instead."""
    arrived = None
    while True:
        try:
            move = rounds.send(arrived)
        except StopIteration as end:
            found: _T = end.value
            return found
        arrived = yield replace(move, group=group)


@dataclass(frozen=True, eq=False)
class _Collective(Move):
    """A move to which every rank brings data of one dtype, 1-D and contiguous."""

    data: Tensor

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def bytes(self) -> int:
        """The bytes that this rank contributes."""
        return self.data.numel() * self.data.element_size()

    def _facts(self) -> str:
        dtype = str(self.data.dtype).removeprefix("torch.")
        return f"({self.data.numel()} × {dtype})"


@dataclass(frozen=True, eq=False)
class AllReduce(_Collective):
    """Every rank gets the sum, element by element. Arrives as: data's shape and dtype.

    The performer may use data's memory for the result.
    """

    name: ClassVar[str] = "all_reduce"

    def bytes_sent(self, n: int) -> float:
        return 2 * (n - 1) / n * self.bytes


@dataclass(frozen=True, eq=False)
class AllGather(_Collective):
    """Every rank gets every rank's data, all of one size. Arrives as: (n, len(data))."""

    name: ClassVar[str] = "all_gather"

    def bytes_sent(self, n: int) -> float:
        return (n - 1) * self.bytes


@dataclass(frozen=True, eq=False)
class AllToAll(_Collective):
    """Every rank sends each rank another part. Arrives as: the parts, in rank order, 1-D.

    sizes: elements for each rank; arriving: elements from each rank, as this rank knows them.
    alike: whether every rank's sizes are the same.
    """

    sizes: tuple[int, ...]
    arriving: tuple[int, ...]
    rank: int
    alike: bool = field(default=False, kw_only=True)
    name: ClassVar[str] = "all_to_all"

    def bytes_sent(self, n: int) -> float:
        return float(self.bytes - self.sizes[self.rank] * self.data.element_size())

    def bytes_received(self, n: int) -> float:
        others = sum(self.arriving) - self.arriving[self.rank]
        return float(others * self.data.element_size())


@dataclass(frozen=True, eq=False)
class ReduceScatter(_Collective):
    """Every rank gets the sum of one part. Arrives as: (sizes[rank],) of data's dtype.

    sizes: elements of each rank's part; the parts follow each other in data.
    """

    sizes: tuple[int, ...]
    rank: int
    name: ClassVar[str] = "reduce_scatter"

    def bytes_sent(self, n: int) -> float:
        return float(self.bytes - self.sizes[self.rank] * self.data.element_size())

    def bytes_received(self, n: int) -> float:
        return float((n - 1) * self.sizes[self.rank] * self.data.element_size())


@dataclass(frozen=True, eq=False)
class _Rooted(_Collective):
    """A move in which one rank, the root, has or gets all. rank: this rank."""

    root: int
    rank: int

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    def bytes_sent(self, n: int) -> float:
        return 0.0 if self.is_root else float(self.bytes)

    def _facts(self) -> str:
        return f"{super()._facts()[:-1]}, root {self.root})"


@dataclass(frozen=True, eq=False)
class Reduce(_Rooted):
    """The root gets the sum; others get nothing, an empty tensor. Arrives as: data's shape.

    The performer may use data's memory for the result.
    """

    name: ClassVar[str] = "reduce"

    def bytes_received(self, n: int) -> float:
        """Returns the bytes for a chain that ends at the root: all but its first rank get some."""
        return float(self.bytes) if n > 1 and (self.rank - self.root) % n != 1 else 0.0


@dataclass(frozen=True, eq=False)
class Gather(_Rooted):
    """The root gets every rank's data, all of one size: (n, len(data)); others nothing."""

    name: ClassVar[str] = "gather"

    def bytes_received(self, n: int) -> float:
        return float((n - 1) * self.bytes) if self.is_root else 0.0


@dataclass(frozen=True, eq=False)
class Broadcast(_Rooted):
    """Every rank gets the root's data. The others bring a buffer of the same size for it.

    Arrives as: data's shape. Bytes are those of a chain that begins at the root.
    """

    name: ClassVar[str] = "broadcast"

    def bytes_sent(self, n: int) -> float:
        return float(self.bytes) if (self.rank - self.root) % n != n - 1 else 0.0

    def bytes_received(self, n: int) -> float:
        return 0.0 if self.is_root else float(self.bytes)


@dataclass(frozen=True, eq=False)
class Exchange(Move):
    """Point-to-point messages to any other ranks at once; every rank takes part, even idle ones.

    sends: the message for each receiver, 1-D uint8, contiguous. receives: how many bytes each
    sender sends, known to both sides. Arrives as: {rank: its bytes}.
    alike: whether every rank sends all others one message, whose sizes all ranks know.
    """

    sends: Mapping[int, Tensor]
    receives: Mapping[int, int]
    alike: bool = field(default=False, kw_only=True)
    name: ClassVar[str] = "exchange"

    @classmethod
    def to_all(cls, message: Tensor, sizes: Mapping[int, int]) -> Exchange:
        """Returns the exchange in which every rank sends its message to all others, an all-gather
        of messages that may differ in length; sizes: the bytes of each other rank's."""
        return cls(dict.fromkeys(sizes, message), sizes, alike=True)

    @property
    def device(self) -> torch.device | None:
        return next((data.device for data in self.sends.values()), None)

    def bytes_sent(self, n: int) -> float:
        return float(sum(data.numel() for data in self.sends.values()))

    def bytes_received(self, n: int) -> float:
        return float(sum(self.receives.values()))

    def _facts(self) -> str:
        sends = {r: data.numel() for r, data in self.sends.items()}
        return f"(bytes to {sends}, from {dict(self.receives)})"
