"""Accumulate, select, clear: a step of a sparsifying feedback in one pass. `undo` inverts it.

Source: Deep Gradient Compression (Lin et al., ICLR 2018), equation 7 with momentum factor masking;
the Nesterov form is that of its authors' release; without momentum it is error feedback (gradient
dropping). With u the velocity, v the residual, m the momentum, s the scale, each operation rounded
to fp32 on its own, s·g first:

    feedback    v = d·v + s·g      (d the decay, 1 in plain error feedback)
    momentum    u = m·u + s·g      v = v + u
    Nesterov    u = m·(u + s·g)    v = (v + u) + s·g
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch

from gradwire.errors import KernelError
from gradwire.kernels.journal import Journal
from gradwire.kernels.known import Known
from gradwire.kernels.segments import UpdateCodes, UpdateTopk
from gradwire.kernels.selection import check_selection, hint_of
from gradwire.kernels.status import told_to
from gradwire.kernels.tensors import (
    check_apart,
    check_buffer,
    check_float,
    check_memory_of_all,
    check_same_device,
    facts_of_all,
    finite_number,
)
from gradwire.kernels.values import Hint, Words


def check_gradient(gradient: torch.Tensor, residual: torch.Tensor) -> None:
    """Raises KernelError unless the gradient can be added to the residual."""
    check_float("gradient", gradient)
    if residual.shape != gradient.shape:
        check_buffer("residual", residual, torch.float32, gradient.numel())
    check_same_device(gradient, residual=residual)


def check_kept(
    velocity: torch.Tensor | None, residual: torch.Tensor, velocities: torch.Tensor | None,
    k: int, momentum: float | None,
) -> None:  # fmt: skip
    """Raises KernelError unless this state can be updated by a gradient of as many elements."""
    n = residual.numel()
    check_buffer("residual", residual, torch.float32, n)
    check_same_device(residual, velocity=velocity, velocities=velocities)
    given = (velocity is not None, velocities is not None if k else velocity is not None)
    if given != (momentum is not None,) * 2:
        raise KernelError(
            "velocity and velocities belong to momentum: give all three or none, not "
            f"momentum={momentum}, velocity given: {given[0]}, velocities given: {given[1]}"
        )
    if velocity is not None:
        check_buffer("velocity", velocity, torch.float32, n)
    if velocities is not None:
        check_buffer("velocities", velocities, torch.float32, k)


@lru_cache(maxsize=64)
def recurrence_of(
    momentum: float | None, scale: float, decay: float
) -> tuple[float | None, float, float]:
    """Returns momentum, decay and scale rounded to fp32. Raises KernelError if one that is used is
    not finite."""
    d = finite_number("decay", decay) if momentum is None else 1.0
    m = None if momentum is None else finite_number("momentum", momentum)
    return m, d, 1.0 if scale == 1.0 else finite_number("scale", scale)


def advance(
    gradient: torch.Tensor, velocity: torch.Tensor | None, residual: torch.Tensor,
    status: torch.Tensor, *, momentum: float | None, nesterov: bool = False, scale: float = 1.0,
    decay: float = 1.0, hint: Hint = 0.0, journal: Journal | None = None,
) -> None:  # fmt: skip
    """Runs `update_topk` with k = 0: nothing is taken out. Raises KernelError."""
    places, nothing = nothing_taken(residual)
    update_topk(
        gradient, velocity, residual, 0, places, nothing, None if velocity is None else nothing,
        status, momentum=momentum, nesterov=nesterov, mask=False, scale=scale, decay=decay,
        hint=hint, journal=journal,
    )  # fmt: skip


def nothing_taken(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns empty places and empty values."""
    return x.new_empty(0, dtype=torch.int32), x.new_empty(0, dtype=torch.float32)


def update_topk(
    gradient: torch.Tensor,
    velocity: torch.Tensor | None,
    residual: torch.Tensor,
    k: int,
    indices: torch.Tensor,
    values: torch.Tensor,
    velocities: torch.Tensor | None,
    status: torch.Tensor,
    *,
    momentum: float | None,
    nesterov: bool = False,
    mask: bool = True,
    scale: float = 1.0,
    decay: float = 1.0,
    hint: Hint = 0.0,
    journal: Journal | None = None,
) -> Hint:
    """Adds a gradient to the residual, takes out the k largest entries, and clears them there.
    Returns the next hint.

    gradient: (n,) fp32, bf16 or fp16, not changed. residual: (n,) fp32, updated. velocity: (n,)
    fp32, updated, or None with momentum None (plain error feedback). indices: (k,) int32, values:
    (k,) fp32 and velocities: (k,) fp32 (None without momentum) are written: place, residual and
    velocity of what was taken, by ascending index. mask also clears the velocity there. decay:
    without momentum, the factor of the old residual, not 0. k may be 0. hint: as in `topk`.
    journal: drops what it kept, and keeps what `undo_topk` will need where the gradient is far
    larger than hint; with hint 0 it keeps everything, or on a device, which has less memory, the
    blocks where the gradient is far larger than the residual.
    An element whose new velocity or residual would not be finite keeps both bit for bit, and
    raises the status.
    Raises KernelError.
    """
    segment = UpdateTopk(
        gradient, velocity, residual, k, indices, values, velocities, momentum, nesterov, mask,
        scale, decay, hint, journal,
    )  # fmt: skip
    (found,) = update_many_topk([segment], status)
    return found


def update_many_topk(
    segments: Sequence[UpdateTopk], status: torch.Tensor, known: Known | None = None
) -> Sequence[Hint]:
    """Runs `update_topk` for each segment. known: earlier steps' checks.

    Raises KernelError.
    """
    room = told_to(status)

    def check() -> None:
        for x, u, v, k, indices, values, velocities, m, *_ in segments:
            check_gradient(x, v)
            check_kept(u, v, velocities, k, m)
            check_selection(v, k, indices, values)
            check_apart("indices", indices, u, velocities)
            check_same_device(status, residual=v, indices=indices, values=values)

    columns = list(zip(*segments)) or [()] * 8
    gradients, us, vs, ks, indices, values, velocities, momenta, *_ = columns
    facts = ks, momenta, gradients_of(gradients)
    kept = (status, *us, *vs, *indices, *values, *velocities)
    (known or Known()).check("update_topk", facts, kept, check)
    check_journals(segments)
    _check_apart_from_gradients(segments)
    given = segments if are_rounded(segments) else [_rounded(one) for one in segments]
    return room.update_topk(given, status)


def gradients_of(gradients: Sequence[torch.Tensor]) -> list[list[object]]:
    """Returns all that `check_gradient` reads of each gradient, except its address: this changes
    from step to step, and is checked here. Raises KernelError."""
    check_memory_of_all("gradient", gradients)
    return facts_of_all(gradients)


def _check_apart_from_gradients(segments: Sequence[UpdateTopk]) -> None:
    """Raises KernelError if places share memory with a gradient; fast if these are contiguous."""
    for one in segments:
        x = one.gradient
        begin, at = x.data_ptr(), one.indices.data_ptr()
        if (begin < at + 4 * one.k and at < begin + x.nbytes) or not x.is_contiguous():
            check_apart("indices", one.indices, x)


def check_journals(segments: Sequence[UpdateTopk | UpdateCodes]) -> None:
    """Raises KernelError if segments share a journal, which keeps the state of one."""
    own = [one.journal for one in segments if one.journal is not None]
    if len(set(own)) < len(own):
        raise KernelError(
            "each segment of a call needs a journal of its own, or None, but "
            f"{len(own) - len(set(own))} of {len(own)} journals are given again; make a Journal "
            "for each"
        )


def are_rounded(segments: Sequence[UpdateTopk | UpdateCodes]) -> bool:
    """Whether all segments have the same numbers, already in the types and the rounding that rooms
    expect. A zero may have a sign, which they do not."""
    rules = [(one.momentum, one.scale, one.decay) for one in segments]
    if not rules or rules.count(rules[0]) < len(rules):
        return False
    m, d, s = recurrence_of(*rules[0])
    kinds = {type(one.hint) for one in segments}
    has_sign = any(own == 0.0 and math.copysign(1.0, own) < 0.0 for own in rules[0])
    return rules[0] == (m, s, d) and not has_sign and kinds <= {float, Words}


def _rounded(one: UpdateTopk) -> UpdateTopk:
    """Returns the segment with its numbers rounded to fp32."""
    m, d, s = recurrence_of(one.momentum, one.scale, one.decay)
    # Positional arguments take a third of the time of `_replace`.
    return UpdateTopk(
        *one[:7], m, one.nesterov, one.mask, s, d, hint_of(one.hint), one.journal
    )  # fmt: skip
