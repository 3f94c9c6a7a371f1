"""Updates by the extension."""

from torch import Tensor

from gradwire.kernels.cpu.journal import begun
from gradwire.kernels.cpu.status import raise_unless
from gradwire.kernels.journal import Journal
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import CODES, pointer

_FEEDBACK, _MOMENTUM, _NESTEROV = 0, 1, 2


def mode_of(momentum: float | None, nesterov: bool, decay: float) -> tuple[int, float]:
    """The recurrence's number, and what it multiplies its state with."""
    if momentum is None:
        return _FEEDBACK, decay
    return (_NESTEROV if nesterov else _MOMENTUM), momentum


def update_topk(
    gradient: Tensor, velocity: Tensor | None, residual: Tensor, k: int, indices: Tensor,
    values: Tensor, velocities: Tensor | None, status: Tensor, *, momentum: float | None,
    nesterov: bool, mask: bool, scale: float, decay: float, hint: float, journal: Journal | None,
) -> float:  # fmt: skip
    gradient = gradient.contiguous()
    mode, m = mode_of(momentum, nesterov, decay)
    hint, finite = chosen.core.update_topk(
        chosen.number, CODES[gradient.dtype], pointer(gradient), pointer(velocity),
        pointer(residual), gradient.numel(), mode, m, scale, mask, k, pointer(indices),
        pointer(values), pointer(velocities), hint, begun(journal),
    )  # fmt: skip
    raise_unless(finite, status)
    return hint


def invert(
    gradient: Tensor, velocity: Tensor | None, residual: Tensor, *, momentum: float | None,
    nesterov: bool, scale: float, decay: float,
) -> None:  # fmt: skip
    gradient = gradient.contiguous()
    mode, m = mode_of(momentum, nesterov, decay)
    chosen.core.undo(
        chosen.number, CODES[gradient.dtype], pointer(gradient), pointer(velocity),
        pointer(residual), gradient.numel(), mode, m, scale,
    )  # fmt: skip


def restore_topk(
    velocity: Tensor | None, residual: Tensor, indices: Tensor, values: Tensor,
    velocities: Tensor | None, *, mask: bool,
) -> None:  # fmt: skip
    """The face passes a velocity only where there is a mask."""
    chosen.core.restore(
        pointer(velocity), pointer(residual), pointer(indices), pointer(values),
        pointer(velocities), values.numel(),
    )  # fmt: skip
