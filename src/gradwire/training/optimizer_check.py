"""Checks before each step of an attached model's optimizers, and reads their learning rates.

torch calls one global hook before every optimizer's step; the checks apply to optimizers that hold
an attached parameter.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradwire.agreement import numbers_of, rate_of, said
from gradwire.errors import UsageError
from gradwire.optim.sgd import SGD
from gradwire.runtime.ledger import has_own_unit
from gradwire.soundness import has_momentum, is_part_of, sound, update_rule
from gradwire.training.attached import keeper_of
from gradwire.training.copies import Hook
from gradwire.training.guard import Guard
from gradwire.training.module import Averages
from gradwire.training.own_view import AttachedView
from gradwire.training.recommend import advise, instead
from gradwire.training.session import Session
from gradwire.training.trainable import Frozen, shard_of

_WATCHED: weakref.WeakKeyDictionary[OptimizerCheck, None] = weakref.WeakKeyDictionary()
"""The checks of attached models, in the order of `attach`, which is the same on all ranks: guards
are collective. A WeakSet has the order of addresses."""
_INSTALLED: list[Any] = []


class OptimizerCheck:
    """Watches the optimizers of one attached model."""

    def __init__(
        self, session: Session, frozen: Frozen, view: AttachedView, averages: Averages,
        guard: Guard | None,
    ) -> None:  # fmt: skip
        self._session, self._frozen, self._view = session, frozen, view
        self._averages, self._guard = averages, guard
        plan = session.plan
        candidates = (plan.main_strategy, *plan.strategies)
        keepers = (s for s in candidates if s.feedback and s.feedback.moments())
        self._own = next(keepers, None)
        self._keeper = self._own.feedback if self._own else None
        averages.keeps_samples = self._sends_steps
        self._names = {id(p): name for name, p in session.parameters.items()}
        self._seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # Inside a ZeroRedundancyOptimizer; they may have no parameters on some ranks.
        self._inner: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._began: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # When it was last judged: the number of its parameters, and whether it had momentum.
        self._judged: weakref.WeakKeyDictionary[Optimizer, tuple[int, bool]] = (
            weakref.WeakKeyDictionary()
        )
        told = session.settings.optimizer
        self._told_of_momentum = told is not None and has_momentum(told)
        # At the last step: the number of exchanges, the first gradient, and its version.
        self._stepped_at: weakref.WeakKeyDictionary[Optimizer, tuple[int, Any, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._warned, self._flushed = False, _Flushed({}, {})
        self.tells_unknown = True
        """Whether strategies that no run has tested with the optimizer are told of. Local steps
        have other runs: evidence is of averaged gradients."""
        _WATCHED[self] = None
        session.after_closure = self.after_closure
        if not _INSTALLED:
            _INSTALLED.append(register_optimizer_step_pre_hook(Hook(_before_step)))
            _INSTALLED.append(register_optimizer_step_post_hook(Hook(_after_step)))

    @property
    def optimizers(self) -> list[object]:
        """The optimizer that was passed to `attach`, and those that have stepped of which it does
        not tell: all, if none was passed."""
        told, seen = self._session.settings.optimizer, [_stepping(own) for own in self._seen]
        if told is None:
            return list(seen)
        others = (own for own in seen if not is_part_of(own, told))
        return [told, *(own for own in others if not self._is_told_of(own))]

    def close(self) -> None:
        """Watch no longer."""
        _WATCHED.pop(self, None)

    def before_step(self, optimizer: Optimizer, with_closure: bool = False) -> None:
        """Check a step. Most checks are made at an optimizer's first step only; its parameters,
        momentum and rates may change later.

        with_closure: the backward runs inside the step, as in Lightning; the second step counts
            as the first then.
        """
        self._frozen.refuse(optimizer)
        groups = [g for g in optimizer.param_groups if self._holds(g)]
        if not groups and optimizer not in self._inner:
            return
        inner = _stepping(optimizer)
        if inner is not optimizer and isinstance(inner, Optimizer):
            self._inner.add(inner)
        self._check_backward_over()
        self._view.before_step()
        self._check_momentum(optimizer, groups)
        self._check_steps(p for group in groups for p in group["params"])
        if not with_closure:
            self._check_exchanged(optimizer, groups)
        if self._guard is not None and with_closure:
            self._guard.before_closure(optimizer)
        elif self._guard is not None:
            with self._session.going_on():
                self._guard.before_step(optimizer)
        if optimizer not in self._seen:
            self._check_only_one(optimizer)
        if optimizer not in self._seen or self._session.loss_scale != 1.0:
            self._check_scaler()  # also if the step applies what `flush` added
        if optimizer in self._seen:
            self._check_sound(optimizer, groups)
            self._follow_rates(optimizer)
            return
        if with_closure and optimizer not in self._began:
            self._began.add(optimizer)
            self._follow_rates(optimizer)  # after a resume residuals have the rate of a past step
            return
        if all(rate_of(g) == 0.0 for g in groups):
            return  # torch initializes optimizers' states by such a step, before training
        self._check_fired()
        self._check_moments(optimizer, groups)
        self._check_decay(optimizer, groups)
        self._check_sound(optimizer, groups)
        self._seen.add(optimizer)
        self._follow_rates(optimizer)

    def after_closure(self, parameters: Iterable[Tensor]) -> None:
        """Leave this rank's own view of the weights, and check the averages that a closure's
        backward has left for an optimizer's parameters, before its step goes on."""
        self._view.leave()
        self._check_steps(parameters)

    def after_step(self, optimizer: Optimizer) -> None:
        """Let the guard note where a step has left the weights."""
        if self._guard is not None:
            self._guard.after_step(optimizer)

    def flush(self) -> None:
        """Add the average of residuals to `.grad`, at the rates that schedulers have set since the
        last step. Collective. Raises UsageError, with residuals as they were, if gradients in
        float16 cannot hold it."""
        for optimizer in list(self._seen):
            self._follow_rates(optimizer)
        session = self._session
        with session.going_on():
            averages = session.average_waiting()
        if self not in _WATCHED:  # a rank was lost: residuals stay where they are
            return
        self._check_range(averages)
        session.ledger.forget_waiting(averages)
        self._flushed = _Flushed(session.parameters, averages, session.loss_scale)

    def _check_range(self, averages: Mapping[str, Tensor]) -> None:
        for name, average in averages.items():
            dtype = self._session.parameters[name].dtype
            if dtype == torch.float16 and not average.to(dtype).isfinite().all():
                raise UsageError(
                    "what waits in residuals must be in the range of its gradient to be flushed; "
                    f"of '{name}' it reaches {float(average.abs().max()):.3g}, beyond float16's "
                    "65504. Lower the loss scale first, take more steps, or flush more often."
                )

    def _follow_rates(self, optimizer: Optimizer) -> None:
        """Rescale residuals to an optimizer's rates, if it is SGD, whose step is rate · gradient,
        or the plan sends steps; other optimizers divide by the size of past gradients.

        It is done here, not when the exchange begins, as only now this step's rate is known, also
        in the first step after a resume, before which the optimizer is not known.
        """
        session, stepping = self._session, _stepping(optimizer)
        rates = {
            self._names[id(p)]: rate_of(group)
            for group in optimizer.param_groups
            for p in group["params"] if id(p) in self._names
        }  # fmt: skip
        linear = isinstance(stepping, torch.optim.SGD | SGD)
        if session.has_memory and (linear or self._sends_steps):
            known = {name: rate for name, rate in rates.items() if rate is not None}
            session.rates.follow(known, [session.ledger, self._flushed])
        self._flushed.leave(rates)

    def _holds(self, group: dict[str, Any]) -> bool:
        return any(id(p) in self._names for p in group["params"])

    def _check_momentum(self, optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
        keeper = self._keeper
        if keeper is None or getattr(_stepping(optimizer), "asks_the_plan", False):
            return
        for group in groups:
            momentum = group.get("momentum", 0) or (group.get("betas") or (0,))[0]
            if momentum:
                kind = type(optimizer).__name__
                own = f"{keeper.optimizer}({said(numbers_of(keeper, group)) or '…'})"
                raise UsageError(
                    f"'{self._own}' keeps the momentum itself, so the optimizer must have none; "
                    f"{kind} has {momentum}. Use gradwire.optim.{own}, which leaves it to the "
                    f"plan, or keep {kind} and attach a strategy that is sound with it: "
                    f"{instead(optimizer, self._session.world)}"
                )

    @property
    def _sends_steps(self) -> bool:
        """Whether the plan keeps moments of Adam, or the momentum of Muon."""
        return self._keeper is not None and self._keeper.rule != "linear"

    def _check_steps(self, parameters: Iterable[Tensor]) -> None:
        """Raise UsageError if a step that arrived was changed, as by clipping: it would not be an
        optimizer's step any more."""
        if not self._sends_steps:
            return
        own = (self._names.get(id(p)) for p in parameters)
        names = [name for name in own if name and name not in self._flushed]
        name = self._averages.changed(names, self._session.loss_scale)
        if name is not None:
            raise UsageError(
                f"'{self._own}' leaves an optimizer's steps in .grad, which must not be "
                f"changed; that of '{name}' was, after backward(), as by clip_grad_norm_. Use "
                "gradwire.attach(clip_norm=…) instead, which clips before anything is sent; "
                "in a trainer set max_grad_norm=0."
            )

    def _check_moments(self, optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
        """Warn of unused moments of an earlier training, loaded into an optimizer that `attach`
        was not passed."""
        if not self._sends_steps or self._session.taken > 1:
            return
        params = (p for group in groups for p in group["params"])
        unused = [p for p in params if optimizer.state.get(p) and keeper_of(p) is not None]
        if unused:
            warnings.warn(
                f"'{self._own}' keeps the moments and has begun them at zero; those in the state "
                f"of {type(optimizer).__name__}, of {len(unused)} parameters, are not used. "
                "Pass the optimizer to attach, optimizer=…, or call "
                "handle.take_moments(optimizer) before the first step.",
                stacklevel=7,
            )

    def _check_decay(self, optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
        """Warn of weight decay in torch's SGD, whose λ·w bypasses the plan's momentum."""
        keeper = self._keeper
        if keeper is None or keeper.dampens or not isinstance(optimizer, torch.optim.SGD):
            return
        decay = max(float(group["weight_decay"]) for group in groups)
        momentum = keeper.moments().get("momentum", 0.0)
        if decay and momentum:
            warnings.warn(
                f"weight decay must pass through the momentum, which '{self._own}' keeps; that of "
                f"torch.optim.SGD(weight_decay={decay}) does not, and is {1 / (1 - momentum):.3g} "
                f"times too weak. Use gradwire.optim.SGD(momentum={momentum}, weight_decay=…).",
                stacklevel=7,
            )

    def _check_sound(self, optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
        """Warn of strategies that are not sound with the optimizer: at its first step, and again
        where it has got more parameters, or momentum, since."""
        session, stepping = self._session, _stepping(optimizer)
        now = sum(len(group["params"]) for group in groups), has_momentum(optimizer)
        most = self._judged.get(optimizer, (-1, False))
        if now[0] <= most[0] and now[1] <= most[1]:
            return
        self._judged[optimizer] = now
        if self._is_told_of(stepping):  # `attach` has checked it
            return
        plan, own = session.whole_plan, {id(p) for group in groups for p in group["params"]}
        strategies = [
            strategy
            for bucket, strategy in zip(plan.buckets, plan.strategies)
            if any(id(session.parameters[name]) in own for name in bucket.names)
        ]
        if not self.tells_unknown:
            strategies = [s for s in strategies if sound(s, stepping).kind == "unsound"]
        advise(
            strategies, stepping, session.world, strict=session.settings.strict,
            warmup=session.settings.warmup, quiet=session.rank > 0,
        )  # fmt: skip

    def _is_told_of(self, optimizer: Optimizer) -> bool:
        """Whether what is sound with the optimizer, or name, that was passed to `attach` is so
        with this one, too: their rule is the same, and that had momentum if this has. Of one whose
        rule is not known a name tells."""
        told, rule = self._session.settings.optimizer, update_rule(optimizer)
        if told is None or rule is None:
            return isinstance(told, str) or is_part_of(optimizer, told)
        return rule == update_rule(told) and has_momentum(optimizer) <= self._told_of_momentum

    def _check_backward_over(self) -> None:
        """Raise UsageError amid an exchange, or after one that failed: `.grad` then holds this
        rank's own gradients."""
        self._session.refuse_failed()
        if self._session.under_way:
            raise UsageError(
                "an optimizer must step with averages, which are ready when backward() has "
                f"returned; in step {self._session.step} it steps in a hook inside backward(), "
                "after a backward() that was aborted, or, under DDP, after one that did not reach "
                "all parameters. Step after backward(); after an aborted one detach and attach on "
                "all ranks, or restart from a checkpoint; if not all parameters are used in each "
                "step, pass find_unused_parameters=True to DistributedDataParallel."
            )

    def _check_only_one(self, optimizer: Optimizer) -> None:
        """Raise UsageError for another optimizer than the one passed to `attach`, where ranks that
        are left, and those that come, share that one's state alone."""
        told = self._session.settings.optimizer
        if self._session.on_lost is not None and not is_part_of(optimizer, told):
            raise UsageError(
                'on_failure="shrink" needs one optimizer for all that is attached, whose state '
                f"all ranks get; this {type(optimizer).__name__} is another than the "
                f"{type(told).__name__} passed to attach. Give that one all parameters, in groups "
                "of their own, or leave on_failure out."
            )

    def _check_scaler(self) -> None:
        """Raise UsageError unless the GradScaler that steps is the one passed to `attach`:
        residuals follow its scale, as gradients do, and steps and directions arrive with it, to be
        unscaled."""
        goes_on, told = self._session.on_lost is not None, self._session.scaler
        own_unit = any(map(has_own_unit, self._session.plan.strategies))
        matters = self._session.has_memory or own_unit or goes_on
        found = calling_scaler() if matters else None
        if found is not None and goes_on:
            raise UsageError(
                'on_failure="shrink" needs no GradScaler: where a rank is lost no gradients are '
                "left to unscale, and one that comes has another scale. Train in bfloat16 or "
                "float32, or leave on_failure out."
            )
        if own_unit and told is not None and told.is_enabled() and found is None:
            raise UsageError(
                "averages have the scale of the loss, which the GradScaler passed to attach must "
                "take out; this step is not taken by it. Step by scaler.step(optimizer)."
            )
        if found is not None and found is not self._session.scaler:
            raise UsageError(
                "residuals, and directions that arrive, must follow the scale of the loss, so "
                "attach needs the GradScaler; the one that steps this optimizer was not passed. "
                "Use gradwire.attach(model, plan, scaler=scaler)."
            )

    def _check_exchanged(self, optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
        """Warn once of gradients that were computed since the last step and not exchanged. Zeros
        do not count, as of a model without part in the loss, nor what `flush` averaged."""
        own = ((self._names.get(id(p)), p.grad) for group in groups for p in group["params"])
        held = ((name, g) for name, g in own if name and g is not None)
        first = next(held, None)
        if first is None:
            return
        before, seen, version = self._stepped_at.get(optimizer, (-1, lambda: None, 0))
        now, mine = self._session.stats.exchanges, first[1]
        self._stepped_at[optimizer] = now, weakref.ref(mine), mine._version
        is_as_it_was = seen() is mine and version == mine._version
        if before != now or not now or is_as_it_was or self._warned:
            return
        made = [first, *held]
        if not any(n in self._flushed for n, _ in made) and any(_holds_any(g) for _, g in made):
            self._warned = True
            warnings.warn(
                f"{type(optimizer).__name__} has stepped an attached model twice without an "
                f"exchange between, after {now} with one: the gradients of the last step were not "
                "averaged. Call backward() on a loss of the attached module before each step, "
                "outside no_sync().",
                stacklevel=7,
            )

    def _check_fired(self) -> None:
        if self._session.step == 0 and not self._warned:
            self._warned = True
            warnings.warn(
                "an optimizer steps an attached model, but gradwire has seen no gradients: they "
                "are not synchronized. Call backward() on a loss of the attached module, outside "
                "no_sync().",
                stacklevel=7,
            )


class _Flushed:
    """Averages that `flush` added to `.grad`, perhaps at another learning rate than the step's.

    After a resume, or if a scheduler steps, the rate is known at the step only; residuals are
    rescaled then, and so must be what `flush` took out of them.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], averages: Mapping[str, Tensor],
        loss_scale: float = 1.0,
    ) -> None:  # fmt: skip
        self._parameters, self._averages = parameters, dict(averages)
        for name, average in averages.items():
            p = parameters[name]
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            self._add(name, 1.0)
            average.div_(loss_scale)  # in the optimizer's step gradients are unscaled

    def scale_waiting(self, name: str, factor: float) -> None:
        """Multiply a parameter's flushed average in `.grad`, as `Ledger.scale_waiting` does."""
        if name in self._averages:
            self._add(name, factor - 1.0)

    def __contains__(self, name: str) -> bool:
        return name in self._averages

    def leave(self, names: Iterable[str]) -> None:
        """Forget the averages of these parameters, as a step uses them now."""
        for name in names:
            self._averages.pop(name, None)

    @torch.no_grad()
    def _add(self, name: str, factor: float) -> None:
        gradient = self._parameters[name].grad
        if gradient is not None:
            average = self._averages[name]
            shard_of(gradient).add_(average.to(gradient.dtype), alpha=factor)


def _holds_any(gradient: Tensor) -> bool:
    gradient = shard_of(gradient)
    return gradient.layout != torch.strided or bool(gradient.any())


def _stepping(optimizer: Optimizer) -> Optimizer:
    """Returns the optimizer; for ZeroRedundancyOptimizer, which holds all parameters, the inner
    one, which steps this rank's."""
    inner: Optimizer = getattr(optimizer, "optim", optimizer)
    return inner


def calling_scaler() -> GradScaler | None:
    """Returns the enabled GradScaler whose `step` called the optimizer's, if one did."""
    for frame in _callers():
        if frame.f_code.co_name in ("step", "_maybe_opt_step"):
            scaler = frame.f_locals.get("self")
            if isinstance(scaler, GradScaler) and scaler.is_enabled():
                return scaler
    return None


def makes_states() -> bool:
    """Whether torch.distributed.checkpoint makes this step, with zeros, to initialize an
    optimizer's state, on some ranks only. Its rate of 0 is no sign: a warm-up's may be 0, too."""
    return any(frame.f_code.co_name == "_init_optim_state" for frame in _callers())


def _callers() -> Iterator[FrameType]:
    """Yields the callers' frames, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if makes_states():
        return
    # The hook's args begin with the optimizer itself.
    with_closure = (args[1] if len(args) > 1 else kwargs.get("closure")) is not None
    for check in list(_WATCHED):
        check.before_step(optimizer, with_closure)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for check in list(_WATCHED):
        check.after_step(optimizer)
