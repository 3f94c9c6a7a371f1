"""What AdamW and Muon share: the step of parameters whose moments an attached plan keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.agreement import agreeing, numbers_of, said
from gradwire.errors import UsageError
from gradwire.member import UpdateRule
from gradwire.strategy import Feedback
from gradwire.training.attached import rest, sessions_of


def closed(optimizer: Optimizer, closure: Callable[[], float] | None) -> float | None:
    """What the closure returns, after which weights are where all ranks have them."""
    if closure is None:
        return None
    with torch.enable_grad():
        loss = closure()
    rest(p for group in optimizer.param_groups for p in group["params"])
    return loss


def hand_over(optimizer: Optimizer) -> None:
    """Moments that were loaded go to the plans that keep them."""
    from gradwire.training.moments import take  # which knows sessions; they know optimizers

    for session in sessions_of(p for group in optimizer.param_groups for p in group["params"]):
        take(session, optimizer)


def step_kept(parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
    """w -= lr·λ·w; w -= lr·u, where u is what arrived."""
    if not parameters:
        return
    rate, steps = float(group["lr"]), [p.grad for p in parameters if p.grad is not None]
    torch._foreach_mul_(list(parameters), 1 - rate * group["weight_decay"])
    torch._foreach_add_(list(parameters), steps, alpha=-rate)


def check_keeper(feedback: Feedback, rule: UpdateRule, group: dict[str, Any], owner: str) -> None:
    """UsageError unless what the plan keeps in the optimizer's place is what it would keep.

    rule: by which this group steps. owner: the optimizer, for the error.
    """
    if feedback.rule != rule:
        raise UsageError(
            f"{owner} steps with gradients, or with what a plan sends that keeps its moments; "
            f"'{feedback}' keeps those of gradwire.optim.{feedback.optimizer}. Use that one, or "
            "attach what leaves them to the optimizer, as 'bf16 | allreduce'; an optimizer that "
            "is named to attach, optimizer=…, says what is whose."
        )
    theirs, own = feedback.moments(), numbers_of(feedback, group)
    if own != theirs:
        raise UsageError(
            f"where the plan keeps the moments, both have the same numbers; '{feedback}' has "
            f"{said(theirs)}, {owner} has {said(own)}. Make them equal: "
            f"'{agreeing(feedback, group)}'; a scheduler that moves the momentum, as OneCycleLR, "
            "takes cycle_momentum=False."
        )
