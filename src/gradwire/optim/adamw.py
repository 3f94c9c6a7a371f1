"""AdamW: torch's, whoever keeps the moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import UsageError
from gradwire.optim._kept import AsksThePlan, check_keeper, step_kept
from gradwire.strategy import Feedback


class AdamW(AsksThePlan, torch.optim.AdamW):
    """`torch.optim.AdamW`, also where an attached plan keeps the moments (`adam`).

        not attached, or ef:     torch's own step
        adam, which sent u:      w -= lr·λ·w;    w -= lr·u

    u is the average of what the ranks' own steps would be. Arguments, states and checkpoints are
    torch's; a parameter whose moments the plan keeps has no state here.

    moments_kept: for averages that come from elsewhere: whether they are steps already. By default
        what is attached says it, parameter by parameter.

    Example:
        >>> optimizer = gradwire.optim.AdamW(model.parameters(), lr=1e-3)
        >>> handle = gradwire.attach(model, "lloyd(2)+adam | allgather", optimizer=optimizer)

    Raises:
        UsageError: at a step, where the plan keeps the moments, if betas or eps differ from its
            feedback's, or with amsgrad or maximize.
    """

    def __init__(self, params: Any, *args: Any, moments_kept: bool | None = None, **kwargs: Any):
        super().__init__(params, *args, **kwargs)
        self._kept = moments_kept
        # A GradScaler takes its scale out before the step then, also with fused=True.
        self._step_supports_amp_scaling = False

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step with what `.grad` holds; as of torch's. Not collective."""
        loss = self._closed(closure)
        sent: list[tuple[Tensor, Tensor | None]] = []
        try:
            for group in self.param_groups:
                kept, _ = self._parted(group)
                sent += [(p, p.grad) for p in kept]
                step_kept(kept, group)
                for p in kept:
                    p.grad = None  # so that torch's step passes it by
            _torch_s_step()(self)
        finally:
            for p, step in sent:
                p.grad = step
        return loss

    def _check(self, keeper: Feedback, parameter: Tensor, group: dict[str, Any]) -> None:
        check_keeper(keeper, "adaptive", group, "AdamW")
        for switch in ("amsgrad", "maximize"):
            if group[switch]:
                raise UsageError(
                    f"the feedback '{keeper}' knows no {switch}; AdamW has {switch}=True. Leave "
                    "it out, or attach a strategy that leaves the moments to the optimizer, as "
                    "'bf16 | allreduce'."
                )


def _torch_s_step() -> Callable[[torch.optim.AdamW], object]:
    """torch's step without the hooks that torch puts around it once somebody has made an AdamW of
    its own: those of this step have been called."""
    step: Any = torch.optim.AdamW.step
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]
