"""The state of one rank under a plan, and how it passes to the next plan: nothing is lost.

plan ──► a context per bucket ──► memory: residuals and momentum, by parameter name
next plan: residuals go into its residuals, or are added to the next gradients (leftovers)
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

_MANY = 1 << 20  # elements


class Ledger:
    """Contexts and memory of one rank, for all buckets of a plan.

    lanes: the number of buckets that may be exchanged at once; those of one lane share their
    scratch memory. options: for `Codec`.
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
        """The shapes of what this rank keeps state for: parameters, or its parts of them."""
        self._own = {name for c in self.contexts if c.is_own for name in c.bucket.names}
        self._devices = {name: c.device for c in self.contexts for name in c.bucket.names}

    def placed(self, name: str, key: str, x: Tensor) -> Tensor:
        """Returns x on the device where the parameter's state of this key lies."""
        return x.to("cpu" if key in ON_HOST else self._devices[name])

    def is_own(self, name: str) -> bool:
        """Whether this rank keeps the state of its own gradient of a parameter, all of it; else
        that of a part, or of a mean of several ranks' gradients."""
        return name in self._own

    # -- from plan to plan -----------------------------------------------------------------

    def adopt(self, plan: Plan, lanes: int = 1) -> None:
        """Adopts another plan for the same parameters, between two steps. The same on all ranks.

        Residuals are not lost: they go into those of the new plan, or else are added to the
        gradients of the next step that is not skipped. A parameter whose feedback stays keeps its
        whole state, if it is of each rank's own gradient before and after; if not, and it is of
        steps, PlanError is raised (`check_steps`), and nothing changes. Momentum passes on if a
        parameter was sent dense so far, with the dynamics of its new feedback, or is sent dense
        from now on.
        """
        self.check_steps(self.plan, plan)
        pending, self.leftovers = self.leftovers, {}
        self.leftovers = self.waiting()
        before = {name: (self.plan.strategy_of(name), dict(state))
                  for name, state in self.memory.items()}  # fmt: skip
        own = self._own
        self.memory.clear()
        self._take(plan, lanes)
        for name, (strategy, state) in before.items():
            is_own = name in own and name in self._own
            if is_own:
                self._pass_on(name, strategy, state)
            self._behind_another_momentum(name, strategy, state if is_own else {})
        self.leftovers = _sums(self.leftovers, pending)

    def _pass_on(self, name: str, before: Strategy, state: State) -> None:
        """Passes a state of this rank's own gradient on to another of it."""
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
        """Turns what is left behind a momentum of this rank's own into a gradient that moves the
        weights as far in the end, through the momentum of the average.

            v + u·m/(1 - m)      is how far it would still have moved them: u is the velocity
            x / (1 - m')         is how far a gradient x moves them, with a momentum m'
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
        """Raises PlanError unless state can be passed on, and momentum stays where it is."""
        if _keeps_momentum(self.plan) != _keeps_momentum(plan):
            raise PlanError(
                "a new plan must keep momentum where it is, in its feedback or in the optimizer; "
                f"'{self.plan.main_strategy}' and '{plan.main_strategy}' differ in that. Detach, "
                "change the optimizer, and attach again."
            )
        self.check_steps(self.plan, plan)
        for name in self.memory:
            before, now = self.plan.strategy_of(name), plan.strategy_of(name)
            feedback = before.feedback
            goes_on = feedback == now.feedback or _grew(before, now) or _shrank(before, now)
            passes = _is_poured(feedback) or goes_on
            if not passes:
                raise PlanError(
                    f"the state of '{feedback}' cannot be passed on to another strategy; '{name}' "
                    f"would change from '{before}' to '{now}'. Use ef or dgc, or detach and "
                    "attach again."
                )

    def check_steps(self, before: Plan, then: Plan) -> None:
        """Raises PlanError if steps that wait would have to be added to gradients, as ranks of a
        machine share them in one of two plans."""
        for name in self.memory:
            first, second = before.strategy_of(name), then.strategy_of(name)
            feedback = first.feedback
            if keeps_steps(feedback) and not (self.sends_own(first) and self.sends_own(second)):
                raise PlanError(
                    f"what waits under '{feedback}' are steps, which pass on only where each rank "
                    f"sends its own; '{name}' would change from '{first}' to '{second}', and "
                    "ranks of a machine share parts. Leave out the warm-up, or call "
                    "handle.flush(), step, detach and attach again."
                )

    def sends_own(self, strategy: Strategy) -> bool:
        """Whether ranks compress their own gradients with it, and not means of several ranks'."""
        way = strategy.collective
        if way.tasks is not None:
            return way.tasks.keeps_own
        if way.across is None:
            return True
        machines = self.machines or Machines.even(self.world, way.per_node or self.world)
        return machines.per_node == 1

    def take_over(self, other: Ledger) -> None:
        """Takes over all state of another ledger of the same plan, without a copy."""
        for name, mine in self.memory.items():
            mine.clear()
            mine.update(other.memory[name])
        self.leftovers = other.leftovers

    # -- what waits ------------------------------------------------------------------------

    def waiting(self) -> dict[str, Tensor]:
        """Returns all that this rank must still add to gradients: residuals and leftovers. Flat,
        in the parameters' sizes, on the gradients' device. Residuals are copied."""
        found = self.leftovers
        for context in self.contexts:
            own = context.leftovers()
            found = _sums(found, {name: x.to(self.device) for name, x in own.items()})
        return found

    def forget(self) -> None:
        """Forgets all state, as if this plan were the first."""
        self.leftovers = {}
        for state in self.memory.values():
            state.clear()

    def forget_waiting(self, averages: Mapping[str, Tensor]) -> None:
        """Forgets residuals and leftovers, which were sent another way and arrived as these
        averages. Momentum stays, and momentum that is built of averages (`shared`) adds these."""
        self.leftovers = {}
        for name, state in self.memory.items():
            self.scale_waiting(name, 0.0)
            feedback = self.plan.strategy_of(name).feedback
            for key in feedback.shared if feedback is not None and name in averages else ():
                if key in state:
                    state[key].add_(averages[name].view_as(state[key]).to(state[key].device))

    def scale_waiting(self, name: str, factor: float) -> None:
        """Multiplies a parameter's residuals and leftovers by factor; momentum stays."""
        waiting = [self.leftovers[name]] if name in self.leftovers else []
        for key, tensor in self.memory.get(name, {}).items():
            if is_waiting(key):
                waiting.append(tensor)
        for tensor in waiting:
            tensor.mul_(factor) if factor else tensor.zero_()

    def scale(self, factor: float) -> None:
        """Multiplies all state that is in the gradients' unit by factor, as that unit changes. The
        state of what has a unit of its own stays."""
        own = [
            state for name, state in self.memory.items()
            if not has_own_unit(self.plan.strategy_of(name))
        ]  # fmt: skip
        for values in (*own, self.leftovers):
            for tensor in values.values():
                tensor.mul_(factor)

    # -- one step --------------------------------------------------------------------------

    def add_leftovers(self, bucket: int, gradients: Sequence[Tensor], clip_scale: float) -> None:
        """Adds leftovers to a bucket's gradients, which will be multiplied by clip_scale later;
        leftovers are clipped already."""
        if self.leftovers:
            for name, gradient in zip(self.plan.buckets[bucket].names, gradients):
                waiting = self.leftovers.get(name)
                if waiting is not None:
                    gradient.add_(waiting.view_as(gradient), alpha=1.0 / clip_scale)

    @property
    def finite(self) -> bool:
        """Whether all that arrived in this step is finite; otherwise the step is skipped."""
        return all(context.finite for context in self.contexts)

    def settle(self) -> None:
        """Ends a step: drops leftovers that have arrived, or that were given back to this rank's
        state. Others stay for the next step."""
        skipped = not self.finite
        for context in self.contexts if self.leftovers else ():
            for name in context.given_back() if skipped else context.bucket.names:
                self.leftovers.pop(name, None)


def keeps_steps(feedback: Feedback | None) -> bool:
    """Whether what waits under a feedback are an optimizer's steps, not gradients."""
    return feedback is not None and feedback.makes_good and feedback.rule != "linear"


def has_own_unit(strategy: Strategy) -> bool:
    """Whether what arrives has another unit than gradients: an optimizer's steps, or directions. A
    loss scale is taken out before anything is remembered then, and multiplies what arrives."""
    feedback = strategy.feedback
    sends_steps = feedback is not None and feedback.rule != "linear"
    return sends_steps or strategy.compressor.claims(_MANY).direction


def _is_poured(feedback: Feedback | None) -> bool:
    """Whether a feedback's state is only a residual, and a momentum or an estimate that may begin
    anew."""
    rule = feedback.recurrence() if feedback is not None else None
    return feedback is None or (rule is not None and rule.sent in ("leaves", "joins"))


def _grew(before: Strategy, now: Strategy) -> bool:
    """Whether a parameter was sent dense until now, with the dynamics of its new feedback: the
    momentum is that of all ranks, so each may continue from it."""
    return before.feedback is not None and beside.dense(now).feedback == before.feedback


def _shrank(before: Strategy, now: Strategy) -> bool:
    """Whether a parameter is sent dense from now on, with a momentum that was and stays each
    rank's own."""
    own, kept = beside.dense(before).feedback, now.feedback
    return kept is not None and kept == own and kept != before.feedback and not kept.shared


def _keeps_momentum(plan: Plan) -> bool:
    return any(s.feedback is not None and bool(s.feedback.moments()) for s in plan.strategies)


def _sums(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Adds two states name by name; a tensor in only one of them is taken as it is."""
    both = {name: one[name] + x.view_as(one[name]) for name, x in other.items() if name in one}
    return {**one, **other, **both}
