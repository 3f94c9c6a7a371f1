"""The handle of an attached model, and how a given plan is attached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.errors import PlanError, UsageError
from gradwire.pins import Pins
from gradwire.plan import BUCKET_BYTES, Plan
from gradwire.runtime.planes import agreed_pins
from gradwire.runtime.process_groups import find_machines, make_group
from gradwire.runtime.torch_dist import Performer
from gradwire.soundness import leaves_moments
from gradwire.strategy import Strategy
from gradwire.trace import Trace
from gradwire.training.agreed import on_all, same_plan
from gradwire.training.asked import asked_plan
from gradwire.training.attachable import (
    check_carried,
    check_lanes,
    check_parameters,
    check_ready,
    device_of,
    likely_device,
)
from gradwire.training.attached import enter, leave
from gradwire.training.broadcast import broadcast
from gradwire.training.copies import Attached, Mark
from gradwire.training.ddp import DdpFrontend, inner
from gradwire.training.fsdp import FsdpFrontend, sharded_parameters
from gradwire.training.guard import Guard
from gradwire.training.lanes import lane_performers
from gradwire.training.module import ModuleFrontend
from gradwire.training.moments import give, take
from gradwire.training.optimizer_check import OptimizerCheck
from gradwire.training.own_view import AttachedView
from gradwire.training.same_weights import CHECK_EVERY, SameWeights
from gradwire.training.session import Session, Settings, describe
from gradwire.training.state import load, state_of, wanted
from gradwire.training.trainable import (
    Frozen,
    excluded,
    is_sharded,
    others,
    shards_of,
    trainable,
)
from gradwire.warmup import Warmup

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import StorageReader


class Handle(Attached):
    """An attached model. Made by `gradwire.attach`; all ranks hold one.

    Methods that change the plan, residuals or momenta raise UsageError while an exchange is under
    way, after one that failed, and after `detach`.
    """

    def __init__(
        self, session: Session, frontend: ModuleFrontend | DdpFrontend | FsdpFrontend,
        module: nn.Module,
    ) -> None:  # fmt: skip
        self._session, self._frontend = session, frontend
        plain = type(frontend) is ModuleFrontend
        self._mark = Mark(module, session.parameters) if plain else None
        self._view = AttachedView(session, module)
        enter(session.parameters, session, self.detach)
        self.guard = session.guard = Guard(session) if session.settings.guard else None
        """Watches whether the plan does harm; None if `attach` was asked for none. Its `apart` are
        the distances at the end of each window, its `harmed` whether one was too large."""
        every = session.settings.check_every
        self._same = SameWeights(session, every, lambda: self.optimizers) if every else None
        session.compare = self._same.look if self._same else None
        self._check = OptimizerCheck(
            session, Frozen(module), self._view, frontend.averages, self.guard
        )
        self._detached = False

    @property
    def plan(self) -> Plan:
        """The plan in force, the same on every rank: during a warm-up the warm-up's, which is
        denser. Save it, or adopt it again, after the warm-up."""
        return self._session.plan

    @property
    def step(self) -> int:
        """The number of exchanges so far, the same on every rank, also on one that came later. A
        loaded state brings its own: a resumed run counts on."""
        return self._session.step

    @property
    def attached(self) -> bool:
        """Whether gradients are synchronized; False after `detach`, and in a forked child. After
        an exchange that failed it stays True, and every further backward raises UsageError."""
        return not (self._detached or self._session.conductor.is_orphan)

    @property
    def is_tuning(self) -> bool:
        """Whether plan="auto" still looks for plans, or may look again."""
        return False

    @property
    def optimizers(self) -> list[object]:
        """The optimizer passed to `attach`, or else those that have stepped this model since."""
        return self._check.optimizers

    @property
    def trace(self) -> Trace:
        """The spans of the last step on this rank."""
        return self._session.conductor.trace

    def no_sync(self) -> AbstractContextManager[None]:
        """A context in which gradients accumulate and nothing is exchanged. Not collective.

        Example:
            >>> (first, targets), (second, others) = batches
            >>> with handle.no_sync():
            ...     loss_of(model(first), targets).backward()
            >>> loss_of(model(second), others).backward()  # exchanges the sum of both
        """
        return self._frontend.no_sync()

    def synchronize(self) -> None:
        """Exchange the gradients in `.grad` without a backward; missing ones count as zeros.
        Collective; blocks. A rank whose loss reaches no parameter calls it, while the others'
        backward waits.

        Raises:
            UsageError: the model is in DDP, where each exchange is part of a backward.
        """
        self._check_usable()
        self._frontend.synchronize()

    def stats(self) -> dict[str, float]:
        """Returns this rank's means per step since the plan in force was adopted (by attach,
        `adopt`, or the warm-up). Not collective.

        steps; bytes_given (of gradient) and bytes_sent; bytes_across (those of bytes_sent that
        leave the machine); density (fraction of elements sent, NaN if it depends on the data, or
        the collective compresses by itself, as `powersgd`); compute_seconds (from the end of one
        exchange to the first gradient of the next: data, forward, optimizer); backward_seconds
        (from there to the end of backward); encode_seconds, wire_seconds, decode_seconds (in the
        lanes); exposed_seconds (wait after backward); overlap (1 - exposed / the sum of the lanes'
        three, at least 0); residual_norm (the 2-norm of all residuals, now).
        """
        return self._session.stats.read(self._view.waiting)

    def log(self, **numbers: float | Tensor) -> None:
        """Write numbers of the last step into this rank's recording, as ``handle.log(loss=…)``.

        numbers: floats, or tensors of one element, for which the call blocks. Does nothing without
        a recording (`gradwire.record`). Not collective.

        Raises:
            UsageError: a value is neither.
        """
        if self._session.recording is not None:
            self._session.recording.log(numbers)

    def state_dict(self) -> dict[str, object]:
        """Returns this rank's residuals and momenta, by parameter name; torch.load reads them with
        weights_only=True.

        Tensors have the parameters' shapes, or with `hierarchical` those of the parts that this
        rank owns. Exceptions: "owners_residual", (elements of the piece that this rank owns,),
        "right_factor", (columns, rank) of a matrix, "threshold", (1,), "steps", (1,), of `adam`,
        "noise", (3,), of `adam` and `muon`, and "residual/1" to "residual/3" of a path's later
        compressions.
        The tensors are not copies; save them before the next forward in training mode,
        optimizer's step or `flush`. Not collective.

        Raises:
            UsageError: an exchange is under way, as in a hook or a handler of signals.

        Example:
            >>> rank = torch.distributed.get_rank()
            >>> torch.save(handle.state_dict(), f"gradwire-{rank}.pt")
            >>> handle.load_state_dict(torch.load(f"gradwire-{rank}.pt", weights_only=True))
        """
        self._uncover()
        return state_of(self._session)

    def load_state_dict(
        self, state: Mapping[str, object] | Sequence[Mapping[str, object]], *, strict: bool = True
    ) -> None:
        """Resume from this rank's `state_dict`, bit by bit as if there had been no break.

        If the number of ranks has changed, pass a list of all ranks' states: the mean of all
        residuals over the ranks is kept. strict: refuse a state that was saved with other
        strategies; otherwise its residuals pass to this plan, as in `adopt`. Not collective, but
        all ranks must call it.

        Raises:
            PlanError: the state is of another model, plan, seed, or number of ranks, or it is
                incomplete; nothing has changed then.
        """
        self._check_between_steps()
        load(self._session, state, strict=strict)

    def load_checkpoint(
        self, checkpoint: str | Path | StorageReader, key: str = "gradwire", *, strict: bool = True
    ) -> None:
        """Resume from a checkpoint of torch.distributed.checkpoint, of any number of ranks.

        Save it by ``dcp.save({"model": …, key: handle.state_dict()}, checkpoint_id=checkpoint)``:
        each rank writes its own residuals beside its part of the model. Here each rank reads the
        states that it needs, as in `load_state_dict`, which lists the errors. torch unpickles
        parts of the folder: load only one that you trust as your own code. Not collective, but
        all ranks must call it.
        """
        self._check_between_steps()
        load(self._session, self._read(checkpoint, key), strict=strict)

    def _read(self, checkpoint: str | Path | StorageReader, key: str) -> dict[str, Any]:
        from gradwire.training.checkpoint import read  # it takes a second to import

        return read(checkpoint, key, partial(wanted, self._session))

    def reset(self) -> None:
        """Drop all residuals and momenta, as if the model were attached anew; the step count goes
        on. Call it between two steps; not collective, but all ranks must call it."""
        self._check_between_steps()
        self._session.reset()

    def flush(self) -> None:
        """Add the average of all residuals to `.grad`, by dense all-reduces, and clear them.
        Collective, between two steps; blocks.

        The optimizer's next step applies it, before an evaluation or a checkpoint that any number
        of ranks may load. Momentum stays. With a GradScaler the average is scaled as gradients
        are.

        Example:
            >>> optimizer.zero_grad()
            >>> handle.flush()
            >>> optimizer.step()

        Raises:
            UsageError: amid an exchange, or gradients in float16 cannot hold it; residuals stay.
        """
        self._check_between_steps()
        self._check.flush()
        if isinstance(self._frontend, FsdpFrontend):
            self._frontend.fill()

    def take_moments(self, optimizer: Optimizer) -> None:
        """Move an optimizer's moments of the averaged gradient into the plan, for the parameters
        whose moments this plan keeps (`adam`, `muon`). They leave the optimizer's state; what the
        plan remembered of these parameters is dropped. Call it between two steps; not collective,
        but all ranks must call it, with the same moments.

        `attach(…, optimizer=optimizer)` does so by itself, and so does the `load_state_dict` of
        `gradwire.optim.AdamW` and `Muon`, for parameters of which the plan remembers nothing yet.

        Raises:
            UsageError: the optimizer has no such moments.
        """
        self._check_between_steps()
        if not take(self._session, optimizer, anew=True):
            raise UsageError(
                "take_moments needs an optimizer with moments of Adam or Muon, and a plan with "
                f"the feedback 'adam' or 'muon'; for '{self._session.plan.main_strategy}' this "
                f"{type(optimizer).__name__} has none. Pass the optimizer that trained until now, "
                "with its state, and attach a strategy with adam or muon."
            )

    def give_moments(self, optimizer: Optimizer) -> None:
        """Write the mean of all ranks' moments into an optimizer's state, so that training can go
        on without gradwire, or for a checkpoint of torch's AdamW. Call it after `flush` and the
        step that applies it. The plan keeps its own. Parameters whose moments it does not keep
        (all but those with `adam` and `muon`) stay as they are. Collective, between two steps;
        blocks.

        Raises:
            UsageError: ranks keep parts of parameters, inside machines or by fully_shard; the
                optimizer steps by other moments than the plan keeps; or no step was taken since
                the number of ranks has changed.
        """
        self._check_between_steps()
        give(self._session, optimizer)

    def adopt(self, plan: Plan) -> None:
        """Switch to another plan, between two steps. Collective.

        Residuals pass to those of the new plan, or are added to the next gradients. At most as
        many lanes are used as there were when the model was attached. For a sharded model the plan
        may be another rank's: this rank applies it to its own parts.

        Raises:
            UsageError: it is no `Plan`, such as a strategy's text.
            PlanError: the plan does not fit the model, differs between ranks, sums inside machines
                while the first plan did not, or what the old plan remembers cannot be passed on
                (on all ranks).
        """
        self._check_still()
        session = self._session
        first, circle = session.performers[0], session.circle

        def agree() -> Plan:
            return same_plan(first.group, session.device, "adopt", lambda: self._fitting(plan))

        rule = "a sharded model must change plans on all ranks that keep parts of it"
        session.adopt(agree() if circle is first else on_all(circle, agree, rule))
        self._view.hook()

    def as_here(self, plan: Plan) -> Plan:
        """Returns the plan for this rank's own parts, if fully_shard has sharded the model and the
        plan is another rank's; otherwise the plan itself. Not collective."""
        frontend = self._frontend
        return frontend.part_of(plan) if isinstance(frontend, FsdpFrontend) else plan

    def _fitting(self, plan: Plan) -> Plan:
        """Returns the plan as this rank applies it; raises if this session cannot switch to it."""
        session = self._session
        if not isinstance(plan, Plan):
            raise UsageError(
                f"adopt takes a Plan; got {plan!r}. Make one with Plan.make or Plan.load."
            )
        plan = self.as_here(plan)
        plan.check([p for bucket in session.plan.buckets for p in bucket.parameters])
        asked = {s.collective.per_node for s in plan.strategies} - {None}
        if asked - {session.per_node}:
            raise PlanError(
                "adopt cannot make the groups by which a plan sums inside machines; it needs "
                f"per_node={asked}, the attached plan has {session.per_node}. Detach, and attach "
                "this plan."
            )
        group = session.performers[0].group
        check_carried(zip(plan.buckets, plan.strategies), group, session.device)
        session.ledger.check_next(plan)
        return plan

    def detach(self) -> None:
        """Stop synchronizing. Residuals are not sent any more (call `flush` before if they shall
        be), and are freed with the handle. DDP goes back to its own all-reduce, replicas of a
        sharded model to a dense one. Not collective, but all ranks must call it, between two
        steps; a second call does nothing."""
        if self._session.recording is not None:
            self._session.recording.close()
        self._check.close()
        self._view.close()
        self._frontend.close()
        self._session.close()
        if self._mark is not None:
            self._mark.remove()
        leave(self._session.parameters.values(), self.detach)
        self._detached = True

    def _become(self, other: Handle) -> None:
        """Be another handle of the same module, which whoever holds this one need not know of."""
        self.__dict__ = other.__dict__
        enter(self._session.parameters, self._session, self.detach)

    def _uncover(self) -> None:
        """Make residuals readable; raise UsageError while lanes write them."""
        session = self._session
        if session.under_way and not session.failed:
            raise UsageError(
                "a state can be saved only between two steps; the exchange of step "
                f"{session.step} is under way, or its backward() was aborted. Save after the "
                "optimizer's step: in a hook or a handler of signals only set a flag, and look at "
                "it there."
            )
        self._view.uncover()

    def _check_usable(self) -> None:
        if self._detached:
            raise UsageError("this handle was detached. Attach the model again.")
        self._session.refuse_failed()

    def _check_between_steps(self) -> None:
        self._check_still()
        self._view.leave()

    def _check_still(self) -> None:
        """Check that no exchange is under way. Weights stay at the own view: "auto" adopts plans
        amid a backward, which needs the weights of its forward."""
        self._check_usable()
        if self._session.under_way:
            raise UsageError(
                "the plan and the residuals can change only between two steps; the exchange of "
                f"step {self._session.step} is under way, or its backward() was aborted. Call "
                "this after backward(), not in a hook; after an aborted one detach and attach "
                "again."
            )


def attach_plan(
    module: nn.Module, plan: str | Strategy | Plan | Path,
    process_group: dist.ProcessGroup | None = None, *,
    bucket_bytes: int = BUCKET_BYTES, buckets: Iterable[Sequence[str]] | None = None,
    exclude: Sequence[str | type[nn.Module]] = (), lanes: int | None = None,
    clip_norm: float | None = None, clip_overlap: bool = False,
    warmup: Warmup | int | None = None, scaler: GradScaler | None = None, seed: int = 0,
    timeout_seconds: float = 300.0, planes: Pins | str | Path | None = None,
    optimizer: object = None, strict: bool = False, guard: bool = False,
    check_every: int | None = CHECK_EVERY,
    kind: type[Handle] = Handle, wants_machines: bool = False,
) -> Handle:  # fmt: skip
    """Synchronize a model's gradients by a plan, from the next backward on. Collective.

    Arguments, result and errors are those of `gradwire.attach`, which adds plan="auto". More
    arguments here:

    Args:
        kind: the class of the handle.
        wants_machines: make groups of ranks inside machines for plans that are adopted later,
            though this one needs none. Not made if machines differ in their number of ranks.
    """
    warmup = Warmup(warmup) if isinstance(warmup, int | float) else warmup
    settings = Settings(
        clip_norm, clip_overlap, seed, warmup, strict, timeout_seconds, optimizer, guard,
        check_every,
    )  # fmt: skip
    check_ready(module, process_group, lanes, settings, scaler)
    module = inner(module)
    ddp = module if isinstance(module, DistributedDataParallel) else None
    process_group = process_group or getattr(ddp, "process_group", None)
    sharded = ddp is None and is_sharded(module)
    parameters, device, problem = _attachable(module, process_group, lanes, clip_norm, sharded)

    def find() -> Plan:
        if problem is not None:
            raise problem
        return asked_plan(
            plan, describe(shards_of(parameters), module), settings, group,
            bucket_bytes=bucket_bytes, buckets=buckets,
            lanes=lanes or (2 if device.type == "cpu" else 1),
            dense=excluded(module, parameters, exclude), others=others(module, optimizer),
            everywhere=trainable(module) if sharded else (),
        )  # fmt: skip

    with ExitStack() as made:  # closes what was made if anything fails
        group = make_group(process_group, timeout_seconds, device)
        made.callback(Performer(group).close)
        found = "found on the job" if wants_machines else "as given"
        given = f"plan {found}, {'without' if planes is None else 'with'} planes"
        agreed = same_plan(group, device, f"{given}, {settings} {scaler is not None}", find)
        machines = find_machines(agreed, group, device, wants_machines)
        pinned = None if planes is None else agreed_pins(planes, group, device)
        performers = lane_performers(
            agreed, group, process_group, machines, pinned, timeout_seconds, device, made
        )
        if ddp is None:
            broadcast(module, performers[0].group)
        session = Session(
            parameters, agreed, performers, settings, machines=machines, scaler=scaler
        )
        made.callback(session.close)
        frontend = _frontend(session, module, process_group)
        made.callback(frontend.close)
        handle = kind(session, frontend, module)
        made.callback(handle.detach)
        if isinstance(optimizer, Optimizer) and leaves_moments(optimizer):
            take(session, optimizer)
        made.pop_all()
    return handle


def _attachable(
    module: nn.Module, group: dist.ProcessGroup | None, lanes: int | None,
    clip_norm: float | None, sharded: bool,
) -> tuple[Mapping[str, nn.Parameter], torch.device, UsageError | None]:  # fmt: skip
    """Returns the parameters to attach, and their device; or why this rank cannot attach them,
    and the device of which the other ranks' are likely to be, which wait to hear of it."""
    try:
        parameters = sharded_parameters(module, group, clip_norm) if sharded else trainable(module)
        device = device_of(parameters)
        check_parameters(parameters)
        check_lanes(lanes, group, device)
    except UsageError as problem:
        return {}, likely_device(module), problem
    return parameters, device, None


def _frontend(
    session: Session, module: nn.Module, process_group: dist.ProcessGroup | None
) -> ModuleFrontend | DdpFrontend | FsdpFrontend:
    if isinstance(module, DistributedDataParallel):
        return DdpFrontend(session, module)
    if is_sharded(module):
        return FsdpFrontend(session, module, process_group)
    return ModuleFrontend(session)
