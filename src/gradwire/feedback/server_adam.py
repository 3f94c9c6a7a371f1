"""server_adam: Adam's moments of the average, for dense parameters beside `adam`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.feedback._adam_encoder import direction
from gradwire.feedback._numbers import check_adam
from gradwire.member import Moments, UpdateRule
from gradwire.strategy import Feedback, State, StepInfo


@dataclass(frozen=True)
class ServerAdam(Feedback):
    """The result is m/(√s + eps), m and s Adam's moments of the mean. Two fp32 buffers.

    Equal on every rank, and the same arithmetic as `torch.optim.AdamW`, except for learning rate
    and weight decay, which `gradwire.optim.AdamW` applies.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    sends_all: ClassVar[bool] = True
    exact_mean: ClassVar[bool] = True
    rule: ClassVar[UpdateRule] = "adaptive"
    optimizer: ClassVar[str] = "AdamW"
    shared: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    name: ClassVar[str] = "server_adam"

    def __post_init__(self) -> None:
        check_adam(self.name, self.beta1, self.beta2, self.eps)

    def moments(self) -> Moments:
        return {"betas": (self.beta1, self.beta2), "eps": self.eps}

    def dense(self) -> str:
        return str(self)

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        return x, dict(state)

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return state

    def received(self, mean: Tensor, state: State) -> State:
        step, moments = direction(mean, state, self.beta1, self.beta2, self.eps, StepInfo())
        mean.copy_(step)
        return moments
