"""server_momentum: SGD's momentum on the average, for dense parameters beside DGC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.feedback._numbers import check_momentum, momentum_of
from gradwire.member import Moments
from gradwire.strategy import Feedback, State, StepInfo


@dataclass(frozen=True)
class ServerMomentum(Feedback):
    """u = m·u + mean; the result is u (nesterov: u = m·(u + mean); the result is u + mean).

    One buffer of the gradient's dtype, equal on every rank. It is applied after averaging, with
    the same arithmetic as `torch.optim.SGD(momentum=m)` without dampening.
    """

    momentum: float = 0.9
    nesterov: bool = False
    sends_all: ClassVar[bool] = True
    shared: ClassVar[tuple[str, ...]] = ("velocity",)
    name: ClassVar[str] = "server_momentum"

    def __post_init__(self) -> None:
        check_momentum(self.name, self.momentum, nesterov=self.nesterov)

    def moments(self) -> Moments:
        return momentum_of(self.momentum, self.nesterov)

    def dense(self) -> str:
        return str(self)

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        return x, dict(state)  # not the state itself, which `received` will change

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return state

    def received(self, mean: Tensor, state: State) -> State:
        u = state.get("velocity")
        if u is None:
            u = torch.zeros_like(mean)
        if self.nesterov:
            mean.add_(u.add_(mean).mul_(self.momentum))
        else:
            mean.copy_(u.mul_(self.momentum).add_(mean))
        return {"velocity": u}
