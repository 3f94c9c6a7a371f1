"""fading: what was not sent is added to the next gradient, and forgotten little by little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.strategy import Feedback, State, StepInfo


@dataclass(frozen=True)
class Fading(Feedback):
    """v = 0.9·v + g; send C(v); keep v - C(v). One fp32 buffer."""

    makes_good: ClassVar[bool] = True
    name: ClassVar[str] = "fading"

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        residual = state.get("residual")
        return (x if residual is None else residual * 0.9 + x), {}

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {"residual": x - sent}
