"""One attached model at work: gradients in, by name; averages out, in place.

A frontend (plain module, DDP, FSDP2) delivers gradients as they become ready. A bucket whose
gradients are complete goes to the conductor at once, unless clipping must first see them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from time import perf_counter
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire import kernels
from gradwire.buckets import Parameter
from gradwire.errors import PeerError, UsageError
from gradwire.groups import Machines
from gradwire.moves import AllGather, AllReduce, Broadcast
from gradwire.plan import Plan
from gradwire.runtime.conductor import Conductor
from gradwire.runtime.ledger import Ledger, has_own_unit
from gradwire.runtime.rates import Rates
from gradwire.runtime.torch_dist import Performer
from gradwire.strategy import StepInfo
from gradwire.training.clipping import LocalClip
from gradwire.training.given import check_gradient
from gradwire.training.stats import Stats
from gradwire.warmup import Warmup, at_density


@dataclass(frozen=True)
class Settings:
    """The options of `attach` beside the plan; the same on every rank."""

    clip_norm: float | None = None
    clip_overlap: bool = False
    seed: int = 0
    warmup: Warmup | None = None
    strict: bool = False
    timeout_seconds: float = field(default=300.0, repr=False)  # may differ between ranks
    optimizer: object = field(default=None, repr=False)
    guard: bool = False
    check_every: int | None = None


class _View(Protocol):
    """The session's `AttachedView` (`training.own_view`)."""

    def send(self, names: Iterable[str]) -> None: ...
    def uncover(self) -> None: ...


class _Watch(Protocol):
    """The session's `Guard` (`training.guard`)."""

    def look_anew(self, step: int) -> None: ...
    def given(self, name: str, gradient: Tensor) -> None: ...
    def arrived(self, name: str, average: Tensor | None) -> None: ...


class _Recording(Protocol):
    """The session's `Recording` (`training.recording`)."""

    def settle(self) -> None: ...
    def adopted(self) -> None: ...
    def moved(self) -> None: ...
    def step_over(self, session: Session, finite: bool, error: BaseException | None) -> None: ...
    def left_out(self, seconds: float) -> None: ...
    def log(self, numbers: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


P = ParamSpec("P")
T = TypeVar("T")


def _fatal(
    method: Callable[Concatenate[Session, P], T],
) -> Callable[Concatenate[Session, P], T]:
    """Makes any exception in a method, even KeyboardInterrupt, fail the session: ranks may then be
    at different points of an exchange, so no other may begin."""

    @wraps(method)
    def guarded(self: Session, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            self.fail(error)
            raise

    return guarded


class Session:
    """Plan, memory and conductor of one model. Frontends call begin, deliver, flush, wait.

    Once one of them has failed, `begin` raises for good, with the first failure as its reason.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], plan: Plan,
        performers: Sequence[Performer], settings: Settings, *,
        machines: Machines | None = None, scaler: Any = None,
    ) -> None:  # fmt: skip
        self.parameters, self.settings, self.scaler = dict(parameters), settings, scaler
        self.rank, self.world = performers[0].rank, performers[0].world
        self.device = next(iter(parameters.values())).device
        self.expects_memory = False  # whether a plan with memory may be adopted later
        self.performers, self.machines = list(performers), machines
        self.circle = performers[0]
        """A performer over all ranks whose steps wait for each other: this group's, or those of
        all replicate groups of a sharded model."""
        self.clip = LocalClip.of(settings.clip_norm, settings.clip_overlap, self.world)
        self.launches_at_end = False
        """Whether all buckets wait for the end of backward, even without clipping."""
        self.step, self.loss_scale, self.rates = 0, 1.0, Rates()
        self.taken = 0  # steps that were not skipped, which the warm-up counts
        self.began_at = 0  # the step that the model was attached at, or loaded a state of
        begins = dist.get_process_group_ranks(performers[0].group)[0]
        # Names this group in states where other groups save beside it; fully_shard sets its own.
        self.group_name = f" of ranks from {begins}" if begins else ""
        self.under_way = False  # whether an exchange has begun and `wait` has not returned
        self.on_end: Callable[[BaseException | None], None] | None = None
        self.before_step: Callable[[], None] | None = None  # on all ranks at the same step
        self.after_closure: Callable[[Iterable[Tensor]], None] | None = None  # in a step
        self.on_part: Callable[[str, Tensor], None] | None = None  # for each sharded gradient
        self.view: _View | None = None
        self.guard: _Watch | None = None
        self.on_lost: Callable[[PeerError], None] | None = None  # goes on without a lost rank
        self.compare: Callable[[], None] | None = None  # the weights of all ranks
        self.recording: _Recording | None = None
        self.stats = Stats(())  # until `_conduct` has a plan
        self._copied: list[tuple[Tensor, Tensor]] = []
        self._at_end = False  # whether this step's buckets are launched at the end of backward
        self.clip_scale = 1.0  # the factor of clipping for this rank's gradients of this step
        self.whole_plan = plan
        asked = {s.collective.per_node for s in plan.strategies} - {None}
        as_found = 0 if machines is not None else None
        self.per_node = asked.pop() if asked else as_found
        """Ranks per machine according to the plan that was attached, 0 for as many as are found;
        None: there are no groups inside machines."""
        self._density: float | str | None = 0.0  # no density yet, so that the first is applied
        first = self.plan_at(0)
        self.ledger = Ledger(
            first, self.rank, self.world, machines, lanes=self._lanes(first),
            device=self.device, seed=settings.seed,
        )  # fmt: skip
        phases = [] if settings.warmup is None else settings.warmup.begins
        for before, then in pairwise(map(self.plan_at, phases)):
            if before != then:
                self.ledger.check_steps(before, then)
        self._conduct()

    @property
    def plan(self) -> Plan:
        """The plan in force: `whole_plan`, or what warm-up makes of it."""
        return self.ledger.plan

    @property
    def has_memory(self) -> bool:
        """Whether a plan keeps state from step to step, or may soon do so."""
        plans = (self.plan, self.whole_plan)
        strategies = (strategy for plan in plans for strategy in plan.strategies)
        return self.expects_memory or any(
            s.feedback is not None or s.collective.own_feedback for s in strategies
        )

    def _lanes(self, plan: Plan) -> int:
        return min(plan.lanes, len(plan.buckets), len(self.performers))

    def _conduct(self) -> None:
        """Make gradient slots, lanes and a conductor for the plan in force."""
        if self.recording is not None:
            self.recording.settle()
        plan, lanes = self.plan, self.performers[: self._lanes(self.plan)]
        self.stats = Stats(self.ledger.contexts, self.stats)
        self._place = {
            name: (b, i)
            for b, bucket in enumerate(plan.buckets)
            for i, name in enumerate(bucket.names)
        }
        self._slots: list[list[Tensor | None]] = [[None] * len(b.names) for b in plan.buckets]
        self._missing = [0] * len(plan.buckets)
        if self.clip is not None:
            self.clip.follow(plan.strategies)
        limit = self.settings.timeout_seconds
        self.conductor = Conductor(self.ledger.contexts, lanes, self._end, self.device, limit)
        if self.recording is not None:
            self.recording.adopted()

    # -- failures --------------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        """Whether an exchange failed, so that the model must be attached again."""
        return self.conductor.error is not None

    def fail(self, error: BaseException) -> None:
        """Refuse all further exchanges; the first error stays the reason."""
        self.conductor.fail(error)

    def fail_aborted(self) -> None:
        """Fail because a backward ended before its exchange did."""
        self.fail(
            UsageError(
                f"the backward() of step {self.step} was aborted during its exchange, in which "
                "the other ranks still wait"
            )
        )

    def refuse_failed(self) -> None:
        """Raise a UsageError, always the same, if something failed before."""
        self.conductor.refuse_failed()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """A context for what all ranks do together: if one of them is lost in it, those that are
        left go on without it, where they are to, with another session and no gradients."""
        try:
            yield
        except PeerError as error:
            if self.on_lost is None:
                raise
            self.on_lost(error)

    # -- plans -----------------------------------------------------------------------------

    def adopt(self, plan: Plan) -> None:
        """Switch to another plan for the same model, between two steps, the same on all ranks."""
        self.whole_plan = plan
        self._go_by(self.plan_at(self.taken))

    @_fatal
    def _go_by(self, plan: Plan) -> None:
        self.conductor.stop()
        self.refuse_failed()  # a new conductor would not know of the failure
        if self.view is not None:
            self.view.uncover()
        self.ledger.adopt(plan, self._lanes(plan))
        self._conduct()

    def plan_at(self, taken: int, world: int | None = None) -> Plan:
        """Returns the plan in force after `taken` steps among `world` ranks, by default the
        session's."""
        return at_density(self.whole_plan, self._density_after(taken), world or self.world)

    def _density_after(self, taken: int) -> float | str | None:
        warmup = self.settings.warmup
        return None if warmup is None else warmup.density(taken)

    def rank_name(self, rank: int) -> str:
        """Returns a rank's name in saved states, unique among all groups that save together."""
        return f"{rank}{self.group_name}"

    def go_to(self, step: int, taken: int) -> None:
        """Set the next step's number, which seeds and headers use, and the number of steps that
        were not skipped, which warm-up uses."""
        self.step, self.taken, self.began_at = step, taken, step
        if self.guard is not None:
            self.guard.look_anew(step)  # the weights, too, may have come from elsewhere
        self._warm_up()

    def _warm_up(self) -> None:
        density = self._density_after(self.taken)
        if density != self._density:
            self._density, plan = density, self.plan_at(self.taken)
            if plan != self.plan:
                self._go_by(plan)

    @_fatal
    def _follow_scaler(self) -> None:
        """Rescale memory if the loss scale has changed: it has the gradients' unit."""
        scale = 1.0 if self.scaler is None else float(self.scaler.get_scale())
        if scale != self.loss_scale:
            self.ledger.scale(scale / self.loss_scale)
            self.loss_scale = scale

    # -- one step --------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a step, when its first gradient is ready.

        Raises:
            UsageError: something failed before; or an exchange is still under way, as a backward
                was aborted.
        """
        if self.under_way:
            self.fail_aborted()
        self.refuse_failed()
        came = perf_counter()
        if self.before_step is not None:
            self.before_step()
        self._warm_up()
        self._follow_scaler()
        self._leave_out(perf_counter() - came)
        self._at_end = self.launches_at_end or (self.clip is not None and self.clip.needs_all)
        self.clip_scale = self.clip.scale_for(self.clip.seen) if self.clip else 1.0
        self.conductor.begin(self.step)
        self.stats.begun()
        self.under_way = True
        self._missing = [len(slots) for slots in self._slots]

    def _leave_out(self, seconds: float) -> None:
        """Exclude the time for finding and changing plans from steps."""
        self.stats.leave_out(seconds)
        if self.recording is not None:
            self.recording.left_out(seconds)

    @_fatal
    def deliver(self, name: str, gradient: Tensor) -> None:
        """Take one parameter's gradient, dense or rows (COO), which its average will overwrite."""
        b, i = self._place[name]
        if self._slots[b][i] is not None:
            raise UsageError(
                f"each parameter can have one gradient per backward(); '{name}' got a second one "
                f"in step {self.step}, or the backward() before it was aborted. With activation "
                "checkpointing pass use_reentrant=False; after an aborted backward() detach and "
                "attach again."
            )
        parameter = self.plan.buckets[b].parameters[i]
        check_gradient(parameter, gradient, self.device)
        if parameter.sparse:
            self.stats.given(gradient)
        dense = gradient.layout == torch.strided
        if self.guard is not None and dense:
            self.guard.given(name, gradient)
        self._slots[b][i] = self._flat(gradient) if dense else gradient
        self.conductor.delivered(b)
        self._missing[b] -= 1
        if self._missing[b] == 0 and not self._at_end:
            self._launch(b)

    def _flat(self, gradient: Tensor) -> Tensor:
        if gradient.is_contiguous():
            return gradient.view(-1)
        flat = gradient.contiguous()
        self._copied.append((gradient, flat))
        return flat.view(-1)

    def delivered(self, name: str) -> bool:
        """Whether this step's gradient of a parameter has been delivered."""
        b, i = self._place[name]
        return self._slots[b][i] is not None

    @property
    def all_delivered(self) -> bool:
        """Whether this step's gradients of all parameters have been delivered."""
        return not any(self._missing)

    def nothing(self, name: str) -> Tensor:
        """Returns a zero gradient, to stand for a missing one: dense, or with no rows."""
        b, i = self._place[name]
        parameter = self.parameters[name]
        sparse = self.plan.buckets[b].parameters[i].sparse
        return kernels.no_rows(parameter) if sparse else torch.zeros_like(parameter)

    @_fatal
    def flush(self, absent: Callable[[str], Tensor]) -> None:
        """End the step's deliveries. absent: returns a gradient to stand for a missing one."""
        self.stats.backward_over()
        if self.conductor.is_over:
            return
        # If none is missing, a lane may end the step at any moment, and empty the slots.
        missing = [] if self.all_delivered else [n for n in self._place if not self.delivered(n)]
        for name in missing:
            self.deliver(name, absent(name))
        if not self._at_end:
            return
        if self.clip is not None:
            whole = [g for slots in self._slots for g in slots if g is not None]
            self.clip_scale = self.clip.scale_for(self.clip.learn_all(whole, self.loss_scale))
        for b in range(len(self._slots)):
            self._launch(b)

    @_fatal
    def average_waiting(self) -> dict[str, Tensor]:
        """Returns the average of all ranks' residuals, which stay: by the name of each dense
        parameter, in its shape, fp32, in the current loss scale. Collective, between two steps."""
        self._follow_scaler()
        waiting, averages = self.ledger.waiting(), dict[str, Tensor]()
        for b, bucket in enumerate(self.plan.buckets):
            dense = [p for p in bucket.parameters if not p.sparse]
            own = [waiting.get(p.name, kernels.zeros(p.elements, self.device)) for p in dense]
            if own:
                mine = torch.cat(own).mul_(self._unit(b)).div_(self.world)
                total = self.summed(mine, "flush")
                parts = torch.split(total, [p.elements for p in dense])
                averages |= {p.name: x.view(p.shape) for p, x in zip(dense, parts)}
        return averages

    def summed(self, own: Tensor, what: str) -> Tensor:
        """Returns the sum over all ranks, by the first lane. Collective, between two steps."""
        return self.moved(AllReduce(own.to(self.device)), what)

    def moved(self, move: AllGather | AllReduce | Broadcast, what: str | None = None) -> Tensor:
        """Returns what arrives of a move, by the first lane. what: names it in errors, by default
        the step. Collective, between two steps."""
        arrived = self.performers[0].perform(move, what or f"step {self.step}")
        assert isinstance(arrived, Tensor)
        return arrived

    def reset(self) -> None:
        """Drop all residuals, momenta, rates and norms, between two steps."""
        self.ledger.forget()
        self.rates = Rates()
        if self.guard is not None:
            self.guard.look_anew(self.step)
        if self.clip is not None:
            self.clip.seen = None

    @_fatal
    def wait(self, compares: bool = True) -> None:
        """Block until every average is in place; raise an error of this thread or of a lane.
        compares: whether all ranks wait, with weights that must be the same."""
        try:
            self.conductor.wait()
        finally:
            self.under_way = False
        if compares and self.compare is not None:
            self.compare()

    def close(self) -> None:
        """Stop the lanes and release their process groups. Not collective."""
        self.conductor.close()
        for performer in self.performers:
            if performer not in self.conductor.performers:
                performer.close()

    def _launch(self, b: int) -> None:
        gradients = [g for g in self._slots[b] if g is not None]
        if self.view is not None:
            self.view.send(self.plan.buckets[b].names)
        if self.clip is not None and not self._at_end:
            self.clip.look(gradients)
        self.ledger.add_leftovers(b, gradients, self.clip_scale)
        info = StepInfo(self.step, self.clip_scale / self._unit(b))
        self.conductor.ready(b, gradients, gradients, info)

    def _unit(self, b: int) -> float:
        """Returns the loss scale if what arrives of a bucket has none of its own; else 1."""
        own = self.loss_scale != 1.0 and has_own_unit(self.plan.strategies[b])
        return self.loss_scale if own else 1.0

    def _end(self, error: BaseException | None) -> None:
        try:
            self._take_up(error)
        finally:  # even after an error, as DDP waits for it
            if self.on_end is not None:
                self.on_end(error)

    def _take_up(self, error: BaseException | None) -> None:
        """Finish a step: scale and copy averages, empty the slots, and record what it took."""
        for b, slots in enumerate(self._slots):
            if (unit := self._unit(b)) != 1.0:  # as the scaler unscales these, too
                for average in slots:
                    if average is not None:
                        average.mul_(unit)
        if self.guard is not None:
            for name, (b, i) in self._place.items():
                self.guard.arrived(name, self._slots[b][i])
        for original, flat in self._copied:
            original.copy_(flat.view_as(original))
        self._copied.clear()
        self._slots = [[None] * len(slots) for slots in self._slots]
        finite = error is None and self.ledger.finite
        self.stats.record(self.conductor.trace, error is None and not finite)
        if self.recording is not None:
            self.recording.step_over(self, finite, error)
        if self.clip is not None and not self._at_end:
            self.clip.learn(self.loss_scale)
        if error is None:
            self.taken += finite
            self.ledger.settle()
        self.step += 1


def describe(
    parameters: Mapping[str, nn.Parameter], module: nn.Module | None = None
) -> list[Parameter]:
    """Returns the parameters as a plan describes them. module: their module, which tells which
    gradients are sparse."""
    parts = () if module is None else module.modules()
    tables = {  # by the same rule as DistributedDataParallel
        id(m.weight) for m in parts if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse
    }
    return [
        Parameter(name, tuple(p.shape), str(p.dtype).removeprefix("torch."), id(p) in tables)
        for name, p in parameters.items()
    ]
