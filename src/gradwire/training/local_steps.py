"""Local steps: each rank trains alone for a few steps, then all exchange their progress.

    θ of all ──► `every` steps on each rank ──► Δ = θ - θ here ──► compressed, averaged
        ▲                                                                │
        └─────────────── θ - outer step of mean Δ  ◄─────────────────────┘

The mean of Δ is the gradient of an outer SGD: with rate 1 all ranks step to the average of their
parameters; with Nesterov momentum it is DiLoCo (Douillard et al. 2023).
Compressors, feedback and collectives work as for gradients: the unsent part of Δ is a residual.
With fragments (Streaming DiLoCo, Douillard et al. 2025) parts of the model take turns, so that the
network is used evenly; with a delay the exchange overlaps with the next steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from glob import escape
from inspect import signature
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.errors import UsageError
from gradwire.plan import Plan
from gradwire.soundness import SoundnessWarning, name_of, update_rule
from gradwire.strategy import Strategy
from gradwire.training.attach import attach_plan
from gradwire.training.attachable import check_module, check_started, device_of
from gradwire.training.attached import enter, is_attached, leave
from gradwire.training.broadcast import broadcast
from gradwire.training.copies import Attached, Hook
from gradwire.training.ddp import inner
from gradwire.training.documents import LOCAL_STEPS
from gradwire.training.fragments import Fragment, split
from gradwire.training.optimizer_check import calling_scaler, makes_states
from gradwire.training.recommend import instead
from gradwire.training.rounds import FIRST, Rounds
from gradwire.training.trainable import Frozen, excluded, held, is_sharded, trainable


class LocalSteps(Attached):
    """Exchanges the model's progress every few steps of its optimizer. Collective.

    All ranks step their optimizers equally often; the last step of a round blocks until the
    exchange is over (with `delay`, until the exchange begun `delay` steps ago is). `step` counts
    the optimizer's steps.

    Args:
        model: a plain module, not attached, not in DistributedDataParallel and not sharded. Rank
            0's parameters and buffers are broadcast; load weights before, or call `reset` after.
        optimizer: the optimizer of its parameters; its steps are counted. Its state stays with the
            rank. No GradScaler, which would skip steps on one rank and not on another.
        every: steps in a round. None: the fewest with which an exchange takes a tenth of the time
            of its round's steps, at most 8. It is found in the first 12 steps, in rounds of 4, and
            is this object's `every` from then on. None allows no fragments and no delay.
        plan: how Δ travels: a strategy's text or `Strategy`. Δ is fp32, or float64 if the
            parameter is, which is sent uncompressed, as in `attach`. With `dgc(momentum=…,
            nesterov=…)` the plan keeps the outer momentum, so these must equal `outer_momentum`
            and `nesterov`.
        outer_lr, outer_momentum, nesterov: of the outer SGD. By default it steps to the average of
            parameters, which suits short rounds; DiLoCo's 0.7, 0.9 and True are for rounds of
            dozens of steps, in long runs. Where a plan sends signs without a size, outer_lr is how
            far each weight moves.
        fragments: the number of parts, of about equal size, into which the parameters are split;
            part f is exchanged f·every/fragments steps after part 0.
        delay: steps between the beginning of an exchange and its use, at most every/fragments,
            where it arrives as late as the next one begins. What a rank learns meanwhile is added
            to the result, and takes part in the next exchange, so all counts once.
        process_group, options: as in `gradwire.attach`, except `strategies`, `scaler`, `guard` and
            `on_failure`. strict=True refuses an optimizer whose local steps are known to learn
            less (AdamW and its kin); otherwise there is a warning.

    Example:
        >>> local = gradwire.LocalSteps(model, optimizer, every=2)
        >>> for inputs, targets in batches:
        ...     optimizer.zero_grad()
        ...     loss_of(model(inputs), targets).backward()  # exchanges nothing
        ...     optimizer.step()  # every second one exchanges the progress since

    Raises:
        UsageError: the model is synchronized already, the optimizer is another model's, or numbers
            do not fit. At a step: a GradScaler takes it, parameters were changed between two
            rounds, or an exchange failed. Also the errors of `attach`.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, every: int | None = None,
        plan: str | Strategy = "lloyd(1)+ef | alltoall", *,
        outer_lr: float = 1.0, outer_momentum: float = 0.0, nesterov: bool = False,
        fragments: int = 1, delay: int = 0,
        process_group: dist.ProcessGroup | None = None, **options: Any,
    ) -> None:  # fmt: skip
        looks = every is None
        if looks and (fragments > 1 or delay):
            raise UsageError(
                "every=None, which measures how many steps a round needs, works only without "
                f"fragments and delay; got fragments={fragments}, delay={delay}. Pass every."
            )
        every = FIRST if every is None else every
        check_started()
        check_module(model)
        _check(model, every, plan, fragments, delay)
        _check_outer(plan, outer_lr, outer_momentum, nesterov)
        _refuse_scaler("scaler" in options)
        _refuse_unknown(options)
        if options.get("guard"):
            raise UsageError(
                "the guard needs averaged gradients; local steps exchange changes of weights "
                "instead. Leave guard out."
            )
        model, optimizer = inner(model), _hooked(optimizer)
        named = trainable(model)
        self._rounds = Rounds(device_of(named)) if looks else None
        _check_optimizer(optimizer, named)
        _advise(optimizer, process_group, bool(options.get("strict")))
        self.every, self.delay, self.step = every, delay, 0
        parts = split(named, fragments)
        outer = {"lr": outer_lr, "momentum": outer_momentum, "nesterov": nesterov}
        own = _for_each(parts, named, model, options)
        self.fragments: list[Fragment] = []
        try:
            for part, options in zip(parts, own):
                self.fragments.append(Fragment(part, plan, process_group, outer, options))
            self.fragments[0].same_on_all(
                every=None if looks else every, delay=delay, outer_lr=outer_lr,
                outer_momentum=outer_momentum, nesterov=nesterov,
            )  # fmt: skip
        except Exception:
            for made in self.fragments:
                made.handle.detach()
            raise
        broadcast(model, self.fragments[0].group)  # buffers and frozen parameters, too
        enter(named, None, self.detach)
        self._model, self._parameters, self._frozen = model, named, Frozen(model)
        self.optimizer = optimizer
        self._hooks: list[Any] = [
            optimizer.register_step_pre_hook(Hook(lambda own, *_: self._before_step(own))),
            optimizer.register_step_post_hook(Hook(lambda *_: self._after_step())),
        ]

    @property
    def looks(self) -> bool:
        """Whether `every` is still being determined."""
        return self._rounds is not None

    def _before_step(self, optimizer: Optimizer) -> None:
        if makes_states():
            return
        for fragment in self.fragments:
            fragment.refuse_failed()
        self._frozen.refuse(optimizer)
        _refuse_scaler(calling_scaler() is not None)
        stepped = held(optimizer)
        for fragment in self.fragments:
            if fragment.launched_at == self.step and not fragment.under_way:
                fragment.refuse_moved(stepped)

    def _after_step(self) -> None:
        if makes_states():
            return
        self.step += 1
        if self._rounds is not None:
            self._rounds.step_over()
        for f, fragment in enumerate(self.fragments):
            since = (self.step - f * self.every // len(self.fragments)) % self.every
            if fragment.under_way and since == self.delay % self.every:
                fragment.land()
            if since == 0 and self.step >= self.every:
                fragment.launch(self.step, trains_on=self.delay > 0)
                if not self.delay:
                    fragment.land()
                if self._rounds is not None:
                    self._rounds.exchange_over()
        if self._rounds is not None and self._rounds.are_enough:
            self.every, self._rounds = self.fragments[0].mean_of(self._rounds.found()), None

    def synchronize(self) -> None:
        """Exchange all progress now, as before an evaluation or a checkpoint: afterwards all ranks
        have the same parameters. Collective; blocks. It is an additional outer step; the rounds go
        on as before. Does nothing if no step was taken since the last exchange."""
        for fragment in self.fragments:
            if fragment.under_way:
                fragment.land()
            if fragment.launched_at == self.step:
                continue
            fragment.launch(self.step)
            fragment.land()

    def reset(self) -> None:
        """Begin anew from rank 0's parameters and buffers, as after loading weights: residuals,
        the outer momentum and an exchange under way are dropped; the step count goes on.
        Collective, between two steps; blocks."""
        for fragment in self.fragments:
            fragment.drop()
        broadcast(self._model, self.fragments[0].group)
        for fragment in self.fragments:
            fragment.reset(self.step)

    def stats(self) -> list[dict[str, float]]:
        """Returns `Handle.stats` of each fragment, as means per exchange. Not collective."""
        return [fragment.handle.stats() for fragment in self.fragments]

    def log(self, **numbers: float | Tensor) -> None:
        """Write numbers of the last step into this rank's recording (`gradwire.record`), as
        `Handle.log` does. Not collective."""
        self.fragments[0].handle.log(**numbers)

    def state_dict(self) -> dict[str, object]:
        """Returns this rank's state. Save it with the model's and the optimizer's by torch.save, a
        file per rank: amid a round they differ between ranks, and torch.distributed.checkpoint
        would write one rank's. With `delay`, raises UsageError while an exchange is under way."""
        return {
            "step": self.step,
            "every": None if self._rounds else self.every,
            "fragments": {f"{i}": own.state_dict() for i, own in enumerate(self.fragments)},
        }

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, strict: bool = True
    ) -> None:
        """Resume from `state_dict`; the model and its optimizer load their own states, before or
        after. All ranks must call it; it waits for an exchange under way, and drops its result.

        If the number of ranks has changed, pass a list of all ranks' states, as to
        `Handle.load_state_dict`, saved after `synchronize()`: progress since the last exchange is
        in the model of each rank. strict: as there. Of the outer SGD only momenta are loaded;
        `outer_lr`, `outer_momentum` and `nesterov` stay the constructor's, and so does `every`,
        unless it was None: then the state's number is used, if it has one.

        Raises:
            UsageError: it is no such state, has other fragments, or is incomplete.
            PlanError: it is of another model, or as in `Handle.load_state_dict`. In both cases
                nothing has changed.
        """
        given: list[Any] = list(state) if isinstance(state, list | tuple) and state else [state]
        for own in map(LOCAL_STEPS.take, given):
            found = len(own["fragments"])
            if set(own["fragments"]) != {f"{i}" for i in range(len(self.fragments))}:
                raise UsageError(
                    "a state of local steps must be loaded with as many fragments as it was saved "
                    f"with, {found}; got {len(self.fragments)}. Pass fragments={found}."
                )
            if own["step"] != given[0]["step"]:
                raise UsageError(
                    "states of several ranks must be of one checkpoint; these are of steps "
                    f"{given[0]['step']} and {own['step']}. Load those that were saved together."
                )
        take_over = [
            fragment.checked([own["fragments"][f"{i}"] for own in given], strict)
            for i, fragment in enumerate(self.fragments)
        ]
        for fragment in self.fragments:
            fragment.drop()
        self.step = given[0]["step"]
        if self._rounds is not None and given[0]["every"] is not None:
            self.every, self._rounds = given[0]["every"], None
        for take in take_over:
            take()

    def detach(self) -> None:
        """Stop exchanging; each rank's model stays as it is. All ranks must call it, between two
        steps. With `delay` it waits for an exchange that is under way, and drops its result."""
        for hook in self._hooks:
            hook.remove()
        leave(self._parameters.values(), self.detach)
        for fragment in self.fragments:
            fragment.close()


def _for_each(
    parts: Sequence[Mapping[str, nn.Parameter]], named: Mapping[str, nn.Parameter],
    model: nn.Module, options: Mapping[str, Any],
) -> list[dict[str, Any]]:  # fmt: skip
    """Returns the options of `attach` for each part; `exclude` and `buckets` name its parameters
    only."""
    dense = excluded(model, named, options.get("exclude", ()))
    buckets = [list(names) for names in options.get("buckets") or ()]
    found = []
    for part in parts:
        own = [[n for n in names if n in part or n not in named] for names in buckets]
        found.append({
            **options, "exclude": [escape(name) for name in dense if name in part],
            "buckets": [names for names in own if names] or None,
        })  # fmt: skip
    return found


def _hooked(optimizer: Any) -> Optimizer:
    """Returns the optimizer for which torch calls step hooks: the inner one of a wrapper without
    hooks, as Accelerate's."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    own: Optimizer = optimizer
    return own


def _check_optimizer(optimizer: Optimizer, named: Mapping[str, nn.Parameter]) -> None:
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise UsageError(
            "LocalSteps needs the optimizer itself, whose steps it counts; got "
            f"{optimizer!r:.80}. Pass a torch.optim.Optimizer."
        )
    if held(optimizer).isdisjoint(map(id, named.values())):
        raise UsageError(
            "LocalSteps needs the optimizer of the model's parameters; this "
            f"{type(optimizer).__name__} holds none of them. Pass the model's optimizer, made "
            "after the model was moved or converted."
        )


def _advise(optimizer: Optimizer, group: dist.ProcessGroup | None, strict: bool) -> None:
    """Warn of an optimizer whose local steps learn less, with or without compression; with strict,
    raise UsageError."""
    if update_rule(optimizer) != "adaptive":
        return
    name = name_of(optimizer)
    text = (
        f"local steps of {name} learn less than {name} with an exchange in every step: in rounds "
        "of 4 a small GPT reaches 2.35 bits, with dense training 2.22 "
        "(benchmarks/convergence: gpt, sparseloco-4). Those of gradwire.optim.Muon lose less: "
        "1.97, with dense Muon 1.93. With an exchange in "
        f"every step, sound is {instead(optimizer, dist.get_world_size(group))}"
    )
    if strict:
        raise UsageError(f"strict=True refuses steps by which a model learns less; {text}")
    if dist.get_rank(group) == 0:
        warnings.warn(text, SoundnessWarning, stacklevel=3)


def _refuse_scaler(given: bool) -> None:
    if given:
        raise UsageError(
            "all ranks must take the same number of local steps, and a GradScaler skips steps "
            "that overflow on one rank alone; local steps exchange changes of weights, which have "
            "no loss scale. Train in bfloat16 or float32, without a scaler."
        )


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    own = ("module", "plan", "process_group", "scaler", "guard", "kind", "wants_machines")
    known = [name for name in signature(attach_plan).parameters if name not in own]
    if unknown := [name for name in options if name not in (*known, "guard")]:
        raise UsageError(
            f"LocalSteps' options beside its own must be some of attach's, {', '.join(known)}; "
            f"got {', '.join(unknown)}. Correct the name, or leave it out."
        )


def _check(model: nn.Module, every: int, plan: object, fragments: int, delay: int) -> None:
    averaged = any(isinstance(part, DistributedDataParallel) for part in model.modules())
    if averaged or is_sharded(model) or any(map(is_attached, model.parameters())):
        raise UsageError(
            "LocalSteps needs a plain module, which nothing else averages; this model is averaged "
            "in every step (attached, or DDP), or sharded, or takes local steps already. Pass the "
            "plain module, and do not attach it."
        )
    if not isinstance(plan, str | Strategy) or isinstance(plan, Plan) or plan == "auto":
        raise UsageError(
            f"LocalSteps takes a strategy, not a plan; got {plan!r}. Use for example "
            "'topk(0.01)+ef | allgather'."
        )
    names = sum(1 for p in model.parameters() if p.requires_grad)
    whole = all(type(number) is int for number in (every, fragments, delay))
    fits = whole and every >= 1 and 1 <= fragments <= min(every, names)
    if not fits or not 0 <= delay <= every // fragments:
        raise UsageError(
            "every must be a whole number, at least 1; fragments one from 1 to every and to the "
            "number of parameters; delay one from 0 to every/fragments; got "
            f"every={every}, fragments={fragments}, delay={delay}, {names} parameters. Use for "
            "example every=8, fragments=1, delay=0."
        )


def _check_outer(plan: str | Strategy, lr: float, momentum: float, nesterov: bool) -> None:
    strategy = plan if isinstance(plan, Strategy) else Strategy.parse(plan)
    feedback = strategy.feedback
    if feedback is not None and feedback.rule != "linear":
        raise UsageError(
            f"'{strategy}' keeps moments of gradients; local steps exchange changes of weights. "
            "Leave the moments to the inner optimizer: use for example 'topk(0.05)+ef | "
            "allgather'."
        )
    if lr == 1.0 and strategy.compressor.claims(1 << 20).direction:
        raise UsageError(
            "outer_lr must be how far each weight moves in a round where a plan, as "
            f"'{strategy}', sends directions without a size; got 1.0, which is for progress that "
            "has one. Pass for example outer_lr=0.001, or leave out the plan."
        )
    if feedback is not None and (kept := feedback.moments()):
        theirs = kept["momentum"], kept["nesterov"]
        if theirs != (momentum, nesterov):
            raise UsageError(
                f"'{strategy}' keeps the outer momentum, so both must agree; got outer_momentum="
                f"{momentum}, nesterov={nesterov}. Pass outer_momentum={theirs[0]}, "
                f"nesterov={theirs[1]}, or write your values into the strategy."
            )
