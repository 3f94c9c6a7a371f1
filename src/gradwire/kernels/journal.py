"""What an update would lose to rounding, so that undoing it loses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor

from gradwire.errors import KernelError

FACTOR = 16.0
"""A block is kept if a scaled gradient in it reaches so many times the candidate threshold: what
inverting loses elsewhere is a millionth of that at most."""
FAR = 2.0**14
"""The same where room is scarce, on devices: a thousandth."""
HUGE = 2.0**103
"""Or if one reaches this, half of the step between the two largest floats: what is less, added to
any finite float, leaves it finite."""


def limit_of(hint: float) -> float:
    """The magnitude from which on a scaled gradient has its block kept; 0, all of them, where no
    threshold is known."""
    return min(FACTOR * hint, HUGE)


class Kept(Protocol):
    """Old velocity and residual of one update, as a room keeps them."""

    def elements(self) -> int:
        """How many elements are kept."""

    def fits(self, n: int, with_velocity: bool, /) -> bool:
        """Whether they may be of a tensor of n elements, with a velocity or without."""

    @staticmethod
    def put_all_back(given: Sequence[tuple[Any, Tensor | None, Tensor]], /) -> None:
        """What each of these keeps, to where it was: velocity, and residual."""


class Journal:
    """Old velocity and residual of the parts of a tensor that `undo_topk` could not compute again.

    One `update_topk` fills it and `undo_topk` with the same tensors uses it, as often as wanted,
    until the next update or `clear`. Empty while gradients are of the residual's order; at most
    as large as velocity and residual together; on a device at most a byte for each element, or
    32,768 elements.
    """

    def __init__(self) -> None:
        self._kept: Kept | None = None

    @property
    def elements(self) -> int:
        """How many elements it keeps."""
        return 0 if self._kept is None else self._kept.elements()

    def clear(self) -> None:
        """Forget, and free the memory."""
        self._kept = None

    def keep(self, kept: Kept) -> None:
        """What a room has put aside, or will in the update that now begins, instead of all that
        was kept before."""
        self._kept = kept

    def check(self, velocity: Tensor | None, residual: Tensor) -> None:
        """KernelError unless what is kept belongs to tensors of this kind."""
        if self._kept is None or self._kept.fits(residual.numel(), velocity is not None):
            return
        raise KernelError(
            "the journal is of another update than the one to be undone; "
            "pass the one that was given to update_topk"
        )

    @staticmethod
    def put_all_back(given: Iterable[tuple[Journal | None, Tensor | None, Tensor]]) -> None:
        """What each keeps, to where it was: velocity, and residual; in one call of its room."""
        rooms = dict[type[Kept], list[tuple[Kept, Tensor | None, Tensor]]]()
        for journal, u, v in given:
            if journal is not None and (kept := journal._kept) is not None:
                rooms.setdefault(type(kept), []).append((kept, u, v))
        for room, own in rooms.items():
            room.put_all_back(own)
