"""Undoing updates in torch, term by term."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.journal import HUGE
from gradwire.kernels.segments import UndoTopk
from gradwire.kernels.torch.sparse import first_violation
from gradwire.kernels.torch.update import forward


def undo_topk(segments: Sequence[UndoTopk]) -> int:
    for number, one in enumerate(segments):
        k = one.indices.numel()
        if k > 0 and first_violation(one.indices, one.residual.numel()) < k:
            return number
    for one in segments:
        chosen = one.indices.long()
        one.residual[chosen] += one.values
        if one.mask and one.velocity is not None and one.velocities is not None:
            one.velocity[chosen] = one.velocities
        if one.gradient is not None:
            _invert(one, one.gradient.detach().float() * one.scale)
    return len(segments)


def _invert(one: UndoTopk, d: Tensor) -> None:
    """Inverts the recurrence. An element whose repeated step overflows was left unchanged by the
    update, and is left so here, unless a huge gradient made its residual. d: the scaled gradient.
    """
    velocity, residual, momentum, nesterov = one.velocity, one.residual, one.momentum, one.nesterov
    good = forward(d, velocity, residual, momentum, nesterov, one.decay)[1].isfinite()
    good |= (d.abs() >= HUGE) & d.isfinite() & (residual.abs() >= d.abs() * 0.5)
    if momentum is None or velocity is None:
        v = (residual - d) / torch.tensor(one.decay, dtype=torch.float32, device=d.device)
    else:
        m = torch.tensor(momentum, dtype=torch.float32, device=d.device)
        v = (residual - d) - velocity if nesterov else residual - velocity
        u = velocity
        if momentum != 0.0:
            u = velocity / m - d if nesterov else (velocity - d) / m
        good &= u.isfinite() & v.isfinite()
        velocity.copy_(torch.where(good, u, velocity))
    residual.copy_(torch.where(good & v.isfinite(), v, residual))
