"""What the twins keep of an update: all or nothing."""

from torch import Tensor

from gradwire.kernels.journal import FACTOR, Journal
from gradwire.kernels.values import Hint


class Whole:
    """Copies of the old velocity and residual."""

    def __init__(self, velocity: Tensor | None, residual: Tensor) -> None:
        self._velocity = None if velocity is None else velocity.clone()
        self._residual = residual.clone()

    def elements(self) -> int:
        return self._residual.numel()

    def fits(self, n: int, with_velocity: bool) -> bool:
        return n == self._residual.numel() and with_velocity == (self._velocity is not None)

    def put_back(self, velocity: Tensor | None, residual: Tensor) -> None:
        residual.copy_(self._residual)
        if velocity is not None and self._velocity is not None:
            velocity.copy_(self._velocity)


def keep_whole(
    journal: Journal, scaled: Tensor, velocity: Tensor | None, residual: Tensor, hint: Hint
) -> None:
    """Before an update: all or nothing, by the limit that the extension applies to blocks."""
    journal.clear()
    if hint > 0.0 and bool((scaled.abs() < FACTOR * hint).all()):  # NaN is not below it
        return
    journal.keep(Whole(velocity, residual))
