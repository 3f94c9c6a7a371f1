"""ef: what was not sent is added to the next gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.strategy import Feedback, Recurrence, State, StepInfo


@dataclass(frozen=True)
class ErrorFeedback(Feedback):
    """v = v + g; send C(v); keep v - C(v). One fp32 buffer.

    Source: Seide et al. 2014, section 2; Stich et al. 2018, algorithm 1.
    """

    name: ClassVar[str] = "ef"

    def recurrence(self) -> Recurrence:
        return Recurrence()

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        residual = state.get("residual")
        return (x if residual is None else residual + x), {}

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {"residual": x - sent}
