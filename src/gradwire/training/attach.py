"""Handles of attached models, and how a plan that is given is attached."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.buckets import Parameter
from gradwire.errors import PlanError, UsageError
from gradwire.pins import Pins
from gradwire.plan import BUCKET_BYTES, Plan
from gradwire.runtime.planes import agreed_pins
from gradwire.runtime.process_groups import (
    attaching,
    find_machines,
    make_group,
)
from gradwire.runtime.torch_dist import Performer
from gradwire.strategy import Strategy
from gradwire.trace import Trace
from gradwire.training.agreed import same_plan
from gradwire.training.attachable import (
    check_carried,
    check_lanes,
    check_parameters,
    check_ready,
    device_of,
)
from gradwire.training.attached import enter, leave
from gradwire.training.copies import Mark
from gradwire.training.ddp import DdpFrontend, inner
from gradwire.training.fsdp import FsdpFrontend, sharded_parameters
from gradwire.training.guard import Guard
from gradwire.training.lanes import lane_performers
from gradwire.training.module import ModuleFrontend
from gradwire.training.moments import give, take
from gradwire.training.optimizer_check import OptimizerCheck
from gradwire.training.own_view import AttachedView
from gradwire.training.recommend import advise
from gradwire.training.session import Session, Settings, describe
from gradwire.training.state import load, state_of, wanted
from gradwire.training.trainable import (
    Frozen,
    excluded,
    is_sharded,
    others,
    shard_of,
    shards_of,
    trainable,
)
from gradwire.warmup import Warmup, at_density

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import StorageReader


class Handle:
    """An attached model. Made by `gradwire.attach`; all ranks hold one."""

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
        """What watches whether the plan does harm, if it was asked for; see `Guard.apart`."""
        self._check = OptimizerCheck(
            session, Frozen(module), self._view, frontend.averages, self.guard
        )
        self._detached = False
        told = session.settings.optimizer
        if isinstance(told, Optimizer) and getattr(told, "asks_the_plan", False):
            take(session, told)

    @property
    def plan(self) -> Plan:
        """The plan in force, the same on every rank."""
        return self._session.plan

    @property
    def attached(self) -> bool:
        """Whether it synchronizes; False after `detach`, and in the child of a fork."""
        return not (self._detached or self._session.conductor.is_orphan)

    @property
    def optimizers(self) -> list[object]:
        """Those that were named to `attach`, or have stepped parameters of this model since."""
        return self._check.optimizers

    @property
    def trace(self) -> Trace:
        """What the last step did, span by span, on this rank."""
        return self._session.conductor.trace

    def no_sync(self) -> AbstractContextManager[None]:
        """Inside, gradients accumulate and nothing is exchanged. Not collective.

        Example:
            >>> (first, targets), (second, others) = batches
            >>> with handle.no_sync():
            ...     loss_of(model(first), targets).backward()
            >>> loss_of(model(second), others).backward()  # exchanges the sum of both
        """
        return self._frontend.no_sync()

    def synchronize(self) -> None:
        """Exchange what `.grad` holds now, without a backward. Collective; not under DDP."""
        self._check_usable()
        self._frontend.synchronize()

    def stats(self) -> dict[str, float]:
        """Means per step since the plan in force was adopted (by attach, `adopt`, or the
        warm-up), of this rank. Not collective.

        steps; bytes_given (of gradient) and bytes_sent; bytes_across (of these, all but what
        moves inside machines); density (fraction of elements sent, NaN where the data decide);
        compute_seconds (from the end of one exchange to the first gradient of the next: data,
        forward, optimizer); backward_seconds (from there on); encode_seconds, wire_seconds,
        decode_seconds (in the lanes); exposed_seconds (waited for after backward); overlap
        (1 - exposed / the lanes' three); residual_norm (now).
        """
        return self._session.stats.read(self._view.waiting)

    def log(self, **numbers: float | Tensor) -> None:
        """Tell a recording of this rank numbers of the step just done, as ``handle.log(loss=…)``.

        Numbers, or tensors of one element, which are waited for. Without a recording
        (`gradwire.record`) nothing happens. Not collective.

        Raises:
            UsageError: something else was told.
        """
        if self._session.recording is not None:
            self._session.recording.log(numbers)

    def state_dict(self) -> dict[str, object]:
        """This rank's residuals and momenta, by parameter name. Loads with weights_only=True.

        In the parameters' shapes, or with `hierarchical` in those of the parts that this rank
        owns; but for "owners_residual", (elements of the piece that this rank owns,),
        "right_factor", (columns, rank) of a matrix, "threshold", (1,), "steps", (1,), and "noise",
        (3,), of `adam`, and "residual/1" to "residual/3" of a path's later compressions.
        The tensors are the live ones; save them before the next forward in training mode,
        optimizer's step or `flush`. Not collective.

        Example:
            >>> rank = torch.distributed.get_rank()
            >>> torch.save(handle.state_dict(), f"gradwire-{rank}.pt")
            >>> handle.load_state_dict(torch.load(f"gradwire-{rank}.pt", weights_only=True))
        """
        self._view.uncover()
        return state_of(self._session)

    def load_state_dict(
        self, state: Mapping[str, object] | Sequence[Mapping[str, object]], *, strict: bool = True
    ) -> None:
        """Resume from this rank's `state_dict`, bit by bit as if there had been no break.

        With another number of ranks, pass a list of all ranks' states: the sum of what waits,
        divided by the number of ranks as the average divides, is kept. strict: by the strategies
        that it was saved with; otherwise what waits passes to this plan, as in `adopt`. Not
        collective, but for all ranks to do.

        Raises:
            PlanError: it is of another model, plan, seed, or number of ranks, or it is not whole;
                nothing has changed then.
        """
        self._check_between_steps()
        load(self._session, state, strict=strict)

    def load_checkpoint(
        self, checkpoint: str | Path | StorageReader, key: str = "gradwire", *, strict: bool = True
    ) -> None:
        """Resume from a checkpoint of torch.distributed.checkpoint, of any number of ranks.

        Saved as ``dcp.save({"model": …, key: handle.state_dict()}, checkpoint_id=checkpoint)``:
        each rank writes its own residuals beside its part of the model. Each reads those that it
        goes on with, as in `load_state_dict`, which says what is raised. Not collective, but for
        all ranks to do.
        """
        self._check_between_steps()
        load(self._session, self._read(checkpoint, key), strict=strict)

    def _read(self, checkpoint: str | Path | StorageReader, key: str) -> dict[str, Any]:
        from gradwire.training.checkpoint import read  # it takes a second to import

        return read(checkpoint, key, partial(wanted, self._session))

    def reset(self) -> None:
        """Drop all that is remembered, residuals and momenta, as if attached anew; steps are
        counted on. Between two steps; not collective, but for all ranks to do."""
        self._check_between_steps()
        self._session.reset()

    def flush(self) -> None:
        """Add the average of all that waits in residuals to `.grad`, in one dense all-reduce;
        nothing waits then. Collective, between two steps; blocks.

        For the optimizer's next step, before an evaluation or a checkpoint that any number of
        ranks may load. Momentum stays. With a GradScaler it has the loss's scale, as gradients
        have.

        Example:
            >>> optimizer.zero_grad()
            >>> handle.flush()
            >>> optimizer.step()
        """
        self._check_between_steps()
        self._check.flush()

    def take_moments(self, optimizer: Optimizer) -> None:
        """Go on with the moments that an optimizer remembers, of the average: those of the
        parameters whose moments this plan keeps (`adam`, `muon`). They leave its state; what the
        plan remembered of these is dropped. Between two steps; not collective, but for all ranks
        to do, with the same moments.

        `attach(…, optimizer=optimizer)` does so by itself, and so does the `load_state_dict` of
        `gradwire.optim.AdamW` and `Muon`, where the plan remembers nothing yet.

        Raises:
            UsageError: it remembers no such moments.
        """
        self._check_between_steps()
        if not take(self._session, optimizer, anew=True):
            raise UsageError(
                "a plan takes over the moments of Adam or Muon, of parameters that it steps by "
                f"'adam' or 'muon'; by '{self._session.plan.main_strategy}' this "
                f"{type(optimizer).__name__} has none of them. Pass the optimizer that trained "
                "until now, with its state, and attach a strategy with adam or muon."
            )

    def give_moments(self, optimizer: Optimizer) -> None:
        """Write the mean of all ranks' moments into an optimizer's state, as training without
        gradwire goes on from, or a checkpoint of torch's AdamW has them: after `flush` and its
        step. The plan keeps its own. Collective, between two steps; blocks.

        Raises:
            UsageError: ranks keep parts of parameters, inside machines or by fully_shard.
        """
        self._check_between_steps()
        give(self._session, optimizer)

    def adopt(self, plan: Plan) -> None:
        """Go on by another plan, between two steps. Collective.

        What waits in residuals goes into those of the new plan, or is added to the next gradients.
        A plan has at most as many lanes as there were when attached; more are not used. Of a
        sharded model it may be another rank's: this one goes by it with its own parts.

        Raises:
            PlanError: it does not fit the model, differs between ranks, asks for machines where
                the first plan did not, or what the old one remembers cannot be passed on (on all
                ranks).
        """
        self._check_between_steps()
        session = self._session
        group = session.performers[0].group
        fitting = same_plan(group, session.device, "adopt", lambda: self._fitting(plan))
        session.adopt(fitting)
        self._view.hook()

    def as_here(self, plan: Plan) -> Plan:
        """A plan as this rank goes by it: of its own parts, where fully_shard has sharded the
        model and the plan is another rank's. Not collective."""
        frontend = self._frontend
        return frontend.part_of(plan) if isinstance(frontend, FsdpFrontend) else plan

    def _fitting(self, plan: Plan) -> Plan:
        """The same, if this session can go on by it."""
        session = self._session
        if not isinstance(plan, Plan):
            raise UsageError(
                f"a model adopts a Plan; got {plan!r}. Make one with Plan.make or load."
            )
        plan = self.as_here(plan)
        plan.check([p for bucket in session.plan.buckets for p in bucket.parameters])
        asked = {s.collective.per_node for s in plan.strategies} - {None}
        if asked - {session.per_node}:
            raise PlanError(
                "a plan that sums inside machines is attached as one, so that their groups exist; "
                f"it asks for per_node={asked}, there is {session.per_node}. Detach, and attach "
                "it."
            )
        group = session.performers[0].group
        check_carried(zip(plan.buckets, plan.strategies), group, session.device)
        session.ledger.check_next(plan)
        return plan

    def detach(self) -> None:
        """Stop synchronizing; what waits in residuals is dropped, and all memory is given back.
        DDP goes back to its own sum, replicas of a sharded model to a dense one. Not collective,
        but for all ranks to do between two steps."""
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

    def _check_usable(self) -> None:
        if self._detached:
            raise UsageError("a detached handle exchanges nothing. Attach the model again.")
        self._session.refuse_failed()

    def _check_between_steps(self) -> None:
        self._check_usable()
        if self._session.under_way:
            raise UsageError(
                "what is remembered, and the plan, change between two steps; the exchange of step "
                f"{self._session.step} is under way, or its backward() was aborted. Call this "
                "after backward(), not in a hook; after an aborted one detach and attach again."
            )
        self._view.leave()


def attach_plan(
    module: nn.Module, plan: str | Strategy | Plan | Path,
    process_group: dist.ProcessGroup | None = None, *,
    bucket_bytes: int = BUCKET_BYTES, buckets: Iterable[Sequence[str]] | None = None,
    exclude: Sequence[str | type[nn.Module]] = (), lanes: int | None = None,
    clip_norm: float | None = None, clip_overlap: bool = False,
    warmup: Warmup | int | None = None, scaler: GradScaler | None = None, seed: int = 0,
    timeout_seconds: float = 300.0, planes: Pins | str | Path | None = None,
    optimizer: object = None, strict: bool = False, guard: bool = False,
    kind: type[Handle] = Handle, wants_machines: bool = False,
) -> Handle:  # fmt: skip
    """Synchronize a model's gradients by a plan, from the next backward on. Collective.

    Arguments, result and errors are those of `gradwire.attach`, which adds plan="auto"; but for

    Args:
        kind: of the handle.
        wants_machines: have groups of ranks inside machines for plans that are adopted later,
            though this one needs none. Not made where machines differ in their number of ranks.
    """
    warmup = Warmup(warmup) if isinstance(warmup, int | float) else warmup
    settings = Settings(
        clip_norm, clip_overlap, seed, warmup, strict, timeout_seconds, optimizer, guard
    )
    check_ready(module, process_group, lanes, settings)
    module = inner(module)
    ddp = module if isinstance(module, DistributedDataParallel) else None
    if ddp is not None and process_group is None:
        process_group = ddp.process_group
    sharded = ddp is None and is_sharded(module)
    if sharded:
        parameters = sharded_parameters(module, process_group, clip_norm)
    else:
        parameters = trainable(module)
    device = device_of(parameters)
    check_parameters(parameters)
    check_lanes(lanes, process_group, device)
    group = make_group(process_group, timeout_seconds, device)
    lanes = lanes or (2 if device.type == "cpu" else 1)
    try:
        described = describe(shards_of(parameters), module)
        agreed = same_plan(
            group, device, f"{settings} {scaler is not None}",
            lambda: _resolve(
                plan, described, settings, group, bucket_bytes=bucket_bytes,
                buckets=buckets, lanes=lanes, dense=excluded(module, parameters, exclude),
                others=others(module, optimizer),
                everywhere=trainable(module) if sharded else (),
            ),
        )  # fmt: skip
        machines = find_machines(agreed, group, device, wants_machines)
        pinned = None if planes is None else agreed_pins(planes, group, device)
    except Exception:
        Performer(group).close()
        raise
    performers = lane_performers(
        agreed, group, process_group, machines, pinned, timeout_seconds, device
    )
    if ddp is None:
        broadcast(module, performers[0].group)
    session = Session(parameters, agreed, performers, settings, machines=machines, scaler=scaler)
    try:
        frontend = _frontend(session, module, process_group)
    except UsageError:
        session.close()
        raise
    return kind(session, frontend, module)


def _frontend(
    session: Session, module: nn.Module, process_group: dist.ProcessGroup | None
) -> ModuleFrontend | DdpFrontend | FsdpFrontend:
    if isinstance(module, DistributedDataParallel):
        return DdpFrontend(session, module)
    if is_sharded(module):
        return FsdpFrontend(session, module, process_group)
    return ModuleFrontend(session)


def _resolve(
    asked: str | Strategy | Plan | Path, parameters: Sequence[Parameter], settings: Settings,
    group: dist.ProcessGroup, *, dense: Sequence[str], everywhere: Collection[str],
    **grouping: Any,
) -> Plan:  # fmt: skip
    """The plan that is asked for; grouping: as of `Plan.make`; everywhere: as of `Plan.of_parts`.
    PlanError where it does not fit, UsageError where a strict one is unsound."""
    plan = _asked(asked, parameters, dense, everywhere, grouping)
    if settings.warmup is not None:
        for density in settings.warmup.densities:
            at_density(plan, density, group.size())
    if settings.optimizer is not None:
        advise(
            plan.strategies, settings.optimizer, group.size(), strict=settings.strict,
            warmup=settings.warmup, quiet=group.rank() > 0,
        )  # fmt: skip
    return plan


def _asked(
    asked: str | Strategy | Plan | Path, parameters: Sequence[Parameter], dense: Sequence[str],
    everywhere: Collection[str], grouping: Mapping[str, Any],
) -> Plan:  # fmt: skip
    if isinstance(asked, str) and "|" not in asked and asked.endswith(".json"):
        asked = Path(asked)
    if isinstance(asked, Path):
        asked = Plan.load(asked)
    if isinstance(asked, Plan):
        if dense:
            raise PlanError(
                "a plan says itself how each parameter travels; exclude was given, too, for "
                f"{', '.join(dense[:5])}. Leave it out, or attach a strategy."
            )
        if everywhere:
            asked = asked.of_parts(parameters, everywhere)
        asked.check(parameters)
        return asked
    strategy = Strategy.parse(asked) if isinstance(asked, str) else asked
    if not isinstance(strategy, Strategy):
        raise UsageError(
            "a plan is a strategy's text, a Strategy, a Plan or the path of one; got "
            f"{strategy!r}. Use for example 'topk(0.01)+ef | allgather'."
        )
    return Plan.make(parameters, strategy, dense=dense, **grouping)


@torch.no_grad()
def broadcast(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Rank 0's parameters and buffers, everywhere, as DDP begins.

    As bytes, row by row: backends do not know all dtypes, and take memory as it lies, while ranks
    may lay out a tensor differently, with gaps, or one element for many.
    """
    source = dist.get_process_group_ranks(group)[0]
    with attaching():
        for tensor in (*module.parameters(), *module.buffers()):
            own = _without_repeats(shard_of(tensor).detach())
            dense = own.contiguous()
            dist.broadcast(dense.view(-1).view(torch.uint8), src=source, group=group)
            if dense.data_ptr() != own.data_ptr():
                own.copy_(dense)


def _without_repeats(tensor: Tensor) -> Tensor:
    """One of the many indices that an expanded tensor has for each element."""
    for dim in reversed(range(tensor.dim())):
        if tensor.numel() and tensor.stride(dim) == 0:
            tensor = tensor.select(dim, 0)
    return tensor
