"""Negative controls: mistakes that others made, the right form, and the gate that separates them.

A gate that passes everything proves nothing. Every mistake here is a small change of a correct
method; a gate must pass the method and fail the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from methods import BY_NAME, Method, momentum_on_average
from oracles import conservation, same_as_sgd
from task import Settings
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.testing import Workers

LOSS_SCALE = 1e4
EF_TOPK = BY_NAME["ef-topk"]
NO_MASK = replace(BY_NAME["dgc-nomask"], densities=())
ROUNDED = replace(
    EF_TOPK, name="ef-topk-fp16", text='topk({density}, values="fp16")+ef | allgather'
)


class SignError(Workers):
    """v = C(v) - v: the residual comes back with the wrong sign."""

    def exchange(self, gradients: Any, clip_scales: Sequence[float] = ()) -> dict[str, Tensor]:
        averages = super().exchange(gradients, clip_scales)
        for state in (s for ledger in self.ledgers for s in ledger.memory.values()):
            if "residual" in state:
                state["residual"].neg_()
        return averages


class LossScaled(Workers):
    """Right: gradients of 10,000 times the loss, as with automatic mixed precision."""

    unit = LOSS_SCALE  # of the residual

    def exchange(self, gradients: Any, clip_scales: Sequence[float] = ()) -> dict[str, Tensor]:
        scaled = [{n: g * LOSS_SCALE for n, g in mine.items()} for mine in gradients]
        averages = super().exchange(scaled, clip_scales)
        return {name: average / LOSS_SCALE for name, average in averages.items()}


class RoundingDropped(LossScaled):
    """Wrong: sent places are cleared, although 16 bits lost a part of them or could not hold
    them."""

    def exchange(self, gradients: Any, clip_scales: Sequence[float] = ()) -> dict[str, Tensor]:
        before = [
            {name: s["residual"].clone() for name, s in ledger.memory.items() if "residual" in s}
            for ledger in self.ledgers
        ]
        given = [{n: g.reshape(-1) * LOSS_SCALE for n, g in mine.items()} for mine in gradients]
        averages = super().exchange(gradients, clip_scales)
        for ledger, old, mine in zip(self.ledgers, before, given):
            for name, state in ledger.memory.items():
                if "residual" in state:
                    waited = old.get(name, torch.zeros_like(mine[name]))
                    sent = state["residual"] != waited + mine[name]
                    state["residual"][sent] = 0.0
        return averages


def decay_outside(model: nn.Module, settings: Settings, warm_up: int) -> Optimizer:
    """w -= lr·(u + λ·w): weight decay does not go through the momentum."""
    return torch.optim.SGD(model.parameters(), settings.rate, weight_decay=settings.weight_decay)


@dataclass(frozen=True)
class Control:
    """A mistake, the right method, and the gate: how far off a method's state is.

    in_accuracy: whether parity of a short run sees it too; otherwise only the state shows it.
    """

    name: str
    right: Method
    wrong: Method
    gate: Callable[[Method], float]
    in_accuracy: bool


CONTROLS = (
    Control("top-k without error feedback", EF_TOPK,
            replace(EF_TOPK, name="no-ef", text="topk({density}) | allgather"),
            conservation, True),
    Control("double momentum", NO_MASK,
            replace(NO_MASK, name="double-momentum", optimizer=momentum_on_average),
            same_as_sgd, True),
    Control("weight decay outside the momentum", NO_MASK,
            replace(NO_MASK, name="decay-outside", optimizer=decay_outside),
            same_as_sgd, False),
    Control("sign error in the residual", EF_TOPK,
            replace(EF_TOPK, name="sign-error", workers=SignError),
            conservation, True),
    Control("fp16 rounding dropped, loss × 10,000", replace(ROUNDED, workers=LossScaled),
            replace(ROUNDED, name="rounding-dropped", workers=RoundingDropped),
            conservation, False),
)  # fmt: skip
