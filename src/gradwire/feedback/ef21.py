"""ef21: what is encoded is the change against what the receivers already know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.strategy import Feedback, Recurrence, State, StepInfo


@dataclass(frozen=True)
class EF21(Feedback):
    """e = e + C(g - e); the result is the mean of e over the ranks. Two fp32 buffers.

    Both estimates start at zero. For gradients that change slowly: large batches, or a momentum.
    Source: Richtárik et al. 2021, algorithm 2.
    """

    makes_good: ClassVar[bool] = True
    name: ClassVar[str] = "ef21"
    exact_mean: ClassVar[bool] = True
    shared: ClassVar[tuple[str, ...]] = ("mean",)

    def recurrence(self) -> Recurrence:
        return Recurrence(decay=-1.0, sent="joins", state="estimate")

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        known = state.get("estimate", torch.zeros_like(x))
        return x - known, {**state, "gradient": x}

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        kept = {name: value for name, value in state.items() if name != "gradient"}
        return {**kept, "estimate": state["gradient"] - (x - sent)}

    def received(self, mean: Tensor, state: State) -> State:
        total = state.get("mean")
        total = mean.clone() if total is None else total.add_(mean)
        mean.copy_(total)
        return {"mean": total}
