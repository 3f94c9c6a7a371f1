"""ef21: encodes the difference from what the receivers already know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.feedback._numbers import check_momentum, momentum_of
from gradwire.local import ESTIMATE, MEAN
from gradwire.member import Moments
from gradwire.strategy import Feedback, Recurrence, State, StepInfo


@dataclass(frozen=True)
class EF21(Feedback):
    """e = e + C(u - e), u = m·u + (1 - m)·g; the result is the mean of e over the ranks.

    Estimates and u start at zero. Two fp32 buffers, three with a momentum. Without one (u = g) it
    is for gradients that change slowly: large batches. With one the optimizer must have none.
    Source: Richtárik et al. 2021, "EF21", algorithm 2; with a momentum Fatkhullin et al. 2023,
    "Momentum Provably Improves Error Feedback!", algorithm 1 (EF21-SGDM, η = 1 - m).
    """

    momentum: float = 0.0
    makes_good: ClassVar[bool] = True
    dampens: ClassVar[bool] = True  # gradients enter its momentum times 1 - m
    name: ClassVar[str] = "ef21"
    exact_mean: ClassVar[bool] = True
    shared: ClassVar[tuple[str, ...]] = (MEAN,)

    def __post_init__(self) -> None:
        check_momentum(self.name, self.momentum)

    def recurrence(self) -> Recurrence | None:
        if self.momentum:
            return None
        return Recurrence(decay=-1.0, sent="joins", state=ESTIMATE)

    def moments(self) -> Moments:
        return momentum_of(self.momentum)

    def dense(self) -> str | None:
        return f"momentum({self.momentum})" if self.momentum else None

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        if self.momentum:
            u = x * (1 - self.momentum)
            if "velocity" in state:
                u.add_(state["velocity"], alpha=self.momentum)
            state, x = {**state, "velocity": u}, u
        known = state.get(ESTIMATE, torch.zeros_like(x))
        return x - known, {**state, "gradient": x}

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        kept = {name: value for name, value in state.items() if name != "gradient"}
        return {**kept, ESTIMATE: state["gradient"] - (x - sent)}

    def received(self, mean: Tensor, state: State) -> State:
        total = state.get(MEAN)
        total = mean.clone() if total is None else total.add_(mean)
        mean.copy_(total)
        return {MEAN: total}
