"""shared_momentum: the momentum of all ranks is what is encoded, as 1-bit Adam does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.errors import StrategyError
from gradwire.feedback._momentum import check_momentum
from gradwire.strategy import Feedback, State, StepInfo

SIZE = "size"


@dataclass(frozen=True)
class SharedMomentum(Feedback):
    """v = m·u + (1 - m)·g + kept; send C(v), keep the rest; u = what arrives. Two buffers.

    u is equal on all ranks: what is encoded is mostly common, and what arrives is the momentum,
    not a gradient. For `gradwire.optim.OneBitAdam`, which divides it by a variance that is frozen.

    variance: above 0, Adam's β2, and a third buffer: gradients' root mean square s, learned while
    the tensor travels dense, then frozen. C(v/s)·s is sent instead of C(v), so that what is left
    out is small in what Adam makes of it. (C(v) has the size of the largest momenta, which is
    noise to elements whose v and s are small.) Without a dense warm-up there is no s, and C(v) is
    sent. What had no gradient by then waits.
    learns: it travels dense, and s is learned; `dense()` says so.

    Source: Tang et al. 2021, "1-bit Adam", algorithm 1 (with the server's error as collectives
    that sum at an owner keep it); the variance is ours, docs/design/training.md.
    """

    momentum: float = 0.9
    variance: float = 0.0
    learns: bool = False
    makes_good: ClassVar[bool] = True
    exact_mean: ClassVar[bool] = True
    shared: ClassVar[tuple[str, ...]] = ("velocity", SIZE)
    unit: ClassVar[str] = SIZE
    name: ClassVar[str] = "shared_momentum"

    def __post_init__(self) -> None:
        check_momentum(self.name, self.momentum, learns=self.learns)
        if not isinstance(self.variance, int | float) or not 0 <= self.variance < 1:
            raise StrategyError(
                f"{self.name}'s variance is at least 0 and below 1; got {self.variance!r}. "
                f"Use for example {self.name}(0.9, variance=0.999), as Adam's betas."
            )
        if self.learns and not self.variance:
            raise StrategyError(
                f"what {self.name} learns is a variance; got learns=True with variance=0. "
                f"Attach {self.name}(0.9, variance=0.999) and leave learns to the plan."
            )

    def keeps_momentum(self) -> bool:
        return self.momentum > 0

    def dense(self) -> str:
        return str(replace(self, learns=self.variance > 0))

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        v = x * (1 - self.momentum)
        if "velocity" in state:
            v.add_(state["velocity"], alpha=self.momentum)
        if "residual" in state:
            v.add_(state["residual"])
        size = self._frozen(state)
        shared = {key: state[key] for key in self.shared if key in state}
        y = v if size is None else torch.where(size > 0, v / size, 0.0)
        return y, {**shared, "residual": v}

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        size = self._frozen(state)
        gone = sent if size is None else sent * size
        return {**state, "residual": state["residual"] - gone}

    def received(self, mean: Tensor, state: State) -> State:
        size = self._frozen(state)
        if size is not None:
            mean.mul_(size)
        learned = {SIZE: self._learn(mean, state)} if self.learns else {}
        return {"velocity": mean.clone(), **learned}

    def _frozen(self, state: State) -> Tensor | None:
        """s, once it is what things are divided by."""
        return None if self.learns or not self.variance else state.get(SIZE)

    def _learn(self, u: Tensor, state: State) -> Tensor:
        """s with one more gradient, of all ranks, which the momentum's change tells."""
        m, before = self.momentum, state.get("velocity", torch.zeros_like(u))
        gradient = u.sub(before, alpha=m).div_(1 - m)
        square = state.get(SIZE, torch.zeros_like(u)).square().mul_(self.variance)
        return square.addcmul_(gradient, gradient, value=1 - self.variance).sqrt_()
