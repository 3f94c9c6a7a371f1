"""momentum: encodes the moving average of the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.feedback._numbers import check_momentum, momentum_of
from gradwire.member import Moments
from gradwire.strategy import Feedback, Recurrence, State, StepInfo


@dataclass(frozen=True)
class Momentum(Feedback):
    """u = m·u + (1 - m)·g; send C(u). One fp32 buffer; there is no residual.

    The optimizer must have no momentum of its own. With `sign | vote` this is SIGNUM.
    Source: Bernstein et al. 2018, "signSGD", algorithm 2.
    """

    momentum: float = 0.9
    dampens: ClassVar[bool] = True  # gradients enter it times 1 - m
    name: ClassVar[str] = "momentum"

    def __post_init__(self) -> None:
        check_momentum(self.name, self.momentum)

    def recurrence(self) -> Recurrence | None:
        if self.momentum == 0:  # nothing is remembered, and 0 has no inverse
            return None
        gain = 1 - self.momentum
        return Recurrence(decay=self.momentum, gain=gain, sent="stays", state="velocity")

    def moments(self) -> Moments:
        return momentum_of(self.momentum)

    def dense(self) -> str:
        return str(self)

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        u = x * (1 - self.momentum)
        if "velocity" in state:
            u = state["velocity"] * self.momentum + u
        return u, {"velocity": u}

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return state
