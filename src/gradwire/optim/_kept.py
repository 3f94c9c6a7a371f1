"""What AdamW and Muon share: the step of parameters whose moments an attached plan keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.errors import UsageError
from gradwire.feedback import Adam, ServerAdam
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


def check_adam_kept(feedback: Feedback, group: dict[str, Any], owner: str) -> None:
    """UsageError unless the plan's feedback makes AdamW's steps by this group's numbers."""
    if not isinstance(feedback, Adam | ServerAdam):
        raise UsageError(
            f"{owner} steps with gradients, or with what the feedback adam sends; '{feedback}' "
            "keeps a momentum of its own. Attach for example 'lloyd(2)+adam | allgather', or "
            "'bf16 | allreduce'."
        )
    theirs = (feedback.beta1, feedback.beta2), feedback.eps
    own = tuple(map(float, group["betas"])), group["eps"]
    if own != theirs:
        raise UsageError(
            "where the plan keeps the moments, they are those of the optimizer; "
            f"'{feedback}' has betas={theirs[0]}, eps={theirs[1]}, {owner} has betas={own[0]}, "
            f"eps={own[1]}. Make them equal: adam(beta1={own[0][0]}, beta2={own[0][1]}, "
            f"eps={own[1]})."
        )
