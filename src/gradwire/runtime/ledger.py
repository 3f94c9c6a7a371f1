"""What one rank remembers under a plan, and how it passes to the next plan: nothing is lost.

plan ──► a context per bucket ──► memory: by parameter name, what waits and what has momentum
next plan: what waits goes into its residuals, or is added to the next gradients (leftovers)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire import beside, kernels
from gradwire.errors import PlanError
from gradwire.groups import Machines
from gradwire.local import OF_COLLECTIVE, ON_HOST, is_waiting
from gradwire.plan import Plan
from gradwire.runtime.codec import Memory
from gradwire.runtime.contexts import make_context
from gradwire.strategy import Feedback, State, Strategy


class Ledger:
    """Contexts and memory of one rank, for all buckets of a plan.

    lanes: how many buckets may be at work at once; those of one lane share their scratch memory.
    options: of `Codec`.
    """

    def __init__(
        self, plan: Plan, rank: int, world: int, machines: Machines | None = None, *,
        lanes: int = 1, **options: Any,
    ) -> None:  # fmt: skip
        self.rank, self.world, self.machines, self._options = rank, world, machines, options
        self.memory: Memory = {}
        self.leftovers: dict[str, Tensor] = {}
        self.device = torch.device(options.get("device", "cpu"))
        self._take(plan, lanes)

    def _take(self, plan: Plan, lanes: int) -> None:
        self.plan = plan
        scratch = [kernels.Scratch() for _ in range(lanes)]
        self.contexts = [
            make_context(
                strategy, bucket, self.rank, self.world, self.memory, self.machines,
                scratch=scratch[b % lanes], **self._options,
            )
            for b, (bucket, strategy) in enumerate(zip(plan.buckets, plan.strategies))
        ]  # fmt: skip
        pairs = [
            pair for c in self.contexts for pair in zip(c.bucket.parameters, c.kept.parameters)
        ]
        self.sizes = {p.name: p.elements for p, _ in pairs}
        self.shapes = {p.name: kept.shape for p, kept in pairs}
        """Of what this rank looks after: the parameters', or those of its parts of them."""
        self._whole = {p.name for p, kept in pairs if p.shape == kept.shape}
        self._devices = {name: c.device for c in self.contexts for name in c.bucket.names}

    def placed(self, name: str, key: str, x: Tensor) -> Tensor:
        """x where what is remembered of a parameter by this key lies."""
        return x.to("cpu" if key in ON_HOST else self._devices[name])

    def is_whole(self, name: str) -> bool:
        """Whether this rank looks after all of a parameter."""
        return name in self._whole

    # -- from plan to plan -----------------------------------------------------------------

    def adopt(self, plan: Plan, lanes: int = 1) -> None:
        """Another plan for the same parameters, between two steps. The same on all ranks.

        What waits in residuals is not lost: it goes into those of the new plan, or else is added
        to the gradients of the next step that is not skipped. A parameter whose feedback stays
        keeps its whole state, if ranks look after it whole before and after; one that travelled
        dense beside the new feedback keeps its momentum, and one that travels dense from now on
        gives it on.
        """
        pending, self.leftovers = self.leftovers, {}
        self.leftovers = self.waiting()
        before = {name: (self.plan.strategy_of(name), dict(state))
                  for name, state in self.memory.items()}  # fmt: skip
        whole = self._whole
        self.memory.clear()
        self._take(plan, lanes)
        for name, (strategy, state) in before.items():
            is_whole = name in whole and name in self._whole
            if is_whole:
                self._pass_on(name, strategy, state)
            self._behind_another_momentum(name, strategy, state if is_whole else {})
        self.leftovers = _sums(self.leftovers, pending)

    def _pass_on(self, name: str, before: Strategy, state: State) -> None:
        """Pass what is remembered on to a parameter that a rank looked after whole, and still
        does."""
        now, mine = self.plan.strategy_of(name), self.memory[name]
        rule = now.feedback.recurrence() if now.feedback else None
        if now.feedback is not None and now.feedback == before.feedback:
            mine.update({key: v for key, v in state.items() if key not in OF_COLLECTIVE})
        elif _grew(before, now):
            begun = {key: v.float() for key, v in state.items()}
            if begun and now.feedback is not None:
                mine.update(now.feedback.adopt(begun))
        elif _shrank(before, now) and "velocity" in state:
            mine["velocity"] = state["velocity"]
        leaves = rule is not None and rule.sent == "leaves"
        if name in self.leftovers and (leaves or "residual" in mine):
            mine["residual"] = self.leftovers.pop(name)
        mine.update({key: self.placed(name, key, v) for key, v in mine.items()})
        if rule is not None and leaves and rule.momentum is not None:
            for key in ("residual", "velocity"):
                if mine and key not in mine:
                    mine[key] = kernels.zeros(self.sizes[name], self._devices[name])

    def _behind_another_momentum(self, name: str, before: Strategy, state: State) -> None:
        """What waited behind a momentum of this rank's, as a gradient of which the momentum of the
        average makes as much in the end.

            v + u·m/(1 - m)      would still have moved the weights: u the velocity
            x / (1 - m')         is what a gradient x moves them by, with a momentum m'
        """
        now = self.plan.strategy_of(name)
        rule = before.feedback.recurrence() if before.feedback else None
        if rule is None or rule.momentum is None or now.feedback is None:
            return
        if not now.feedback.sends_all or now.feedback.rule != "linear":
            return
        kept = float(now.feedback.moments().get("momentum", 0.0))
        still = self.leftovers.get(name, 0.0)
        if "velocity" in state:
            still = state["velocity"].reshape(-1) * (rule.momentum / (1 - rule.momentum)) + still
        if isinstance(still, Tensor):
            self.leftovers[name] = (still * (1 - kept)).to(self.device)

    def check_next(self, plan: Plan) -> None:
        """PlanError unless what is remembered can be passed on, and momentum stays where it is."""
        if _keeps_momentum(self.plan) != _keeps_momentum(plan):
            raise PlanError(
                "momentum stays where it is, in the plan or in the optimizer; "
                f"'{self.plan.main_strategy}' and '{plan.main_strategy}' differ in that. Detach, "
                "change the optimizer, and attach."
            )
        for name in self.memory:
            before, now = self.plan.strategy_of(name), plan.strategy_of(name)
            feedback = before.feedback
            goes_on = feedback == now.feedback or _grew(before, now) or _shrank(before, now)
            passes = _is_poured(feedback) or goes_on
            if not passes:
                raise PlanError(
                    f"what '{feedback}' remembers means nothing to another strategy; '{name}' "
                    f"would change from '{before}' to '{now}'. Use ef or dgc, or detach and "
                    "attach."
                )

    def take_over(self, other: Ledger) -> None:
        """All that another ledger of the same plan remembers; not copied."""
        for name, mine in self.memory.items():
            mine.clear()
            mine.update(other.memory[name])
        self.leftovers = other.leftovers

    # -- what waits ------------------------------------------------------------------------

    def waiting(self) -> dict[str, Tensor]:
        """All that this rank must still add to gradients: what is in residuals, and leftovers.
        Flat, in the parameters' sizes, where gradients are; copies."""
        found = self.leftovers
        for context in self.contexts:
            own = context.leftovers()
            found = _sums(found, {name: x.to(self.device) for name, x in own.items()})
        return found

    def forget(self) -> None:
        """All of it, as if this plan were the first."""
        self.leftovers = {}
        for state in self.memory.values():
            state.clear()

    def forget_waiting(self, averages: Mapping[str, Tensor]) -> None:
        """Nothing waits any more: it has been sent otherwise, and has arrived as these averages.
        Momentum stays, but for what is built of averages: it takes these up as any."""
        self.leftovers = {}
        for name, state in self.memory.items():
            self.scale_waiting(name, 0.0)
            feedback = self.plan.strategy_of(name).feedback
            for key in feedback.shared if feedback is not None and name in averages else ():
                if key in state:
                    state[key].add_(averages[name].view_as(state[key]).to(state[key].device))

    def scale_waiting(self, name: str, factor: float) -> None:
        """What waits of a parameter, times factor; momentum stays."""
        waiting = [self.leftovers[name]] if name in self.leftovers else []
        for key, tensor in self.memory.get(name, {}).items():
            if is_waiting(key):
                waiting.append(tensor)
        for tensor in waiting:
            tensor.mul_(factor) if factor else tensor.zero_()

    def scale(self, factor: float) -> None:
        """All that is remembered of gradients, times factor: they come in another unit from now
        on. An optimizer's steps do not."""
        feedbacks = {name: self.plan.strategy_of(name).feedback for name in self.memory}
        own = [
            state for name, state in self.memory.items()
            if (feedback := feedbacks[name]) is None or feedback.rule == "linear"
        ]  # fmt: skip
        for values in (*own, self.leftovers):
            for tensor in values.values():
                tensor.mul_(factor)

    # -- one step --------------------------------------------------------------------------

    def add_leftovers(self, bucket: int, gradients: Sequence[Tensor], clip_scale: float) -> None:
        """Add what waits to a bucket's gradients, which will be multiplied by clip_scale; what
        waits was clipped when it came."""
        if self.leftovers:
            for name, gradient in zip(self.plan.buckets[bucket].names, gradients):
                waiting = self.leftovers.get(name)
                if waiting is not None:
                    gradient.add_(waiting.view_as(gradient), alpha=1.0 / clip_scale)

    @property
    def finite(self) -> bool:
        """Whether all that arrived in this step is; otherwise it is skipped."""
        return all(context.finite for context in self.contexts)

    def settle(self) -> None:
        """After a step: leftovers have arrived, or are in the residuals of what was given back;
        or they wait for the next one."""
        skipped = not self.finite
        for context in self.contexts if self.leftovers else ():
            given_back = context.finite and context.strategy.feedback is not None
            if not skipped or given_back:
                for name in context.bucket.names:
                    self.leftovers.pop(name, None)


def _is_poured(feedback: Feedback | None) -> bool:
    """Whether all that it remembers is a sum that waits, and a momentum or an estimate that may
    begin anew."""
    rule = feedback.recurrence() if feedback is not None else None
    return feedback is None or (rule is not None and rule.sent in ("leaves", "joins"))


def _grew(before: Strategy, now: Strategy) -> bool:
    """Whether it travelled dense until now, with the dynamics of the feedback that it gets: the
    momentum is that of all ranks, so each may go on from it."""
    return before.feedback is not None and beside.dense(now).feedback == before.feedback


def _shrank(before: Strategy, now: Strategy) -> bool:
    """Whether it travels dense from now on, with a momentum that was each rank's own and is."""
    own, kept = beside.dense(before).feedback, now.feedback
    return kept is not None and kept == own and kept != before.feedback and not kept.shared


def _keeps_momentum(plan: Plan) -> bool:
    return any(s.feedback is not None and bool(s.feedback.moments()) for s in plan.strategies)


def _sums(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add two states name by name; what is in one only is taken as it is."""
    both = {name: one[name] + x.view_as(one[name]) for name, x in other.items() if name in one}
    return {**one, **other, **both}
