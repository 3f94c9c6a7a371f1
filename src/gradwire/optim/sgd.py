"""SGD: torch's, whoever keeps the momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import UsageError
from gradwire.optim._kept import AsksThePlan, check_keeper
from gradwire.optim._states import BELOW_1, RATE, Like, check
from gradwire.schema import Flag, Maybe, Number, Schema, Table
from gradwire.strategy import Feedback
from gradwire.training.attached import feedback_of

_NEUTRAL = {"dampening": 0, "maximize": False}
"""Only torch's SGD has them; groups hold them, so that it can go on from our state."""


class SGD(AsksThePlan):
    """`torch.optim.SGD`, also where an attached plan keeps the momentum (`dgc`).

        not attached, or ef:    d = g + λ·w;  b = m·b + d;    w -= lr·b         (torch's)
        dgc, which sent u:      b = m·b + λ·w;                w -= lr·(u + b)
        a moving average u:     b = m·b + (1 - m)·λ·w;        w -= lr·(u + b)

    λ·w must pass through the momentum, or weight decay is 1/(1 - m) too weak; but it is the same
    on every rank, so it is not sent: it has a momentum of its own here. The first two lines are
    the same arithmetic when all is sent and nothing is masked. (Lin et al. 2018 do not say; this
    is what their released code does.) The third, for the feedbacks `momentum` and
    `shared_momentum`, is torch's with dampening=m.

    The first line has torch's bits in float32 (in bfloat16, torch's own ways of computing it
    differ from each other, too). States of torch's SGD load here, and these there.

    Args:
        params: as of torch's optimizers. Dense gradients.
        lr: learning rate.
        momentum, nesterov: as of torch's SGD. Where the plan keeps the momentum they must be
            those of its feedback: ``dgc(momentum=0.9)`` wants ``momentum=0.9``.
        weight_decay: λ.
        momentum_kept: for gradients that come from elsewhere: whether they have their momentum
            already. By default what is attached says it, parameter by parameter.

    Raises:
        UsageError: at a step, if momentum or nesterov differ from the plan's, or if a group,
            which may be of torch's SGD, has a dampening or maximizes.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0, *,
        weight_decay: float = 0.0, nesterov: bool = False, momentum_kept: bool | None = None,
    ) -> None:  # fmt: skip
        if lr < 0 or not 0 <= momentum < 1 or weight_decay < 0:
            raise UsageError(
                "SGD's lr and weight_decay are at least 0, its momentum is at least 0 and below "
                f"1; got lr={lr}, momentum={momentum}, weight_decay={weight_decay}."
            )
        if nesterov and not momentum:
            raise UsageError("Nesterov's rule needs a momentum; got momentum=0. Set it.")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay,
                    "nesterov": nesterov, **_NEUTRAL}  # fmt: skip
        super().__init__(params, defaults)
        self._kept = momentum_kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # one saved before groups had them
            for name, neutral in _NEUTRAL.items():
                group.setdefault(name, neutral)

    def check_state_dict(self, state_dict: Any) -> None:
        """UsageError unless `load_state_dict` can take it over."""
        check(self, state_dict, _GROUP, _state_of)

    def load_state_dict(self, state_dict: Any) -> None:
        """Its own, or that of torch's SGD. UsageError, and nothing has changed, for others."""
        self.check_state_dict(state_dict)
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step with what `.grad` holds; as of torch's optimizers. Not collective."""
        for group in self.param_groups:
            _check_neutral(group)
        loss = self._closed(closure)
        for group in self.param_groups:
            kept, own = self._parted(group)
            if kept:
                self._step_kept(kept, group)
            if own:
                self._step_own(own, group)
        return loss

    def _check(self, keeper: Feedback, parameter: Tensor, group: dict[str, Any]) -> None:
        check_keeper(keeper, "linear", group, "SGD")

    def _step_own(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """torch's operations in torch's order, so in float32 its bits."""
        steps: Any = [p.grad for p in parameters]
        if group["weight_decay"]:
            steps = torch._foreach_add(steps, parameters, alpha=group["weight_decay"])
        if group["momentum"]:
            steps = self._through_momentum(parameters, steps, "momentum_buffer", group)
        torch._foreach_add_(parameters, steps, alpha=-group["lr"])

    def _step_kept(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """The gradient as it is, and weight decay through a momentum of its own."""
        steps: Any = [p.grad for p in parameters]
        if group["weight_decay"]:
            shares = [group["weight_decay"] * _share(p) for p in parameters]
            decay: Any = torch._foreach_mul(parameters, shares)
            if group["momentum"]:
                decay = self._through_momentum(parameters, decay, "decay_buffer", group)
            steps = torch._foreach_add(steps, decay)
        torch._foreach_add_(parameters, steps, alpha=-group["lr"])

    def _through_momentum(
        self, parameters: list[Tensor], given: list[Tensor], key: str, group: dict[str, Any]
    ) -> Any:
        """b = m·b + d; b, or with Nesterov d + m·b."""
        for p in parameters:
            if self.state[p].get(key) is None:  # as torch's SGD once saved what it had not
                self.state[p][key] = torch.zeros_like(p, memory_format=torch.preserve_format)
        buffers = [self.state[p][key] for p in parameters]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, given)
        if group["nesterov"]:
            return torch._foreach_add(given, buffers, alpha=group["momentum"])
        return buffers


_GROUP = Table(
    {"lr": RATE, "momentum": BELOW_1, "weight_decay": Number(0, 1e9), "nesterov": Flag()},
    {"dampening": Number(), "maximize": Flag()},
)


def _state_of(parameter: Tensor, group: Mapping[str, Any]) -> Schema:
    like = Maybe(Like(parameter))
    return Table({}, {"momentum_buffer": like, "decay_buffer": like})


def _share(parameter: Tensor) -> float:
    """The part of weight decay that goes into its momentum: as much of the gradient does."""
    feedback = feedback_of(parameter)
    if feedback is None or not feedback.dampens:
        return 1.0
    return 1.0 - float(feedback.moments().get("momentum", 0.0))


def _check_neutral(group: dict[str, Any]) -> None:
    for name, neutral in _NEUTRAL.items():
        if group[name] != neutral:
            raise UsageError(
                f"gradwire.optim.SGD knows {name}={neutral} only; a group, or the state that was "
                f"loaded, has {name}={group[name]}. Set {neutral} in param_groups, or use "
                "torch.optim.SGD."
            )
