"""The operations that a room has. Faces check what they pass; a room checks nothing."""

from typing import Protocol

from torch import Tensor


class Room(Protocol):
    """Every operation on numbers, as `room_of` chooses who does it.

    What the arguments are is said by the face of the same name; where an operation returns less
    than its face does, it is said here.
    """

    def cast(self, source: Tensor, target: Tensor, /) -> bool:
        """target = source, rounded; whether all of target is finite."""

    def add_cast(self, v: Tensor, source: Tensor, factor: float, /) -> None:
        """v += factor · source."""

    def is_finite(self, x: Tensor, /) -> bool:
        """Whether x has neither inf nor NaN."""
