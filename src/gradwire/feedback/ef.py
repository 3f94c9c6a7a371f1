"""ef: error feedback. The residual, which was not sent, is added to the next gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.errors import StrategyError
from gradwire.strategy import Evidence, Feedback, Recurrence, State, StepInfo


@dataclass(frozen=True)
class ErrorFeedback(Feedback):
    """v = decay·v + g; send C(v); keep v - C(v). One fp32 buffer.

    decay 1 loses nothing; less forgets old residuals (MergeComp uses 0.9).
    Source: Seide et al. 2014, section 2; Stich et al. 2018, algorithm 1.
    """

    decay: float = 1.0
    makes_good: ClassVar[bool] = True
    name: ClassVar[str] = "ef"
    evidence: ClassVar[tuple[Evidence, ...]] = (
        Evidence("topk(0.001)+ef | allgather", "sgd", True, "language", "ef-topk", turns=40),
        Evidence("topk(0.001)+ef | allgather", "sgdm", True, "glyphs", "ef-topk", turns=20),
        Evidence("topk(0.01)+ef | allgather", "sgdm", False, "speech", "ef-topk"),
        Evidence("topk(0.01)+ef | allgather", "sgdm", False, "digits", "ef-topk"),
        Evidence("sign(scaled=True)+ef | allgather", "sgd", True, "language", "ef-sign"),
        Evidence("onebit+ef | allgather", "sgd", True, "language", "onebit"),
        Evidence("sign(scaled=True)+ef | allgather", "sgdm", False, "speech", "ef-sign"),
        Evidence("onebit+ef | allgather", "sgdm", False, "speech", "onebit"),
        Evidence("sign(scaled=True)+ef | alltoall", "sgdm", False, "glyphs", "ef-sign-alltoall"),
        Evidence("onebit+ef | alltoall", "sgdm", False, "glyphs", "onebit-alltoall"),
        Evidence("topk(0.01)+ef | allgather", "adamw", False, "gpt", "ef-topk-warm"),
        Evidence("sign(scaled=True)+ef | allgather", "adamw", False, "gpt", "ef-sign"),
        Evidence("onebit+ef | allgather", "adamw", False, "gpt", "onebit"),
    )

    def __post_init__(self) -> None:
        if not isinstance(self.decay, int | float) or not 0 < self.decay <= 1:
            raise StrategyError(
                f"ef's decay must be above 0 and at most 1; got {self.decay!r}. "
                "Use ef, or for example ef(decay=0.9)."
            )

    def recurrence(self) -> Recurrence:
        return Recurrence(decay=self.decay)

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        residual = state.get("residual")
        return (x if residual is None else residual * self.decay + x), {}

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {"residual": x - sent}
