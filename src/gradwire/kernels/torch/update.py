"""Updates in torch, term by term, and a journal that keeps all of a tensor or nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.journal import Journal, limit_of
from gradwire.kernels.segments import UpdateTopk
from gradwire.kernels.torch.selection import sort_out
from gradwire.kernels.torch.status import raise_unless
from gradwire.kernels.values import Hint, number_of

_SMALLEST = 2.0**-149  # the hint if there are zeros among the k largest


def update_topk(segments: Sequence[UpdateTopk], status: Tensor) -> Sequence[Hint]:
    """Updates one segment after the other. The journal keeps all of a tensor or nothing."""
    return [_update_topk(one, status) for one in segments]


def _update_topk(one: UpdateTopk, status: Tensor) -> Hint:
    velocity, residual, values = one.velocity, one.residual, one.values
    d = one.gradient.detach().float() * one.scale
    if one.journal is not None:
        keep_whole(one.journal, d, velocity, residual, one.hint)
    u, v = forward(d, velocity, residual, one.momentum, one.nesterov, one.decay)
    good = v.isfinite() if u is None else v.isfinite() & u.isfinite()
    residual.copy_(torch.where(good, v, residual))
    if u is not None and velocity is not None:
        velocity.copy_(torch.where(good, u, velocity))
    raise_unless(good.all(), status)
    sort_out(residual, one.k, one.indices, values)
    chosen = one.indices.long()
    kept = residual[chosen]
    residual[chosen] = torch.where(kept.isfinite(), torch.zeros_like(kept), kept)
    if velocity is not None and one.velocities is not None:
        one.velocities.copy_(velocity[chosen])
        if one.mask:
            velocity[chosen] = 0.0
    return max(float(values.abs().min()), _SMALLEST) if values.numel() else one.hint


def forward(
    d: Tensor,
    velocity: Tensor | None,
    residual: Tensor,
    momentum: float | None,
    nesterov: bool,
    decay: float,
) -> tuple[Tensor | None, Tensor]:
    """Returns the new velocity and residual. d: the scaled gradient in fp32."""
    if momentum is None or velocity is None:
        return None, residual * decay + d
    if nesterov:
        u = (velocity + d) * momentum
        return u, (residual + u) + d
    u = (velocity * momentum) + d
    return u, residual + u


class Whole:
    """Copies of the old velocity and residual."""

    def __init__(self, velocity: Tensor | None, residual: Tensor) -> None:
        self._velocity = None if velocity is None else velocity.clone()
        self._residual = residual.clone()

    def elements(self) -> int:
        return self._residual.numel()

    def fits(self, n: int, with_velocity: bool) -> bool:
        return n == self._residual.numel() and with_velocity == (self._velocity is not None)

    @staticmethod
    def put_all_back(given: Sequence[tuple["Whole", Tensor | None, Tensor]]) -> None:
        for own, velocity, residual in given:
            residual.copy_(own._residual)
            if velocity is not None and own._velocity is not None:
                velocity.copy_(own._velocity)


def keep_whole(
    journal: Journal, scaled: Tensor, velocity: Tensor | None, residual: Tensor, hint: Hint
) -> None:
    """Fills the journal before an update, with all or nothing, by the extension's limit for a
    block."""
    journal.clear()
    largest = number_of(hint)
    if largest > 0.0 and bool((scaled.abs() < limit_of(largest)).all()):  # False for NaN
        return
    journal.keep(Whole(velocity, residual))
