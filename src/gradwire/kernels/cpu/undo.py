"""Undoing updates by the extension."""

from collections.abc import Sequence

from torch import Tensor

from gradwire.kernels.cpu.sparse import first_violation
from gradwire.kernels.cpu.update import mode_of
from gradwire.kernels.native import chosen
from gradwire.kernels.segments import UndoTopk
from gradwire.kernels.tensors import CODES, pointer


def undo_topk(segments: Sequence[UndoTopk]) -> int:
    for number, one in enumerate(segments):
        k = one.indices.numel()
        if k > 0 and first_violation(one.indices, one.residual.numel()) < k:
            return number
    for one in segments:
        velocity = one.velocity if one.mask else None
        chosen.core.restore(
            pointer(velocity), pointer(one.residual), pointer(one.indices), pointer(one.values),
            pointer(one.velocities), one.values.numel(),
        )  # fmt: skip
        if one.gradient is not None:
            _invert(one, one.gradient.contiguous())
    return len(segments)


def _invert(one: UndoTopk, gradient: Tensor) -> None:
    mode, m = mode_of(one.momentum, one.nesterov, one.decay)
    chosen.core.undo(
        chosen.number, CODES[gradient.dtype], pointer(gradient), pointer(one.velocity),
        pointer(one.residual), gradient.numel(), mode, m, one.scale,
    )  # fmt: skip
