"""adam: each rank encodes its own step by Adam, instead of its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.feedback._adam_encoder import AdamEncoder, direction, step_of
from gradwire.feedback._measured import Measured
from gradwire.feedback._numbers import check_adam
from gradwire.local import NOISE, STEPS
from gradwire.member import Evidence, Member, Moments, UpdateRule
from gradwire.strategy import Compressor, Encoder, State, StepInfo

SAMPLE = 1 << 16
"""The most elements of a tensor that are measured: more would not make the factor more exact."""


@dataclass(frozen=True)
class Adam(Measured):
    """v = v + κ·m/(√s + eps); send C(v); keep the rest. Three fp32 buffers: v and the moments.

    m, s: Adam's moments of this rank's own gradient, bias corrected. Adam divides by how large
    gradients have been, so the residual must be kept after that division, where all elements are
    of one size. For `gradwire.optim.AdamW`, which then leaves the moments to the plan.

    κ, the noise factor of each tensor: s holds the noise of one rank's batch, N times that of the
    average, so each rank's step is too short. κ² = mean of |w|² over |mean of w|², w = g/√s, from
    random projections that are averaged every few steps; between 1 and √N.

    local: a rank computes its gradient at its own view, where its weights would be if its residual
    had been sent. Weights that are saved or evaluated are the shared ones.

    Source: error feedback on the update as in Tang et al. 2021; the noise factor and the own view
    are ours (docs/design/soundness.md).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    local: bool = True
    rule: ClassVar[UpdateRule] = "adaptive"
    optimizer: ClassVar[str] = "AdamW"
    name: ClassVar[str] = "adam"
    evidence: ClassVar[tuple[Evidence, ...]] = (
        Evidence(
            "lloyd(2)+adam(beta2=0.99) | allgather", "adamw", True, "gpt", "adam-2-allgather"
        ),
        Evidence(
            "lloyd(2)+adam(beta2=0.99) | allgather", "adamw", True, "llama", "adam-2-allgather"
        ),
        Evidence(
            "lloyd(1)+adam(beta2=0.99) | allgather", "adamw", True, "gpt", "adam-1-warm-allgather",
            warmup=0.1, begins="lloyd(2) | allgather",
        ),
        Evidence(
            'lloyd(1)+adam(beta2=0.99) | alltoall(means="qsgd")', "adamw", True, "gpt",
            "adam-1-warm-alltoall-4", warmup=0.1, begins="lloyd(2) | allgather",
        ),
        Evidence(
            'lloyd(1)+adam(beta2=0.99) | alltoall(means="lloyd(2)")', "adamw", True, "gpt",
            "adam-1-warm-alltoall-2", warmup=0.1, begins="lloyd(2) | allgather",
        ),
        Evidence(
            "lloyd(1)+adam(beta2=0.99) | allgather", "adamw", False, "llama", "adam-1-allgather"
        ),
        Evidence("lloyd(2)+adam(beta2=0.99) | alltoall", "adamw", False, "gpt", "adam-2-alltoall"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_adam(self.name, self.beta1, self.beta2, self.eps, local=self.local)

    def is_as_fine_as(self, other: Member) -> bool:
        """Whether `local` is kept. Moments do not count: they belong to the training."""
        return isinstance(other, Adam) and self.local >= other.local

    def moments(self) -> Moments:
        return {"betas": (self.beta1, self.beta2), "eps": self.eps}

    def dense(self) -> str:
        return f"server_adam(beta1={self.beta1}, beta2={self.beta2}, eps={self.eps})"

    def encoder(self, compressor: Compressor) -> Encoder:
        return AdamEncoder(compressor, self.beta1, self.beta2, self.eps)

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        # x is already multiplied by the clip scale.
        u, moments = direction(x, state, self.beta1, self.beta2, self.eps, info)
        if NOISE in state:
            moments[NOISE] = state[NOISE]
        return u + state.get("residual", torch.zeros_like(u)), moments

    def divided(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        steps = {STEPS: state.get(STEPS, torch.zeros(1, dtype=torch.float32, device="cpu")) + 1}
        how = step_of(self.beta1, self.beta2, self.eps, steps, info)
        every = -(-x.numel() // SAMPLE) or 1
        g, seen = x[::every], state.get("exp_avg_sq", torch.zeros_like(x))[::every]
        squares = seen * how.beta2 + g * g * how.rest2
        return g / (squares.sqrt_() * how.root + how.eps)
