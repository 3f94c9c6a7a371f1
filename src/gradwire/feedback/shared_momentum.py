"""shared_momentum: encodes the momentum that all ranks share, as 1-bit Adam does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.feedback._numbers import check_momentum, momentum_of
from gradwire.member import Moments
from gradwire.strategy import Evidence, Feedback, Member, State, StepInfo


@dataclass(frozen=True)
class SharedMomentum(Feedback):
    """v = v + m·u + (1 - m)·g; send C(v); keep the rest; u = the mean that arrives. Two buffers.

    u is equal on all ranks, so ranks encode mostly the same, and the momentum arrives, not a
    gradient. For `gradwire.optim.OneBitAdam`, which divides it by a frozen variance.
    Source: Tang et al. 2021, "1-bit Adam", algorithm 1 (its server's error is the residual of
    owners, in collectives that have these).
    """

    momentum: float = 0.9
    makes_good: ClassVar[bool] = True
    dampens: ClassVar[bool] = True  # gradients enter it times 1 - m
    exact_mean: ClassVar[bool] = True
    shared: ClassVar[tuple[str, ...]] = ("velocity",)
    optimizer: ClassVar[str] = "OneBitAdam"
    name: ClassVar[str] = "shared_momentum"
    evidence: ClassVar[tuple[Evidence, ...]] = (
        Evidence(
            "onebit+shared_momentum | alltoall", "adamw", True, "gpt", "onebit-adam", warmup=0.2
        ),
        Evidence(
            "topk(0.01)+shared_momentum | allgather", "adamw", False, "gpt", "topk-adam", 0.2
        ),
    )

    def __post_init__(self) -> None:
        check_momentum(self.name, self.momentum)

    def is_as_fine_as(self, other: Member) -> bool:
        """True: the momentum does not count, as it belongs to the training, and is not a loss."""
        return True

    def moments(self) -> Moments:
        return momentum_of(self.momentum)

    def dense(self) -> str:
        return str(self)

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        y = x * (1 - self.momentum)
        if "velocity" in state:
            y.add_(state["velocity"], alpha=self.momentum)
        if "residual" in state:
            y.add_(state["residual"])
        return y, {key: state[key] for key in ("velocity",) if key in state}

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {**state, "residual": x - sent}

    def received(self, mean: Tensor, state: State) -> State:
        return {"velocity": mean.clone()}
