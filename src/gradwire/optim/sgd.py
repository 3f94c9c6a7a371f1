"""SGD as in torch, whether the optimizer or an attached plan keeps the momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import UsageError
from gradwire.optim._kept import AsksThePlan, check_keeper
from gradwire.optim._states import BELOW_1, RATE, Like, check, is_from_0
from gradwire.schema import Flag, Maybe, Number, Schema, Table
from gradwire.strategy import Feedback
from gradwire.training.attached import feedback_of

_NEUTRAL = {"dampening": 0, "maximize": False}
"""Options of torch's SGD that this one lacks; groups hold them so that torch's can load our state.
"""


class SGD(AsksThePlan):
    """`torch.optim.SGD` that also works with a plan that keeps the momentum (`dgc`).

        not attached, or ef:    d = g + λ·w;  b = m·b + d;    w -= lr·b         (torch's)
        dgc, which sent u:      b = m·b + λ·w;                w -= lr·(u + b)
        a moving average u:     b = m·b + (1 - m)·λ·w;        w -= lr·(u + b)

    λ·w must pass through the momentum, or weight decay is 1/(1 - m) times too weak; but it is the
    same on every rank, so it is not sent: it has a momentum of its own here. The first two lines
    are the same arithmetic when all is sent and nothing is masked. (Lin et al. 2018 do not say;
    this is what their released code does.) The third line, for the feedbacks `momentum` and
    `shared_momentum`, is torch's SGD with dampening=m.

    The first line has torch's bits in float32 (in bfloat16, torch's own ways of computing it
    differ from each other, too). torch's SGD and this one can load each other's states, but for
    the momentum of sparse gradients, which torch's keeps sparse, and this one does not take.

    Args:
        params: as in torch's optimizers. Sparse gradients go without weight decay and nesterov.
        lr: learning rate.
        momentum, nesterov: as in torch's SGD. If the plan keeps the momentum, they must equal
            those of its feedback: ``dgc(momentum=0.9)`` wants ``momentum=0.9``.
        weight_decay: λ.
        momentum_kept: whether `.grad` has passed through a momentum already, for gradients that
            come from elsewhere. By default the attached plan decides, parameter by parameter.

    Raises:
        UsageError: a number is out of its range, or nesterov has no momentum; or, at a step,
            momentum or nesterov differ from the plan's, or a group, which may come from torch's
            SGD, has a dampening or maximizes, or has weight decay or nesterov for a sparse
            gradient.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0, *,
        weight_decay: float = 0.0, nesterov: bool = False, momentum_kept: bool | None = None,
    ) -> None:  # fmt: skip
        if not (is_from_0(lr) and is_from_0(momentum, 1.0) and is_from_0(weight_decay)):
            raise UsageError(
                "SGD's lr and weight_decay must be at least 0, its momentum at least 0 and below "
                f"1; got lr={lr!r}, momentum={momentum!r}, weight_decay={weight_decay!r}. Use "
                "for example lr=0.1, momentum=0.9."
            )
        if nesterov and not momentum:
            raise UsageError(
                "nesterov=True needs a momentum; got momentum=0. Pass for example momentum=0.9."
            )
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay,
                    "nesterov": nesterov, **_NEUTRAL}  # fmt: skip
        super().__init__(params, defaults)
        self._kept = momentum_kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a state saved before groups had these options
            for name, neutral in _NEUTRAL.items():
                group.setdefault(name, neutral)

    def check_state_dict(self, state_dict: Any) -> None:
        """Raise UsageError unless `load_state_dict` can load this state."""
        check(self, state_dict, _GROUP, _state_of)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state of this class or of torch's SGD. Raises UsageError, and changes nothing,
        for any other."""
        self.check_state_dict(state_dict)
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step with `.grad`, as torch's optimizers do. Not collective."""
        for group in self.param_groups:
            _check_neutral(group)
        loss = self._closed(closure)
        parted = self._all_parted()
        for group, _, own in parted:
            _check_dense(own, group)
        for group, kept, own in parted:
            if kept:
                self._step_kept(kept, group)
            if own:
                self._step_own(own, group)
        return loss

    def _check(self, keeper: Feedback, parameter: Tensor, group: dict[str, Any]) -> None:
        check_keeper(keeper, "linear", parameter, group, "SGD")

    def _step_own(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Step by torch's operations in torch's order, so with torch's bits in float32."""
        steps: Any = [p.grad for p in parameters]
        if group["weight_decay"]:
            steps = torch._foreach_add(steps, parameters, alpha=group["weight_decay"])
        if group["momentum"]:
            steps = self._through_momentum(parameters, steps, "momentum_buffer", group)
        torch._foreach_add_(parameters, steps, alpha=-group["lr"])

    def _step_kept(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Step by the gradient as it arrived, and weight decay with a momentum of its own."""
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
        """Update b = m·b + d; return b, or with Nesterov d + m·b."""
        for p in parameters:
            if self.state[p].get(key) is None:  # older torch saved None for a missing buffer
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
    """The factor of weight decay on its way into the momentum: the one that gradients have, 1 - m
    where the feedback keeps a moving average."""
    feedback = feedback_of(parameter)
    if feedback is None or not feedback.dampens:
        return 1.0
    return 1.0 - float(feedback.moments().get("momentum", 0.0))


def _check_dense(parameters: Iterable[Tensor], group: Mapping[str, Any]) -> None:
    """Raise UsageError where a sparse gradient would be added to what is dense."""
    if not (group["weight_decay"] or group["nesterov"]):
        return
    for p in parameters:
        if p.grad is not None and p.grad.layout != torch.strided:
            raise UsageError(
                "gradients must be dense for SGD's weight decay and nesterov; that of a parameter "
                f"of {[*p.shape]} is {p.grad.layout}. Put it into a group with weight_decay=0 and "
                "nesterov=False, or give it an optimizer of its own, such as "
                "torch.optim.SparseAdam."
            )


def _check_neutral(group: dict[str, Any]) -> None:
    for name, neutral in _NEUTRAL.items():
        if group[name] != neutral:
            raise UsageError(
                f"gradwire.optim.SGD supports only {name}={neutral}; a group, or the state that "
                f"was loaded, has {name}={group[name]}. Set {neutral} in param_groups, or use "
                "torch.optim.SGD."
            )
