"""gradwire.attach: uses a given plan, or finds one on the running job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler

from gradwire.dynamics import PLAIN, Dynamics, all_dynamics, has_vectors_apart
from gradwire.errors import GradwireError, PlanError, StrategyError, UsageError
from gradwire.pins import Pins
from gradwire.plan import BUCKET_BYTES, Plan
from gradwire.planner.candidates import FP32
from gradwire.planner.paths import example, is_pattern
from gradwire.runtime.ledger import keeps_steps
from gradwire.strategy import Strategy
from gradwire.training.agreed import on_all, same_everywhere
from gradwire.training.attach import Handle, attach_plan
from gradwire.training.attachable import check_carried, check_group, check_module
from gradwire.training.ddp import inner
from gradwire.training.fsdp import join_circle, sharded_parameters
from gradwire.training.same_weights import CHECK_EVERY
from gradwire.training.session import Session
from gradwire.training.state import load, poured_state_of, state_of
from gradwire.training.survivors import attach_for_survivors, check_survivors
from gradwire.training.trainable import is_sharded, resharded, shard_of, trainable
from gradwire.tuning import profile_only
from gradwire.tuning.auto import Tuner
from gradwire.tuning.profiling import beside_moments, usual_strategies
from gradwire.warmup import Warmup

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import StorageReader


class TunedHandle(Handle):
    """A model whose plan is found while it trains. tuner: finds the plan, once it has begun."""

    tuner: Tuner | None = None

    @property
    def is_tuning(self) -> bool:
        """Whether the tuner still looks for plans, or may look again."""
        return self.tuner is not None and not self.tuner.is_over

    def state_dict(self) -> dict[str, object]:
        """Returns this rank's residuals, all in the form that is added to the next gradients: it
        loads under any plan, as another one may be in force when the job is resumed. Where plans
        keep moments, returns the whole state. Loads with weights_only=True. Not collective."""
        self._uncover()
        if dynamics_of(self.plan) == PLAIN:
            return poured_state_of(self._session)
        return state_of(self._session)

    def load_state_dict(
        self, state: Mapping[str, object] | Sequence[Mapping[str, object]], *, strict: bool = True
    ) -> None:
        """Resumes, as `Handle.load_state_dict` does. strict: the strategies in force when it was
        saved must have the same dynamics as the plan, but need not be the same."""
        self._check_between_steps()
        load(self._session, state, strict="alike" if strict else False)

    def load_checkpoint(
        self, checkpoint: str | Path | StorageReader, key: str = "gradwire", *, strict: bool = True
    ) -> None:
        """Resumes from a checkpoint of torch.distributed.checkpoint, as `load_state_dict` does."""
        self.load_state_dict(self._read(checkpoint, key), strict=strict)

    def adopt(self, plan: Plan) -> None:
        super().adopt(plan)
        self._close_tuner()

    def detach(self) -> None:
        self._close_tuner()
        super().detach()

    def _close_tuner(self) -> None:
        if self.tuner is not None:
            self.tuner.close()


def attach(
    module: nn.Module, plan: str | Strategy | Plan | Path = "auto",
    process_group: dist.ProcessGroup | None = None, *,
    strategies: Sequence[str] | None = None,
    bucket_bytes: int = BUCKET_BYTES, buckets: Iterable[Sequence[str]] | None = None,
    exclude: Sequence[str | type[nn.Module]] = (), lanes: int | None = None,
    clip_norm: float | None = None, clip_overlap: bool = False,
    warmup: Warmup | int | None = None, scaler: GradScaler | None = None, seed: int = 0,
    timeout_seconds: float = 300.0, planes: Pins | str | Path | None = None,
    optimizer: object = None, strict: bool = False, guard: bool | None = None,
    check_every: int | None = CHECK_EVERY, on_failure: Literal["raise", "shrink"] = "raise",
) -> Handle:  # fmt: skip
    """Synchronizes a model's gradients by a plan, from the next backward on. Collective.

    Args:
        module: a plain module (its parameters and buffers are broadcast from rank 0, as DDP
            does), a `DistributedDataParallel` (gradwire registers its one comm hook), or one that
            fully_shard has sharded inside replicas (docs/fsdp.md). Its parameters are float32,
            bfloat16 or float16; or, by 'none | allreduce' and 'none | allgather', float64.
        plan: "auto", a strategy ("topk(0.01)+ef | allgather"), a `Strategy`, a `Plan`, or the path
            of a saved plan. A plan has its own buckets and lanes.
            "auto" begins as plain fp32, watches some steps, measures for about half a minute, lets
            the best plans race on real steps beside tuned fp32 and bf16, and adopts the winner; it
            plans again when steps become much slower or faster. It chooses the buckets, so it
            takes no buckets, bucket_bytes or exclude. For a sharded model all ranks that keep
            parts of it take part, and use one plan.
        process_group: the ranks that average; by default DDP's own group, or the default group.
            For a sharded model it is the replicate group.
        strategies: for "auto", the strategies allowed besides fp32 and bf16 all-reduce;
            "topk(0.01)+ef | paths" stands for all paths of its compressor that fit the machines
            (docs/plan.md).
        bucket_bytes: cap of a bucket, in bytes of gradient. Tables with sparse gradients, whose
            size is not known, share a bucket with their neighbours.
        buckets: explicit buckets, as lists of parameter names; the rest is grouped by size.
        lanes: buckets under way at once; each lane is a thread with its own process group. By
            default two on CPUs (benchmarks/demo) and one on CUDA.
        exclude: what is not compressed, besides vectors: names of parameters, as "embedding.*",
            and types of modules, as torch.nn.Embedding.
        clip_norm: clip each rank's gradient at √N times this norm, which stands for clipping the
            average at this; with `adam`, which divides by the gradient's length, at this itself.
            The norm is exact, so the exchange then begins after backward.
        clip_overlap: clip by the norm of the step before instead, so that the exchange need not
            wait for the end of backward.
        warmup: `gradwire.Warmup`, or its number of steps: the first steps send more. With "auto"
            they send everything, and a plan is adopted only after them.
        scaler: the `torch.amp.GradScaler` of the loss, so that residuals follow its scale, and
            steps (`adam`, `muon`) are made without it.
        seed: the seed of stochastic compressors, a whole number of at most 64 bits.
        timeout_seconds: how long to wait for a silent peer; PeerError follows.
        planes: pins of a network plan (`gradwire network export --format pins`), or the path of a
            file of them. Messages between pairs of ranks then take these paths; sums, too, go
            from pair to pair. Each rank's GRADWIRE_HOST says which host of the plan it is on, and
            its GRADWIRE_PLANES lists its addresses, one for every path, with commas. Gloo only.
        optimizer: the optimizer, or its name, as "adamw". A strategy that is not known to be
            sound with it gives a `SoundnessWarning` now, on rank 0, which names one that is;
            without this argument, the warning comes when an optimizer first steps.
        strict: refuse a strategy that is known to be unsound with the optimizer (UsageError).
        guard: compare, in the first 40 steps and in 40 of every 1,000, where the weights go with
            where dense gradients would take them, and warn if they differ (docs/training.md).
            On by default with "auto", which then goes back to dense.
        check_every: compare the weights of all ranks after so many exchanges, again and again. If
            they differ, a message or memory was damaged, or a rank stepped otherwise than others:
            PayloadError on all ranks, or, where it is rounding, rank 0's weights for all. None:
            ranks may differ.
        on_failure: what happens when a rank is lost. "raise": PeerError on all others. "shrink":
            they go on without it (docs/checkpoints.md).

    Returns:
        The handle. `loss.backward()` now blocks until the averages of all ranks are in `.grad`,
        and raises what went wrong in the exchange: PeerError, PayloadError, or UsageError.

    Example:
        >>> handle = gradwire.attach(model, "topk(0.01)+ef | allgather", optimizer=optimizer)
        >>> for inputs, targets in batches:
        ...     optimizer.zero_grad()
        ...     loss_of(model(inputs), targets).backward()  # returns with the average in .grad
        ...     optimizer.step()
        >>> handle.stats()["steps"]
        2.0

    Raises:
        StrategyError, PlanError: the plan cannot be read or does not fit the model, or an argument
            differs between ranks (on all ranks).
        UsageError: this module cannot be attached, another argument is wrong, or machines differ
            in their number of ranks where the plan needs equal ones.
        PeerError: another rank did not call `attach` within the timeout, or could not even begin.
            Other errors of one rank alone are a PlanError on the others.
    """
    is_auto, only_profiled, first = plan == "auto", profile_only.is_asked(), plan
    finds = is_auto or only_profiled
    check_module(module)
    _check_named(plan)
    check_survivors(on_failure, module, process_group, optimizer, scaler)
    if finds:
        _check_dtypes(module, 'plan="auto"' if is_auto else "gradwire profile")
    if is_auto:
        groups_given = buckets is not None or bucket_bytes != BUCKET_BYTES or bool(exclude)
        _check_auto(groups_given)
        usual = beside_moments(optimizer)
        first, exclude = _first(inner(module), usual if strategies is None else strategies)
    elif strategies is not None:
        raise UsageError(
            'strategies can be passed only with plan="auto", which chooses among them; another '
            "plan was given. Leave them out."
        )
    if finds:  # buckets for every lane, so that several lanes can be tried
        first = first if is_auto else FP32
        bucket_bytes = min(bucket_bytes, _bytes(module) // 4 + 1)
    attach_plainly = partial(
        attach_plan, module, first, process_group, bucket_bytes=bucket_bytes, buckets=buckets,
        exclude=exclude, lanes=lanes, clip_norm=clip_norm, clip_overlap=clip_overlap,
        warmup=warmup, scaler=scaler, seed=seed, timeout_seconds=timeout_seconds,
        wants_machines=finds, planes=planes, optimizer=optimizer, strict=strict,
        guard=is_auto if guard is None else guard, check_every=check_every,
        kind=TunedHandle if is_auto and not only_profiled else Handle,
    )  # fmt: skip
    tuned = partial(_tuned, module=module, strategies=strategies, warmup=warmup)
    if is_sharded(module):
        check_group(process_group)
        sharded_parameters(module, process_group, clip_norm)  # raises on all ranks or none
        handle = tuned(_on_all(module, process_group, timeout_seconds, attach_plainly))
    elif on_failure == "shrink" and not only_profiled:
        handle = attach_for_survivors(module, lambda: tuned(attach_plainly()))
    else:
        handle = tuned(attach_plainly())
    if only_profiled:
        profile_only.profile_and_exit(module, handle)
    return handle


def _tuned(
    handle: Handle, *, module: nn.Module, strategies: Sequence[str] | None,
    warmup: Warmup | int | None,
) -> Handle:  # fmt: skip
    """Gives the handle of a plan that is to be found its tuner. Collective. strategies, warmup: as
    in `attach`."""
    if not isinstance(handle, TunedHandle):
        return handle
    try:
        usual = usual_strategies(handle._session)
        wanted = _agreed(handle, usual if strategies is None else strategies)
    except Exception:
        handle.detach()
        raise
    late = Warmup(warmup).steps if isinstance(warmup, int) else warmup.steps if warmup else 0
    handle.tuner = Tuner(module, handle, wanted, late)
    return handle


def _bytes(module: nn.Module) -> int:
    """Returns the bytes of this rank's gradients, in fp32."""
    return sum(4 * shard_of(p).numel() for p in resharded(module).values())


def _on_all(
    module: nn.Module, group: dist.ProcessGroup | None, timeout_seconds: float,
    attach_here: Callable[[], Handle],
) -> Handle:  # fmt: skip
    """Attaches a sharded model on all ranks that keep parts of it, or on none: PlanError where
    another rank could not."""
    every = resharded(module)  # also parameters without a part on this rank
    circle, made = join_circle(every, group, timeout_seconds), list[Handle]()

    def own() -> Handle:
        made.append(attach_here())
        made[0]._session.circle = circle
        return made[0]

    try:
        rule = "a sharded model must be attached on all ranks that keep parts of it"
        return on_all(circle, own, rule)
    except Exception:
        for handle in made:
            handle.detach()
        raise


def _first(module: nn.Module, strategies: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the strategy that "auto" begins with, which sends everything whole, with the
    dynamics of the allowed strategies; and the names of parameters that travel as vectors do. An
    error in the strategies is raised later, on all ranks."""
    try:
        whole = _whole(strategies)
    except GradwireError:
        return FP32, []
    own = resharded(module) if has_vectors_apart(Strategy.parse(whole)) else {}
    planned = (p for p in own.items() if not is_sharded(module) or shard_of(p[1]).numel())
    return whole, [name for name, p in planned if p.dim() <= 1]


def _whole(strategies: Sequence[str]) -> str:
    """Returns the strategy that sends everything whole, with the dynamics of these; PlanError if
    there is none."""
    is_list = isinstance(strategies, Sequence) and not isinstance(strategies, str)
    if not is_list or not all(isinstance(s, str) for s in strategies):
        given = strategies if isinstance(strategies, str) else FP32
        raise PlanError(
            f"strategies must be a list of strings; got {strategies!r}. Pass for example "
            f"[{given!r}]."
        )
    strategies = [example(text) for text in strategies]
    found = all_dynamics(map(Strategy.parse, strategies))
    if len(found) > 1:
        texts = ", ".join(f"'{text}'" for text in strategies)
        raise PlanError(
            'plan="auto" switches between strategies during training, so all must treat momentum '
            f"alike; of {texts} some leave it to the optimizer and some keep it, or keep another "
            "kind. Attach one by name, or leave out those of other kinds."
        )
    whole = found[0].take(FP32)
    if whole is None:
        raise PlanError(
            'plan="auto" begins with uncompressed gradients, and goes back to them where '
            f"compression does harm; '{strategies[0]}' sends directions, which need another "
            "learning rate than gradients. Attach it by name, or attach a plan of `gradwire plan`."
        )
    return whole


def dynamics_of(plan: Plan) -> Dynamics:
    """Returns the dynamics of the plan's matrices."""
    return Dynamics.of(plan.main_strategy)


def _check_named(plan: object) -> None:
    """Raises StrategyError for a text that stands for many strategies, of which a plan has one."""
    if isinstance(plan, str) and is_pattern(plan):
        raise StrategyError(
            f"a plan needs one strategy; '{plan}' stands for all paths of its compressor, among "
            f'which "auto" chooses. Pass plan="auto" and strategies=[{plan!r}], or one path, as '
            f"'{example(plan)}'."
        )


def _check_auto(groups_given: bool) -> None:
    """Raises UsageError for arguments that "auto" finds itself."""
    if groups_given:
        raise UsageError(
            'plan="auto" chooses the buckets itself; buckets, bucket_bytes or exclude were given. '
            "Leave them out, or attach a strategy by name."
        )


def _check_dtypes(module: nn.Module, asked: str) -> None:
    """Raises UsageError for float64 parameters, which strategies to compare do not take."""
    for name, p in trainable(module).items():
        if p.dtype == torch.float64:
            raise UsageError(
                f"{asked} does not compress float64 gradients, and needs shorter ones; "
                f"'{name}' is float64. Train by 'none | allreduce', or convert it to float32."
            )


def _agreed(handle: Handle, strategies: Sequence[str]) -> tuple[str, ...]:
    """Returns the strategies, if they can be used and are the same on every rank; else raises
    PlanError."""
    session = handle._session

    def checked() -> tuple[str, ...]:
        _whole(strategies)
        for text in map(example, strategies):
            _check_machines(text, session)
            own = [(None, Strategy.parse(text))]
            check_carried(own, session.performers[0].group, session.device)
        if all(p.sparse for bucket in session.plan.buckets for p in bucket.parameters):
            raise PlanError(
                'plan="auto" needs dense gradients; all gradients of this model are sparse rows. '
                "Attach 'none | columns' or 'nonzero | sparse_auto'."
            )
        return tuple(strategies)

    return same_everywhere(
        session.circle.group, session.device, checked, "; ".join,
        "all ranks must choose among the same strategies, in the same order",
        "Pass the same list everywhere.",
    )  # fmt: skip


def _check_machines(text: str, session: Session) -> None:
    """Raises PlanError if a strategy sums inside machines, and its per_node is not that of the
    job's machines, or what it keeps does not pass on."""
    strategy, found = Strategy.parse(text), session.machines
    per_node = strategy.collective.per_node
    if keeps_steps(strategy.feedback) and not session.ledger.sends_own(strategy):
        raise PlanError(
            f'plan="auto" goes from plan to plan, and steps that wait under '
            f"'{strategy.feedback}' pass on only where each rank sends its own; with '{text}' "
            "ranks of a machine share parts. Leave the strategy out, or attach it by name."
        )
    if per_node is None or per_node == session.per_node:
        return
    facts = f"{found.per_node} ranks each" if found else "unequally many ranks"
    raise PlanError(
        f"a strategy that sums inside machines needs their number of ranks; '{text}' has "
        f"per_node={per_node}, but the machines have {facts}. Leave per_node out, or leave the "
        "strategy out."
    )
