"""One attached model at work: gradients in, by name; averages out, in place.

A frontend (plain module or DDP) delivers gradients as they become ready. A bucket whose gradients
are complete goes to the conductor at once, unless clipping must first see them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from gradwire import kernels
from gradwire.buckets import Parameter
from gradwire.errors import PlanError, UsageError
from gradwire.groups import Machines
from gradwire.local import OF_OTHER_SHAPE
from gradwire.plan import Plan
from gradwire.runtime.conductor import Conductor
from gradwire.runtime.context import Memory
from gradwire.runtime.hierarchy import make_context
from gradwire.runtime.torch_dist import Performer
from gradwire.strategy import Feedback, StepInfo
from gradwire.training.stats import Stats


class Session:
    """Plan, state and conductor of one model. Frontends call begin, deliver, flush, wait."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], plan: Plan,
        performers: Sequence[Performer], *, clip_norm: float | None, seed: int,
        machines: Machines | None = None,
    ) -> None:  # fmt: skip
        self.parameters, self.clip_norm, self._seed = dict(parameters), clip_norm, seed
        self.rank, self.world = performers[0].rank, performers[0].world
        self.device = next(iter(parameters.values())).device
        self.memory: Memory = {}
        self.expects_memory = False  # of a plan that may come later
        self.performers, self.machines = list(performers), machines
        self.launches_at_end = clip_norm is not None
        self.step = 0
        self.on_end: Callable[[BaseException | None], None] | None = None
        self.before_step: Callable[[], None] | None = None  # on all ranks at the same step
        self._copied: list[tuple[Tensor, Tensor]] = []
        self.leftovers: dict[str, Tensor] = {}
        self._first = plan
        self._take(plan)

    @property
    def per_node(self) -> int | None:
        """Ranks to a machine, as the plan that was attached said it; None: there are no groups
        inside machines."""
        asked = {s.collective.per_node for s in self._first.strategies} - {None}
        as_found = 0 if self.machines is not None else None
        return asked.pop() if asked else as_found

    @property
    def has_memory(self) -> bool:
        """Whether something is remembered from step to step, or may soon be."""
        return self.expects_memory or any(s.feedback is not None for s in self.plan.strategies)

    def _take(self, plan: Plan) -> None:
        """Contexts, slots and lanes for a plan."""
        self.plan = plan
        lanes = self.performers[: min(plan.lanes, len(plan.buckets))]
        scratch = [kernels.Scratch() for _ in lanes]
        self.contexts = [
            make_context(
                strategy, bucket, self.rank, self.world, self.memory, self.machines,
                device=self.device, seed=self._seed, scratch=scratch[b % len(lanes)],
            )
            for b, (bucket, strategy) in enumerate(zip(plan.buckets, plan.strategies))
        ]  # fmt: skip
        self.shapes = {
            p.name: kept.shape
            for context in self.contexts
            for p, kept in zip(context.bucket.parameters, context.kept.parameters)
        }
        self.stats = Stats(self.contexts)
        self._place = {
            name: (b, i)
            for b, bucket in enumerate(plan.buckets)
            for i, name in enumerate(bucket.names)
        }
        self._slots: list[list[Tensor | None]] = [[None] * len(b.names) for b in plan.buckets]
        self._missing = [0] * len(plan.buckets)
        self.conductor = Conductor(self.contexts, lanes, self._end, self.device)

    def adopt(self, plan: Plan) -> None:
        """Another plan for the same model, between two steps. The same on all ranks.

        What waits in residuals is not lost: it goes into those of the new plan, or else is added
        to the gradients of the next step that is not skipped. A parameter whose feedback stays
        keeps its whole state, if ranks look after it whole before and after.
        """
        self.leftovers = self.waiting()
        self.conductor.stop()
        before = {name: (self.plan.strategy_of(name).feedback, dict(state))
                  for name, state in self.memory.items()}  # fmt: skip
        whole = {name for name in self.memory if self.is_whole(name)}
        self.memory.clear()
        self._take(plan)
        for name, (feedback, state) in before.items():
            if name in whole and self.is_whole(name):
                self._pass_on(name, feedback, state)

    def waits(self, leftovers: Mapping[str, Tensor]) -> None:
        """For the next gradients, beside what waits already."""
        self.leftovers = _sums(self.leftovers, leftovers)

    def waiting(self) -> dict[str, Tensor]:
        """All that this rank must still add to gradients: what is in residuals, and leftovers."""
        found = self.leftovers
        for context in self.contexts:
            found = _sums(found, context.leftovers())
        return found

    def _pass_on(self, name: str, feedback: Feedback | None, state: Mapping[str, Tensor]) -> None:
        """To a parameter that a rank looked after whole, and does."""
        now = self.plan.strategy_of(name).feedback
        rule = now.recurrence() if now else None
        if now is not None and now == feedback:
            self.memory[name].update(
                {key: v for key, v in state.items() if key not in OF_OTHER_SHAPE}
            )
        if rule is not None and rule.sent == "leaves" and name in self.leftovers:
            self.memory[name]["residual"] = self.leftovers.pop(name)
            if rule.momentum is not None and "velocity" not in self.memory[name]:
                self.memory[name]["velocity"] = kernels.zeros(
                    self.memory[name]["residual"].numel(), self.device
                )

    def is_whole(self, name: str) -> bool:
        """Whether this rank looks after all of a parameter."""
        return self.shapes[name] == tuple(self.parameters[name].shape)

    def can_adopt(self, plan: Plan) -> None:
        """PlanError unless what is remembered can be passed on, and momentum stays where it is."""
        for name in self.memory:
            one, other = (p.strategy_of(name) for p in (self.plan, plan))
            feedback = one.feedback
            rule = feedback.recurrence() if feedback is not None else None
            poured = feedback is None or (rule is not None and rule.sent == "leaves")
            if not poured and feedback != other.feedback:
                raise PlanError(
                    f"what '{feedback}' remembers means nothing to another strategy; '{name}' "
                    f"would change from '{one}' to '{other}'. Use ef or dgc, or detach and attach."
                )
        keepers = [
            any(s.feedback is not None and s.feedback.keeps_momentum() for s in p.strategies)
            for p in (self.plan, plan)
        ]
        if keepers[0] != keepers[1]:
            raise PlanError(
                "momentum stays where it is, in the plan or in the optimizer; "
                f"'{self.plan.main_strategy}' and '{plan.main_strategy}' differ in that. Detach, "
                "change the optimizer, and attach."
            )

    # -- one step --------------------------------------------------------------------------

    def begin(self) -> None:
        """The first gradient of a step is here."""
        if self.before_step is not None:
            self.before_step()
        self.conductor.begin(self.step)
        for b, slots in enumerate(self._slots):
            self._slots[b] = [None] * len(slots)
            self._missing[b] = len(slots)

    def deliver(self, name: str, gradient: Tensor) -> None:
        """One parameter's gradient, which its average will overwrite: dense, or rows (COO)."""
        b, i = self._place[name]
        if self._slots[b][i] is not None:
            raise UsageError(
                f"each parameter has one gradient per backward(); '{name}' had a second one in "
                f"step {self.step}, or the backward() before it was aborted. Use non-reentrant "
                "checkpointing, and attach again after an aborted backward()."
            )
        parameter = self.plan.buckets[b].parameters[i]
        if parameter.sparse:
            self.stats.given(gradient)
        dense = gradient.layout == torch.strided
        self._slots[b][i] = self._flat(gradient) if dense else _checked_rows(parameter, gradient)
        self._missing[b] -= 1
        if self._missing[b] == 0 and not self.launches_at_end:
            self._launch(b, 1.0)

    def _flat(self, gradient: Tensor) -> Tensor:
        if gradient.is_contiguous():
            return gradient.view(-1)
        flat = gradient.contiguous()
        self._copied.append((gradient, flat))
        return flat.view(-1)

    def delivered(self, name: str) -> bool:
        b, i = self._place[name]
        return self._slots[b][i] is not None

    @property
    def all_delivered(self) -> bool:
        return not any(self._missing)

    def nothing(self, name: str) -> Tensor:
        """What stands for a gradient that did not come."""
        b, i = self._place[name]
        parameter = self.parameters[name]
        sparse = self.plan.buckets[b].parameters[i].sparse
        return kernels.no_rows(parameter) if sparse else torch.zeros_like(parameter)

    def flush(self, absent: Callable[[str], Tensor]) -> None:
        """No more gradients will come: `absent` says what stands for each that did not."""
        self.stats.backward_over()
        for name in self._place:
            if not self.delivered(name):
                self.deliver(name, absent(name))
        if self.launches_at_end:
            scale = 1.0 if self.clip_norm is None else self._clip_scale(self.clip_norm)
            for b in range(len(self._slots)):
                self._launch(b, scale)

    def wait(self) -> None:
        """Block until every average is in place; raise what went wrong, here or in a lane."""
        self.conductor.wait()

    def close(self) -> None:
        """Stop the lanes and give their groups back. Not collective."""
        self.conductor.close()
        for performer in self.performers:
            if performer not in self.conductor.performers:
                performer.close()

    def _launch(self, b: int, clip_scale: float) -> None:
        gradients = [g for g in self._slots[b] if g is not None]
        if self.leftovers:  # of the plan before this one; they were clipped when they came
            for name, gradient in zip(self.plan.buckets[b].names, gradients):
                waiting = self.leftovers.get(name)
                if waiting is not None:
                    gradient.add_(waiting.view_as(gradient), alpha=1.0 / clip_scale)
        self.conductor.ready(b, gradients, gradients, StepInfo(self.step, clip_scale))

    def _clip_scale(self, clip_norm: float) -> float:
        """Local clipping (Lin et al. 2018, section 3.2) for gradients that are averaged.

        The norm of the average of N independent gradients is about 1/√N of theirs, so clipping
        the average at c means clipping each at √N·c.
        """
        gradients = [g for slots in self._slots for g in slots if g is not None]
        norms = torch.stack([_norm(g) for g in gradients])
        norm = float(torch.linalg.vector_norm(norms))
        limit = clip_norm * math.sqrt(self.world)
        return limit / norm if math.isfinite(norm) and norm > limit else 1.0

    def _end(self, error: BaseException | None) -> None:
        for original, flat in self._copied:
            original.copy_(flat.view_as(original))
        self._copied.clear()
        self._slots = [[None] * len(slots) for slots in self._slots]
        self.stats.record(self.conductor.trace)
        if self.leftovers and error is None:
            self._settle()
        self.step += 1
        if self.on_end is not None:
            self.on_end(error)

    def _settle(self) -> None:
        """Leftovers have arrived, or are in the residuals of what was given back; or they wait
        for the next step."""
        skipped = not all(context.finite for context in self.contexts)
        for context in self.contexts:
            given_back = context.finite and context.strategy.feedback is not None
            if not skipped or given_back:
                for name in context.bucket.names:
                    self.leftovers.pop(name, None)


def _sums(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By name; what is in one only is taken as it is."""
    both = {name: one[name] + x.view_as(one[name]) for name, x in other.items() if name in one}
    return {**one, **other, **both}


def _norm(gradient: Tensor) -> Tensor:
    if kernels.is_rows(gradient):
        gradient = kernels.rows_of(gradient, torch.float32)[1]
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float32)
    return norm


def _checked_rows(parameter: Parameter, gradient: Tensor) -> Tensor:
    if kernels.is_rows(gradient) and parameter.sparse:
        return gradient
    raise UsageError(
        "gradwire exchanges dense gradients, and whole rows with their ids of the weights of "
        f"nn.Embedding and nn.EmbeddingBag with sparse=True; that of '{parameter}' is "
        f"{gradient.layout} with {gradient.sparse_dim()} sparse dimensions. Use one of these "
        "modules, or make the gradient dense."
    )


def describe(
    parameters: Mapping[str, nn.Parameter], module: nn.Module | None = None
) -> list[Parameter]:
    """The parameters as planning sees them. module: theirs, to know which gradients are sparse."""
    tables = {id(m.weight) for m in module.modules() if _is_sparse(m)} if module else set()
    return [
        Parameter(name, tuple(p.shape), str(p.dtype).removeprefix("torch."), id(p) in tables)
        for name, p in parameters.items()
    ]


def _is_sparse(module: nn.Module) -> bool:
    """By DistributedDataParallel's own rule."""
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
