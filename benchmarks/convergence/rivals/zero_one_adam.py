"""0/1 Adam: the variance is seldom updated, steps are seldom exchanged, in one bit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwire.buckets import Parameter
from gradwire.plan import Plan
from gradwire.strategy import State
from rivals.rival import Rival


class ZeroOneAdam(Rival):
    """0/1 Adam, for all parameters, beside the feedback `adam`, so that a worker computes at its
    own view.

        worker i, step t, at x - U, where it has come alone      u: in the momentum's unit
          t is in T_v:   v = β₂ · v + (1 - β₂) · (mean g)²       sent: the gradient, dense
          m = β₁ · m + (1 - β₁) · g
          u = u + η · m;   U = u / (√v + ε)
          t is in T_u:   s = one bit of u + e, twice: e waits at the worker and at the owner
                         m = s / Σ η;   x = x - s / (√v + ε);   u = 0

    A bit is the sign, times the mean magnitude of a tensor. T_v: sixteen consecutive steps,
    sixteen at every second, sixteen at every fourth and so on, until `frozen`. T_u: every step
    until then and in a further `doubles`; then every second, and twice as far apart after every
    further `doubles` steps, at most `furthest`. As published distances double when the rate has
    halved; these numbers are for 2,000 steps of a cosine.

    u and Σ η are in the unit of the last rate: state whose name begins with "residual" is rescaled
    when the rate changes.

    Source: Lu et al. 2022, "Maximizing communication efficiency for large-scale training via 0/1
    Adam", arXiv:2202.06009, algorithm 1 and the policies of section 6.
    """

    def __init__(
        self, plan: Plan, world: int, *, betas: tuple[float, float], eps: float = 1e-8,
        kappa: int = 16, frozen: int = 400, doubles: int = 400, furthest: int = 16, seed: int = 0,
    ) -> None:  # fmt: skip
        self._betas, self._eps, self._kappa = betas, eps, kappa
        self._frozen, self._doubles, self._furthest = frozen, doubles, furthest
        super().__init__(plan, world, seed=seed)

    def begin(self, parameter: Parameter) -> State:
        each, one = (torch.zeros(n, *parameter.shape) for n in (self.world, 1))
        for ledger in self.ledgers:
            ledger.memory[parameter.name]["residual"] = torch.zeros(parameter.elements)
        return {
            "first": each, "second": one[0].clone(), "residual_worker": each.clone(),
            "residual_owner": one, "residual_rates": torch.zeros(()),
        }  # fmt: skip

    def learns(self, step: int) -> bool:
        """Whether the variance is updated in this step: T_v."""
        begin, apart = 0, 1
        while step >= begin + self._kappa * apart:
            begin, apart = begin + self._kappa * apart, 2 * apart
        return step < self._frozen and (step - begin) % apart == 0

    def meets(self, step: int) -> bool:
        """Whether workers exchange after this step: T_u."""
        doubled = max(0, step - self._frozen) // self._doubles
        return (step + 1) % min(self._furthest, 1 << doubled) == 0

    def meet(self, name: str, x: Tensor, state: State) -> Tensor:
        first, second = self._betas
        if self.learns(self.step):
            state["second"] = second * state["second"] + (1 - second) * x.mean(0).square()
            self.count("all_reduce", 4 * x[0].numel())
        divisor = state["second"].sqrt() + self._eps
        momenta = first * state["first"] + (1 - first) * x
        alone = [ledger.memory[name]["residual"] for ledger in self.ledgers]
        came = torch.stack([own.view(x.shape[1:]) for own in alone]) + momenta / divisor
        state["residual_rates"] += 1
        shared = torch.zeros_like(x[0])
        if self.meets(self.step):
            mean = self._in_bits(came * divisor, state)
            momenta, shared = (mean / state["residual_rates"]).expand_as(x), mean / divisor
            came = torch.zeros_like(came)
            state["residual_rates"] = torch.zeros(())
        state["first"] = momenta.clone()
        for own, mine in zip(alone, came):
            own.copy_(mine.reshape(-1))
        return shared

    def _in_bits(self, x: Tensor, state: State) -> Tensor:
        """Returns the mean over workers, with one bit from each worker and one bit from the
        owner."""
        given = x + state["residual_worker"]
        sent = signs(given)
        state["residual_worker"] = given - sent
        mean = sent.mean(0, keepdim=True) + state["residual_owner"]
        arrived = signs(mean)
        state["residual_owner"] = mean - arrived
        self.count("all_reduce", math.ceil(x[0].numel() / 8) + 4)
        return arrived[0]


def signs(x: Tensor) -> Tensor:
    """Returns signs times their mean magnitude, for each slice of the first dimension."""
    size = x.abs().flatten(1).mean(1).view(-1, *[1] * (x.dim() - 1))
    return torch.where(x < 0, -size, size)
