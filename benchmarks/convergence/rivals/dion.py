"""Dion: low-rank orthonormal steps, whose error stays in each worker's own momentum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwire.buckets import Parameter, digest
from gradwire.feedback import Muon
from gradwire.feedback._orthogonal import USUAL
from gradwire.plan import Plan
from gradwire.strategy import State, Strategy
from rivals.rival import Rival

LEAST_NORM = 1e-8


class Dion(Rival):
    """Dion, for hidden matrices, in place of the feedback `muon`; the plan sends all others.

        worker i, a matrix of (m, n)         P: (m, r), Q and R: (n, r), equal on all workers
          B = M + G                          momentum buffer and gradient, the worker's own
          P = orthonormal(mean B Q)          sent: m · r
          R = mean BᵀP                       sent: n · r
          M = B - (1 - μ) · P Rᵀ             what the low rank leaves out stays
          Q = R, columns of norm 1
          X = (1 - η λ) · X - η · scale · P Qᵀ

    The scale is the paper's 1 for each direction, times 0.2 · √max(m, n) instead of √(m/n): at
    full rank that is `gradwire.optim.Muon`'s, so that one learning rate does for both, and for
    AdamW beside it.

    Source: Ahn et al. 2025, "Dion: Distributed orthonormalized updates", arXiv:2504.05295,
    algorithm 1 and its distributed form, in which P and R are averages.
    """

    def __init__(
        self, plan: Plan, world: int, *, rank: int, momentum: float = 0.95, seed: int = 0
    ) -> None:
        self._rank, self._momentum = rank, momentum
        super().__init__(plan, world, seed=seed)

    def takes(self, strategy: Strategy) -> bool:
        return isinstance(strategy.feedback, Muon)

    def begin(self, parameter: Parameter) -> State:
        rank = min(self._rank, *parameter.shape)
        dice = torch.Generator().manual_seed(digest("dion", parameter.name, self.seed))
        return {
            "momentum": torch.zeros(self.world, *parameter.shape),
            "right": torch.randn(parameter.shape[1], rank, generator=dice),
        }

    def meet(self, name: str, x: Tensor, state: State) -> Tensor:
        buffers = state["momentum"] + x
        left = torch.linalg.qr(self._mean(buffers @ state["right"])).Q
        right = self._mean(buffers.mT @ left)
        state["momentum"] = buffers - (1 - self._momentum) * (left @ right.T)
        state["right"] = right / (right.norm(dim=0) + LEAST_NORM)
        step: Tensor = left @ state["right"].T
        return step * (USUAL * math.sqrt(max(x.shape[1:])))

    def _mean(self, factors: Tensor) -> Tensor:
        self.count("all_reduce", 4 * factors[0].numel())
        return factors.mean(0)
