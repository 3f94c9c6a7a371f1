"""Local clipping: clips each rank's own gradient, before it is added to the residual.

Clipping after the exchange, as `torch.nn.utils.clip_grad_norm_` does, would clip sums of many
steps' gradients, as residuals send them at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.strategy import Strategy


class LocalClip:
    """Clips each rank's norm to √N·c, which stands for c for the average's norm; or, for `adam`,
    to c.

    The norm of the average of N independent gradients is about 1/√N of theirs. If the ranks'
    gradients point the same way, as in the first steps, the average's can be √N·c. (The
    N^(-1/2) of Lin et al. 2018, section 3.2, is for gradients that carry 1/N already.)

    If a rank divides by the size of its own past gradients (`adam`), their length does not matter,
    only that none is much longer than the others: there c is the limit. For `muon`, which divides
    too, this made no difference, and it keeps the limit √N·c that its evidence was made with
    (docs/design/soundness.md).

    overlap: clip by the norm of the step before, so that buckets need not wait for the last
    gradient. The first step waits for all.
    """

    def __init__(self, norm: float, world: int, *, overlap: bool = False) -> None:
        self._norm, self._world = norm, world
        self.follow(())
        self.waits = not overlap
        """Whether every step's exchange begins after its backward."""
        self.seen: float | None = None
        """The norm of this rank's last gradient that was finite and not 0, unscaled; it is saved
        in states."""
        self._squares: list[Tensor] = []

    @staticmethod
    def of(norm: float | None, overlap: bool, world: int) -> LocalClip | None:
        """Returns a LocalClip for a norm; None for None."""
        return None if norm is None else LocalClip(norm, world, overlap=overlap)

    def follow(self, strategies: Iterable[Strategy]) -> None:
        """Set the limit for the strategies in force from the next step on."""
        rules = {s.feedback.rule for s in strategies if s.feedback is not None}
        divides = "adaptive" in rules and "orthogonal" not in rules
        self._limit = self._norm * (1.0 if divides else math.sqrt(self._world))

    @property
    def needs_all(self) -> bool:
        """Whether the scale is not known before all of the step's gradients are."""
        return self.waits or self.seen is None

    def look(self, gradients: Iterable[Tensor]) -> None:
        """Add the norms of some of this step's gradients, before anything overwrites these."""
        self._squares += [_norm(g).square() for g in gradients]

    def learn(self, loss_scale: float = 1.0) -> float:
        """Returns the norm of all gradients passed to `look` since the last call, and remembers
        it, except inf, NaN and 0, the norm of a rank without a batch: these say nothing of the
        next step's."""
        squares, self._squares = self._squares, []
        norm = math.sqrt(float(torch.stack(squares).double().sum())) / loss_scale
        if math.isfinite(norm) and norm > 0.0:
            self.seen = norm
        return norm

    def learn_all(self, gradients: Sequence[Tensor], loss_scale: float = 1.0) -> float:
        """Returns the norm of all of a step's gradients, as `look` and `learn` do, also if its
        square is too large for float32: such a gradient needs clipping most."""
        self.look(gradients)
        norm = self.learn(loss_scale)
        if math.isinf(norm):
            self._squares = [_norm(g, torch.float64).square() for g in gradients]
            norm = self.learn(loss_scale)
        return norm

    def scale_for(self, norm: float | None) -> float:
        """Returns the factor that clips gradients of that norm."""
        above = norm is not None and math.isfinite(norm) and norm > self._limit
        return self._limit / norm if above and norm else 1.0


def _norm(gradient: Tensor, result: torch.dtype = torch.float32) -> Tensor:
    if kernels.is_rows(gradient):
        gradient = kernels.rows_of(gradient, torch.float32)[1]
    exact = torch.promote_types(gradient.dtype, result)
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=exact)
    return norm.to(result)
