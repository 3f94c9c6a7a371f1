"""AdamW as in torch, whether the optimizer or an attached plan keeps the moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import UsageError
from gradwire.optim._kept import AsksThePlan, check_keeper, step_kept
from gradwire.strategy import Feedback


class AdamW(AsksThePlan, torch.optim.AdamW):
    """`torch.optim.AdamW` that also works with a plan that keeps the moments (`adam`).

        not attached, or ef:     torch's own step
        adam, which sent u:      w -= lr·λ·w;    w -= lr·u

    u is the average of the ranks' own steps. Arguments, states and checkpoints are torch's; a
    parameter whose moments the plan keeps has no state here.

    moments_kept: whether `.grad` holds steps already, for averages that come from elsewhere. By
        default the attached plan decides, parameter by parameter.

    Example:
        >>> optimizer = gradwire.optim.AdamW(model.parameters(), lr=1e-3)
        >>> handle = gradwire.attach(model, "lloyd(2)+adam | allgather", optimizer=optimizer)

    Raises:
        UsageError: at a step, if the plan keeps the moments and betas or eps differ from its
            feedback's, or amsgrad or maximize is set.
    """

    def __init__(self, params: Any, *args: Any, moments_kept: bool | None = None, **kwargs: Any):
        super().__init__(params, *args, **kwargs)
        self._kept = moments_kept
        # So that a GradScaler unscales gradients before the step, also with fused=True.
        self._step_supports_amp_scaling = False

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step with `.grad`, as torch's optimizers do. Not collective."""
        loss = self._closed(closure)
        parted = self._all_parted()
        sent = [(p, p.grad) for _, kept, _ in parted for p in kept]
        try:
            for p, _ in sent:
                p.grad = None  # so that torch's step skips it
            _torch_s_step()(self)  # first, as it may refuse a gradient
        finally:
            for p, step in sent:
                p.grad = step
        for group, kept, _ in parted:
            step_kept(kept, group)
        return loss

    def _check(self, keeper: Feedback, parameter: Tensor, group: dict[str, Any]) -> None:
        check_keeper(keeper, "adaptive", parameter, group, "AdamW")
        for switch in ("amsgrad", "maximize"):
            if group[switch]:
                raise UsageError(
                    f"the feedback '{keeper}' does not support {switch}; AdamW has {switch}=True. "
                    "Leave it out, or attach a strategy that leaves the moments to the optimizer, "
                    "such as 'bf16 | allreduce'."
                )


def _torch_s_step() -> Callable[[torch.optim.AdamW], object]:
    """Returns torch's step without the hooks that torch wraps around it once a torch.optim.AdamW
    has been made: this step's hooks have been called already."""
    step: Any = torch.optim.AdamW.step
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]
