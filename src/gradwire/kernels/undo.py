"""Undoing a step of a sparsifying feedback: what was taken returns, the recurrence is inverted,
and what inverting would lose comes out of journals."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.journal import Journal
from gradwire.kernels.rooms import room_of
from gradwire.kernels.segments import UndoTopk
from gradwire.kernels.tensors import check_apart, check_buffer, check_same_device
from gradwire.kernels.update import check_gradient, check_kept, recurrence_of


def undo_topk(
    gradient: Tensor,
    velocity: Tensor | None,
    residual: Tensor,
    indices: Tensor,
    values: Tensor,
    velocities: Tensor | None,
    *,
    momentum: float | None,
    nesterov: bool = False,
    mask: bool = True,
    scale: float = 1.0,
    decay: float = 1.0,
    journal: Journal | None = None,
) -> None:
    """Undoes an `update_topk`: what was taken returns, then the recurrence is inverted, then what
    the journal kept is written back.

    The arguments are those that `update_topk` took and wrote. What the journal kept is exact to
    the bit. Elsewhere each element is off by the rounding of the largest number involved: with a
    journal, about 16·hint·6e-8, on a device 2^14·hint·6e-8 (for the velocity, that over the
    momentum; in Nesterov's form, three such). Without a journal, or beyond its room on a device,
    there is no such limit. With momentum 0 the old velocity is unknown and stays as it is.

    Elements that the update left unchanged stay unchanged. They are recognized, in every form, by
    repeating the step from the current values: the result is again not finite. But that may also
    happen where the update added a finite scaled gradient of 2^103 or more. So if the residual is
    at least half of such a gradient the element counts as updated: the old residual is taken to
    have been the smaller of both. (If it was the larger, and was left unchanged, the journal has
    it; there is no other way to tell.) An element whose inverse is not finite stays as it is.
    Beside a velocity of 1e38 the repeated step may not be finite whatever the gradient is: such an
    element counts as unchanged. Raises KernelError.
    """
    undo_many_topk([UndoTopk(
        gradient, velocity, residual, indices, values, velocities, momentum, nesterov, mask, scale,
        decay, journal,
    )])  # fmt: skip


def restore_topk(
    velocity: Tensor | None, residual: Tensor, indices: Tensor, values: Tensor,
    velocities: Tensor | None, *, mask: bool = True,
) -> None:  # fmt: skip
    """Gives back what was taken: residual[indices] += values; with mask, velocity[indices] =
    velocities.

    indices: as `update_topk` wrote them, strictly ascending within 0 ... n-1. Raises KernelError.
    """
    undo_many_topk([
        UndoTopk(None, velocity, residual, indices, values, velocities, None, mask=mask)
    ])  # fmt: skip


def undo_many_topk(segments: Sequence[UndoTopk]) -> None:
    """Runs `undo_topk` for each segment, and `restore_topk` for those without a gradient.

    Raises KernelError; for indices that do not ascend strictly within 0 ... n-1 only on the CPU
    and in the twins, with nothing written; elsewhere nothing is written outside of residual and
    velocity.
    """
    if not segments:
        return
    for one in segments:
        _check(one)
    given = [_rounded(one) for one in segments]
    room = room_of(given[0].residual)
    bad = room.undo_topk(given)
    if bad < len(given):
        one = given[bad]
        n, position = one.residual.numel(), room.first_violation(one.indices, one.residual.numel())
        raise KernelError(
            f"the indices to restore must ascend strictly within 0 ... {n - 1}, but entry "
            f"{position} is {int(one.indices[position])}; pass those that update_topk wrote"
        )
    Journal.put_all_back((one.journal, one.velocity, one.residual) for one in given)


def _check(one: UndoTopk) -> None:
    g, u, v, indices, values, velocities, momentum, *_ = one
    n, k = v.numel(), values.numel()
    if g is not None:
        check_gradient(g, v)
        check_kept(u, v, velocities, k, momentum)
    else:
        check_buffer("residual", v, torch.float32, n)
    check_buffer("indices", indices, torch.int32, k)
    check_buffer("values", values, torch.float32, k)
    check_same_device(v, indices=indices, values=values, velocity=u, velocities=velocities)
    if one.mask and u is not None:
        if velocities is None:
            raise KernelError(
                "restoring a masked velocity needs velocities; pass those that were saved"
            )
        check_buffer("velocity", u, torch.float32, n)
        check_buffer("velocities", velocities, torch.float32, k)
    if one.journal is not None:
        one.journal.check(u, v)
    check_apart("indices", indices, v, _seen(one))


def _seen(one: UndoTopk) -> Tensor | None:
    """Returns the velocity, or None if nothing reads it: then it was not checked."""
    uses = one.mask or one.gradient is not None or one.journal is not None
    return one.velocity if uses else None


def _rounded(one: UndoTopk) -> UndoTopk:
    """Returns the segment with its numbers in fp32, and without tensors that nothing reads."""
    m, d, s = recurrence_of(one.momentum, one.scale, one.decay)
    velocities = one.velocities if one.mask and one.velocity is not None else None
    return UndoTopk(
        one.gradient, _seen(one), one.residual, one.indices, one.values, velocities, m,
        one.nesterov, one.mask, s, d, one.journal,
    )  # fmt: skip
