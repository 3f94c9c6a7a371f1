"""What the extension keeps of an update."""

from torch import Tensor

from gradwire.kernels.core import NativeJournal
from gradwire.kernels.journal import Journal
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import pointer


class NativeKept:
    """Blocks of old velocity and residual, in the extension's memory."""

    def __init__(self, native: NativeJournal) -> None:
        self._native = native

    def elements(self) -> int:
        return self._native.elements()

    def fits(self, n: int, with_velocity: bool) -> bool:
        return self._native.fits(n, with_velocity)

    def put_back(self, velocity: Tensor | None, residual: Tensor) -> None:
        self._native.put_back(pointer(velocity), pointer(residual))


def begun(journal: Journal | None) -> int:
    """The address of an empty journal for one update; 0 for none."""
    if journal is None:
        return 0
    journal.clear()
    native = chosen.core.Journal()
    journal.keep(NativeKept(native))
    return native.address()
