"""1-bit Adam: AdamW with a momentum that arrives compressed, and a variance that is frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradwire import beside
from gradwire.errors import UsageError
from gradwire.optim._kept import AsksThePlan
from gradwire.optim._states import BELOW_1, RATE, Like, Single, are_betas, check, is_from_0
from gradwire.schema import Number, Row, Schema, Table, Whole
from gradwire.training.attached import feedback_of, strategy_of, velocity_of
from gradwire.training.trainable import shard_of


class OneBitAdam(AsksThePlan):
    """AdamW for a plan with `shared_momentum`: `.grad` holds the ranks' shared momentum u.

        until freeze_step:   g = (u - β1·u')/(1 - β1);  v = β2·v + (1 - β2)·g²      (AdamW's)
        after:               v stays
        always:              w -= lr·(u/(1 - β1^t) / (√v̂ + ε) + λ·w)

    Elements of zero variance do not move: they never had a gradient, so their signs are noise. The
    variance is fp32 also for 16-bit parameters. It must be learned from exact gradients, so the
    plan sends dense until freeze_step:

        handle = gradwire.attach(model, "onebit+shared_momentum(0.9) | alltoall",
                                 warmup=gradwire.Warmup(1000, [1.0]))
        optimizer = gradwire.optim.OneBitAdam(model.parameters(), lr=1e-3, freeze_step=1000)

    Args:
        params, lr, betas, eps, weight_decay: as in `torch.optim.AdamW`. betas[0] must be the
            momentum of the plan's feedback.
        freeze_step: the number of steps in which the variance is learned, those of the warm-up:
            15 to 25 % of all steps, according to the paper.
        momentum_kept: True if `.grad` holds momenta that come from elsewhere. By default the
            attached plan's feedback is checked.

    Source: Tang et al. 2021, "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
    Convergence Speed", algorithm 1.

    Raises:
        UsageError: an argument is out of its range; or, at a step, a parameter's plan does not
            share its momentum; or, while the variance is learned, momenta are sent compressed, or
            were changed after they arrived, as by `clip_grad_norm_`.
    """

    update_rule = "adaptive"

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, *, freeze_step: int,
        momentum_kept: bool | None = None,
    ) -> None:  # fmt: skip
        numbers = all(map(is_from_0, (lr, eps, weight_decay))) and eps > 0
        if not numbers or not are_betas(betas):
            raise UsageError(
                "OneBitAdam's lr and weight_decay must be at least 0, its eps above 0, both "
                f"betas at least 0 and below 1; got lr={lr!r}, betas={betas!r}, eps={eps!r}, "
                f"weight_decay={weight_decay!r}. Use for example lr=1e-3, betas=(0.9, 0.999)."
            )
        if momentum_kept is False:
            raise UsageError(
                "OneBitAdam steps with momenta, never with gradients: momentum_kept must be None "
                "or True; got False. For gradients use gradwire.optim.AdamW."
            )
        if type(freeze_step) is not int or freeze_step < 1:  # a state must have an int
            raise UsageError(
                "OneBitAdam must learn the variance in a whole number of steps, at least 1; got "
                f"freeze_step={freeze_step!r}. Pass 15 to 25 % of all steps, and as many to the "
                "plan's warm-up."
            )
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                    "freeze_step": freeze_step}  # fmt: skip
        super().__init__(params, defaults)
        self._kept = momentum_kept

    def state_dict(self) -> dict[str, Any]:
        """Returns the state. Each parameter has a momentum in it, zeros after freeze_step, when
        the plan keeps it: torch.distributed.checkpoint loads only what a new optimizer has, too.
        """
        saved = super().state_dict()
        for key, p in self._by_key(saved):
            own = saved["state"].get(key)
            if own and "momentum" not in own:
                zeros = torch.zeros_like(own["variance"], dtype=p.dtype)
                saved["state"][key] = {**own, "momentum": zeros}
        return saved

    def _by_key(self, saved: Mapping[str, Any]) -> Iterable[tuple[Any, Tensor]]:
        """Returns each parameter with its key in a state."""
        keys = (key for group in saved["param_groups"] for key in group["params"])
        return zip(keys, self._parameters())

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state. Raises UsageError, and changes nothing, if it is no state of this
        optimizer or is incomplete."""
        check(self, state_dict, _GROUP, _State)
        super().load_state_dict(state_dict)
        for key, p in self._by_key(state_dict):
            if self.state.get(p):  # torch has cast it to the parameter's dtype
                exact = state_dict["state"][key]["variance"].detach().clone()
                self.state[p]["variance"] = exact.to(p.device, _exact(p))
        for group in self.param_groups:
            for own in filter(None, map(self.state.get, group["params"])):
                if own["step"] >= group["freeze_step"]:
                    own.pop("momentum", None)  # zeros, or not needed any more

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step with the momentum in `.grad`. Not collective."""
        loss = self._closed(closure)
        for group in self.param_groups:
            for p in group["params"]:
                # A rank may keep no part of a sharded parameter, which only others attach then.
                if p.grad is not None and shard_of(p.grad).numel():
                    if self._kept is None:
                        _check(p, group["betas"][0])
                    self._move(p, p.grad, group)
        return loss

    def _move(self, p: Tensor, u: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[p], group["betas"]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["momentum"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["variance"] = torch.zeros_like(
                p, dtype=_exact(p), memory_format=torch.preserve_format
            )
        state["step"] += 1
        step, variance = int(state["step"]), state["variance"]
        if step <= group["freeze_step"]:
            if self._kept is None:
                _check_exact(p, step, group["freeze_step"])
                _check_whole(p, u)
            gradient = u.to(variance.dtype).sub(state["momentum"], alpha=beta1).div_(1 - beta1)
            variance.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            state["momentum"].copy_(u)
        elif "momentum" in state:
            del state["momentum"]  # the plan keeps it
        learned = min(step, group["freeze_step"])
        size = variance.div(1 - beta2**learned).sqrt_()
        move = u.div(size.add(group["eps"])).div_(1 - beta1**step)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(move.masked_fill_(size == 0, 0.0), alpha=-group["lr"])


def _exact(parameter: Tensor) -> torch.dtype:
    """The dtype of a variance: squares of gradients below 5e-3 are zeros in float16, and elements
    of zero variance do not move; in bfloat16 a variance hardly falls."""
    return torch.promote_types(parameter.dtype, torch.float32)


_STEP = Single(Number(0, 1 << 48))
_GROUP = Table({
    "lr": RATE, "betas": Row(BELOW_1, BELOW_1), "eps": Number(most=1e9, above=0),
    "weight_decay": Number(0, 1e9), "freeze_step": Whole(1),
})  # fmt: skip


class _State:
    """Schema of a parameter's state: step, variance, and the momentum until freeze_step."""

    def __init__(self, parameter: Tensor, group: Mapping[str, Any]) -> None:
        self.like, self.freeze_step = Like(parameter), group["freeze_step"]

    def read(self, value: Any) -> Any:
        own: dict[str, Schema] = {"step": _STEP, "variance": self.like}
        learns = Table(own).read(value)["step"] < self.freeze_step
        kept: dict[str, Schema] = {"momentum": self.like}
        return Table({**own, **kept} if learns else own, kept).read(value)


def _check(parameter: Tensor, beta: float) -> None:
    feedback = feedback_of(parameter)
    kept = feedback.moments().get("momentum", 0.0) if feedback else None
    if feedback is None or feedback.optimizer != "OneBitAdam" or kept != beta:
        raise UsageError(
            "OneBitAdam needs the averaged momentum instead of a gradient, from a plan with "
            f"shared_momentum({beta}); a parameter of shape {list(parameter.shape)} has the "
            f"feedback '{feedback}'. Attach 'onebit+shared_momentum({beta}) | alltoall', or use "
            "torch.optim.AdamW. A scheduler that changes the momentum, such as OneCycleLR, needs "
            "cycle_momentum=False."
        )


def _check_exact(parameter: Tensor, step: int, freeze_step: int) -> None:
    """Raise UsageError if the momentum travels compressed while the variance is learned:
    differences of compressed momenta are mostly compression error."""
    strategy = strategy_of(parameter)
    if strategy is not None and strategy != beside.dense(strategy):
        raise UsageError(
            "the momentum must be sent dense while OneBitAdam learns the variance; in step "
            f"{step} of freeze_step={freeze_step} a parameter of shape {list(parameter.shape)} is "
            f"sent by '{strategy}'. Attach with warmup=gradwire.Warmup({freeze_step}, [1.0]), or "
            "make freeze_step as short as the warm-up."
        )


def _check_whole(parameter: Tensor, momentum: Tensor) -> None:
    """Raise UsageError if the momentum was changed since it arrived. Gradients are differences of
    momenta: clipping errs ten times as much in the variance, for good. 1 % allows for the rounding
    of unscaling; NaN passes."""
    arrived = velocity_of(parameter)
    if arrived is not None and (arrived - shard_of(momentum)).norm() > 0.01 * arrived.norm():
        raise UsageError(
            "while OneBitAdam learns the variance, .grad must be the momentum as it arrived; that "
            f"of a parameter of shape {list(parameter.shape)} was changed after backward(), or by "
            "flush(). Clip by gradwire.attach(clip_norm=...) instead of clip_grad_norm_, and call "
            "flush() only after freeze_step."
        )
