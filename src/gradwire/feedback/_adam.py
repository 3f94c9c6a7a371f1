"""What the feedbacks with Adam's moments share: their parameters, and the direction of a step."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.errors import StrategyError
from gradwire.feedback._adam_encoder import step_of
from gradwire.feedback._momentum import check_switches
from gradwire.kernels.torch.adam import moments_with, moved
from gradwire.local import NOISE, STEPS
from gradwire.strategy import State, StepInfo


def check_adam(owner: str, beta1: object, beta2: object, eps: object, **switches: object) -> None:
    """StrategyError unless betas are in 0 … 1, eps is above 0, and switches are True or False."""
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 <= beta < 1:
            raise StrategyError(
                f"{owner}'s {name} is at least 0 and below 1; got {beta!r}. Use for example "
                f"{owner}(beta1=0.9, beta2=0.999)."
            )
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < 1:
        raise StrategyError(
            f"{owner}'s eps is above 0 and below 1; got {eps!r}. Use for example "
            f"{owner}(eps=1e-8)."
        )
    check_switches(owner, switches)


def direction(
    g: Tensor, state: State, beta1: float, beta2: float, eps: float, info: StepInfo
) -> tuple[Tensor, dict[str, Tensor]]:
    """Adam's step without its rate, and the moments once g is in them. Changes neither input.

    With the factor of the noise, where the state knows one.
    """
    zero = torch.zeros_like(g)
    moments = {STEPS: state.get(STEPS, g.new_zeros(1)) + 1}
    counted = {**moments, NOISE: state[NOISE]} if NOISE in state else moments
    how = step_of(beta1, beta2, eps, counted, info._replace(clip_scale=1.0))
    m, q = moments_with(g, (state.get("exp_avg", zero), state.get("exp_avg_sq", zero)), how)
    return moved(m, q, how), {**moments, "exp_avg": m, "exp_avg_sq": q}
