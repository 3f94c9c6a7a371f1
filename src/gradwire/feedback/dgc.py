"""dgc: momentum correction, so that elements that stay unsent for many steps keep momentum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.feedback._numbers import check_momentum, momentum_of
from gradwire.member import Moments
from gradwire.strategy import Evidence, Feedback, Member, Recurrence, State, StepInfo


@dataclass(frozen=True)
class MomentumCorrection(Feedback):
    """u = m·u + g; v = v + u; send C(v); keep the rest. Two fp32 buffers.

    The optimizer must have no momentum of its own. nesterov: u = m·(u + g); v = v + u + g.
    mask (momentum factor masking): u is zeroed at the places that were sent, even those of zeros;
    a dense payload sends all places. So at density 1 this is exactly SGD *without* momentum, and
    without the mask SGD with it.

    Source: Lin et al. 2018, sections 3.1 and 3.2; Nesterov as in the authors' code.
    """

    momentum: float = 0.9
    nesterov: bool = False
    mask: bool = True
    makes_good: ClassVar[bool] = True
    name: ClassVar[str] = "dgc"
    evidence: ClassVar[tuple[Evidence, ...]] = (
        Evidence(
            "dgc(0.01) | allgather", "sgdm", True, "digits", "dgc", warmup=0.05, turns=20,
            densities=(0.25, 0.0625, 0.015625, 0.004),
        ),
        Evidence(
            "dgc(0.001) | allgather", "sgdm", True, "glyphs", "dgc", warmup=0.05, turns=20,
            densities=(0.25, 0.0625, 0.015625, 0.004),
        ),
        Evidence(  # masked, what is sent in every step has no momentum: images do without it
            "dgc(0.01) | allgather", "sgdm", False, "words", "dgc", warmup=0.025,
            densities=(0.25, 0.0625, 0.015625, 0.004),
        ),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_momentum(self.name, self.momentum, nesterov=self.nesterov, mask=self.mask)

    def recurrence(self) -> Recurrence:
        return Recurrence(self.momentum, self.nesterov, self.mask)

    def is_as_fine_as(self, other: Member) -> bool:
        """Whether the mask is equal. The momentum does not count: it belongs to the training."""
        return isinstance(other, MomentumCorrection) and self.mask == other.mask

    def moments(self) -> Moments:
        return momentum_of(self.momentum, self.nesterov)

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        zero = torch.zeros_like(x)
        u, v = state.get("velocity", zero), state.get("residual", zero)
        if self.nesterov:
            u = (u + x) * self.momentum
            return (v + u) + x, {"velocity": u}
        u = u * self.momentum + x
        return v + u, {"velocity": u}

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {"velocity": state["velocity"], "residual": x - sent}

    def masked(self, state: State, places: Callable[[], Tensor | None]) -> State:
        if not self.mask:
            return state
        u, at = state["velocity"], places()
        kept = torch.zeros_like(u) if at is None else u.index_fill(0, at.long(), 0.0)
        return {**state, "velocity": kept}

    def dense(self) -> str:
        return f"server_momentum(momentum={self.momentum}, nesterov={self.nesterov})"
