"""What an update would lose to rounding, so that undoing it loses nothing."""

from __future__ import annotations

import torch

from gradwire.errors import KernelError
from gradwire.kernels.core import Core, NativeJournal
from gradwire.kernels.tensors import pointer

FACTOR = 16.0
"""A block is kept if a scaled gradient in it reaches so many times the candidate threshold."""


class Journal:
    """Old velocity and residual of the parts of a tensor that `undo_topk` could not compute again.

    One `update_topk` fills it and `undo_topk` with the same tensors uses it, as often as wanted,
    until the next update or `clear`. Empty while gradients are of the residual's order; at most
    as large as velocity and residual together.
    """

    def __init__(self) -> None:
        self._native: NativeJournal | None = None
        self._whole: tuple[torch.Tensor | None, torch.Tensor] | None = None

    @property
    def elements(self) -> int:
        """How many elements it keeps."""
        if self._whole is not None:
            return self._whole[1].numel()
        return 0 if self._native is None else self._native.elements()

    def clear(self) -> None:
        """Forget, and free the memory."""
        self._native = self._whole = None

    def begin(self, core: Core) -> int:
        """The address of an empty native journal, for one update."""
        self.clear()
        self._native = core.Journal()
        return self._native.address()

    def keep_whole(
        self,
        scaled: torch.Tensor,
        velocity: torch.Tensor | None,
        residual: torch.Tensor,
        hint: float,
    ) -> None:
        """The twin's way, before its update: all or nothing, by the same limit."""
        self.clear()
        if hint > 0.0 and bool((scaled.abs() < FACTOR * hint).all()):  # NaN is not below it
            return
        self._whole = (None if velocity is None else velocity.clone(), residual.clone())

    def check(self, velocity: torch.Tensor | None, residual: torch.Tensor) -> None:
        """KernelError unless what is kept belongs to tensors of this kind."""
        fits = True
        if self._whole is not None:
            old_velocity, old_residual = self._whole
            fits = (velocity is None) == (old_velocity is None)
            fits &= residual.numel() == old_residual.numel()
        elif self._native is not None:
            fits = self._native.fits(residual.numel(), velocity is not None)
        if not fits:
            raise KernelError(
                "the journal is of another update than the one to be undone; "
                "pass the one that was given to update_topk"
            )

    def put_back(self, velocity: torch.Tensor | None, residual: torch.Tensor) -> None:
        """What is kept, to where it was."""
        if self._whole is not None:
            old_velocity, old_residual = self._whole
            residual.copy_(old_residual)
            if velocity is not None and old_velocity is not None:
                velocity.copy_(old_velocity)
        elif self._native is not None:
            self._native.put_back(pointer(velocity), pointer(residual))
