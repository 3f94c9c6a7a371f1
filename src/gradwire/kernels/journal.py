"""Copies of what an update would lose to rounding, so that undoing it loses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor

from gradwire.errors import KernelError

FACTOR = 16.0
"""A block is kept if a scaled gradient in it reaches so many times the candidate threshold:
elsewhere inverting loses a millionth of that threshold at most."""
FAR = 2.0**14
"""The same factor on devices, where memory is scarce: inverting loses a thousandth."""
HUGE = 2.0**103
"""A block is also kept if a scaled gradient reaches this, half of the step between the two largest
floats: a smaller number, added to any finite float, leaves it finite."""


def limit_of(hint: float) -> float:
    """Returns the magnitude from which on a scaled gradient has its block kept; 0, which keeps all
    blocks, if no threshold is known."""
    return min(FACTOR * hint, HUGE)


class Kept(Protocol):
    """The old velocity and residual of one update, as a room keeps them."""

    def elements(self) -> int:
        """Returns how many elements are kept."""

    def fits(self, n: int, with_velocity: bool, /) -> bool:
        """Whether they can belong to a tensor of n elements, with or without a velocity."""

    @staticmethod
    def put_all_back(given: Sequence[tuple[Any, Tensor | None, Tensor]], /) -> None:
        """Writes what each of these keeps back to its velocity and residual."""


class Journal:
    """Old velocity and residual of the parts of a tensor that `undo_topk` could not compute again.

    One `update_topk` fills it, and `undo_topk` with the same tensors may use it any number of
    times, until the next update or `clear`. It is empty while gradients are of the residual's
    order; at most as large as velocity and residual together; on a device at most a byte for each
    element, or 32,768 elements.
    """

    def __init__(self) -> None:
        self._kept: Kept | None = None

    @property
    def elements(self) -> int:
        """The number of elements that it keeps."""
        return 0 if self._kept is None else self._kept.elements()

    def clear(self) -> None:
        """Drops what is kept, and frees the memory."""
        self._kept = None

    def keep(self, kept: Kept) -> None:
        """Replaces what was kept by what a room has saved, or will save in this update."""
        self._kept = kept

    def check(self, velocity: Tensor | None, residual: Tensor) -> None:
        """Raises KernelError if what is kept cannot belong to these tensors."""
        if self._kept is None or self._kept.fits(residual.numel(), velocity is not None):
            return
        raise KernelError(
            "the journal must be of the update that is undone, but is of another; pass the one "
            "that was given to update_topk"
        )

    @staticmethod
    def put_all_back(given: Iterable[tuple[Journal | None, Tensor | None, Tensor]]) -> None:
        """Writes what each journal keeps back to its velocity and residual, in one call per kind
        of room."""
        rooms = dict[type[Kept], list[tuple[Kept, Tensor | None, Tensor]]]()
        for journal, u, v in given:
            if journal is not None and (kept := journal._kept) is not None:
                rooms.setdefault(type(kept), []).append((kept, u, v))
        for room, own in rooms.items():
            room.put_all_back(own)
