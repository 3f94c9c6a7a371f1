"""Code shared by the optimizers that leave their moments to an attached plan that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.agreement import agreeing, numbers_of, said
from gradwire.errors import UsageError
from gradwire.member import UpdateRule
from gradwire.strategy import Feedback
from gradwire.training.attached import after_closure, asked_of, keeper_of, sessions_of


class AsksThePlan(Optimizer):
    """An optimizer that asks, parameter by parameter, whether a plan keeps its moments."""

    asks_the_plan = True
    """Whether it leaves the moments to a plan that keeps them."""
    _kept: bool | None
    """Whether a plan keeps the moments, for averages that come from elsewhere; None: the attached
    plan decides, parameter by parameter."""

    def __getstate__(self) -> dict[str, Any]:  # torch copies and pickles its own attributes only
        return {**super().__getstate__(), "_kept": self._kept}

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state as torch's optimizers do. The moments of a parameter whose attached plan
        keeps moments, and remembers none yet, move to the plan."""
        from gradwire.training.moments import take  # at the top this would be an import cycle

        super().load_state_dict(state_dict)
        for session in sessions_of(self._parameters()):
            take(session, self)

    def _parameters(self) -> Iterator[Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def _closed(self, closure: Callable[[], float] | None) -> float | None:
        """Return the closure's loss, and check what its backward left."""
        if closure is None:
            return None
        with torch.enable_grad():
            loss = closure()
        after_closure(self._parameters())
        return loss

    def _all_parted(self) -> list[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
        """Every group, and its parameters parted: a group that is refused keeps all others where
        they are."""
        return [(group, *self._parted(group)) for group in self.param_groups]

    def _parted(self, group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
        """Parameters with a `.grad`: those whose `.grad` is a plan's step, and the rest."""
        kept, own = list[Tensor](), list[Tensor]()
        for p in group["params"]:
            if p.grad is not None:
                (kept if self._is_kept(p, group) else own).append(p)
        return kept, own

    def _is_kept(self, parameter: Tensor, group: dict[str, Any]) -> bool:
        """Whether `.grad` came from a plan that keeps the moments, so that it is a step."""
        if self._kept is not None:
            return self._kept
        keeper = keeper_of(parameter)
        if keeper is not None:
            self._check(keeper, parameter, group)
        return keeper is not None

    def _check(self, keeper: Feedback, parameter: Tensor, group: dict[str, Any]) -> None:
        """Raise UsageError unless the plan keeps the moments that this optimizer would keep."""
        raise NotImplementedError


def step_kept(parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
    """Apply w -= lr·λ·w; w -= lr·u, where u, the step that arrived, is in `.grad`."""
    if not parameters:
        return
    rate, steps = float(group["lr"]), [p.grad for p in parameters if p.grad is not None]
    torch._foreach_mul_(list(parameters), 1 - rate * group["weight_decay"])
    torch._foreach_add_(list(parameters), steps, alpha=-rate)


def check_keeper(
    feedback: Feedback, rule: UpdateRule, parameter: Tensor, group: dict[str, Any], owner: str
) -> None:
    """Raise UsageError unless the plan keeps the moments that the optimizer would keep.

    rule: the update rule of this parameter. owner: the optimizer's name, for the error.
    """
    if feedback.rule != rule:
        raise UsageError(
            f"{owner} needs gradients, or a plan that keeps its own moments; '{feedback}' keeps "
            f"those of gradwire.optim.{feedback.optimizer}. Use that optimizer, or attach a "
            "strategy that leaves the moments to the optimizer, such as 'bf16 | allreduce'. "
            "Where they differ by parameter, pass optimizer=… to attach."
        )
    theirs, own = feedback.moments(), numbers_of(feedback, group)
    if own != theirs:
        equal = f"Make them equal: '{agreeing(asked_of(parameter) or feedback, group)}'."
        if agreeing(feedback, group).moments() != own:
            equal = f"'{feedback}' cannot have these: give the optimizer {said(theirs)}."
        raise UsageError(
            "a plan that keeps the moments must have the optimizer's numbers; "
            f"'{feedback}' has {said(theirs)}, {owner} has {said(own)}. {equal} A scheduler that "
            "changes the momentum, such as OneCycleLR, needs cycle_momentum=False."
        )
