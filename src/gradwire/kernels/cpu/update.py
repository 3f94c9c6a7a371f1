"""Updates by the extension, and its journals of them."""

from collections.abc import Sequence

from torch import Tensor

from gradwire.kernels.core import NativeJournal, UpdateRow
from gradwire.kernels.cpu.status import raise_unless
from gradwire.kernels.journal import Journal
from gradwire.kernels.native import chosen
from gradwire.kernels.segments import UpdateTopk
from gradwire.kernels.tensors import CODES, pointer
from gradwire.kernels.values import Hint, number_of

_FEEDBACK, _MOMENTUM, _NESTEROV = 0, 1, 2


def mode_of(momentum: float | None, nesterov: bool, decay: float) -> tuple[int, float]:
    """Returns the number of the recurrence, and the factor of its state."""
    if momentum is None:
        return _FEEDBACK, decay
    return (_NESTEROV if nesterov else _MOMENTUM), momentum


def update_topk(segments: Sequence[UpdateTopk], status: Tensor) -> Sequence[Hint]:
    given = [one.gradient.contiguous() for one in segments]
    journals = [begun(one.journal) for one in segments]  # they must outlive the call
    rows = [_row(x, one, at) for x, one, (_, at) in zip(given, segments, journals)]
    hints, finite = chosen.core.update_topk(chosen.number, rows)
    raise_unless(finite, status)
    return hints


def _row(x: Tensor, one: UpdateTopk, journal: int) -> UpdateRow:
    """Returns a segment's arguments for the extension. x: its gradient, contiguous."""
    return (
        CODES[x.dtype], x.data_ptr(), pointer(one.velocity), one.residual.data_ptr(), x.numel(),
        (*mode_of(one.momentum, one.nesterov, one.decay), one.scale), one.mask, one.k,
        one.indices.data_ptr(), one.values.data_ptr(), pointer(one.velocities),
        number_of(one.hint), journal,
    )  # fmt: skip


class NativeKept:
    """The journal's blocks of old velocity and residual, in the extension's memory."""

    def __init__(self, native: NativeJournal) -> None:
        self._native = native

    def elements(self) -> int:
        return self._native.elements()

    def fits(self, n: int, with_velocity: bool) -> bool:
        return self._native.fits(n, with_velocity)

    @staticmethod
    def put_all_back(given: Sequence[tuple["NativeKept", Tensor | None, Tensor]]) -> None:
        for own, velocity, residual in given:
            own._native.put_back(pointer(velocity), pointer(residual))


def begun(journal: Journal | None) -> tuple[NativeJournal | None, int]:
    """Clears a journal for one update, and returns what the extension will write to, and its
    address; None and 0 for None."""
    if journal is None:
        return None, 0
    journal.clear()
    native = chosen.core.Journal()
    journal.keep(NativeKept(native))
    return native, native.address()
