# No `from __future__ import annotations` here: DDP refuses a hook whose annotations are strings.
"""DistributedDataParallel: gradients from its communication hook, regrouped by parameter name.

DDP's buckets differ between the first iterations, after a resume, and between its modes; ours are
the plan's. A DDP bucket's future completes at the end of the step, when all averages are in place.

A step lasts from DDP's first bucket to its last, however many backwards that takes: reentrant
checkpointing runs one inside another, and two losses may each reach a part of the model.
"""

import os
import weakref
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import UsageError
from gradwire.plan import Plan
from gradwire.training.module import Averages, after_last_words
from gradwire.training.session import Session


class DdpFrontend:
    """Takes gradients from a DDP model's only communication hook, for good; after `close` the hook
    reduces as DDP does.

    A rank that has left a `Join` takes part with zeros and goes on sending its residual. With
    find_unused_parameters DDP gives no average to parameters that no rank has used; gradwire does,
    as the averages contain parts of residuals.
    """

    def __init__(self, session: Session, ddp: DistributedDataParallel) -> None:
        self._session, self._ddp = session, ddp
        self._names = {id(p): name for name, p in session.parameters.items()}
        self._open: list[tuple[torch.futures.Future[Tensor], Tensor]] = []
        self._kept_back: list[tuple[nn.Parameter, Tensor]] = []  # averages DDP may not hand out
        self.averages, self._raises, self._closed = Averages(), False, False
        self._refusal: weakref.ref[Any] | None = None  # the callback that will raise an error
        session.on_end = self._complete
        self._owner = _Owner(self, ddp.process_group)
        _keep_out_of_graphs()
        try:
            ddp.register_comm_hook(self._owner, gradwire_hook)
        except RuntimeError as error:
            raise UsageError(
                "DDP takes one communication hook, once, and this model has one already (an "
                f"earlier attach, another hook, mixed_precision=, a fused optimizer): {error}. "
                "Wrap the module again with DistributedDataParallel and attach gradwire only."
            ) from error

    def no_sync(self) -> AbstractContextManager[None]:
        """Returns DDP's own `no_sync`."""
        context: AbstractContextManager[None] = self._ddp.no_sync()
        return context

    def synchronize(self) -> None:
        """Raises UsageError: under DDP every exchange is part of backward()."""
        raise UsageError(
            "under DDP every exchange is part of backward(); synchronize() is for plain modules. "
            "Use torch.distributed.algorithms.Join for uneven inputs."
        )

    def close(self) -> None:
        """Give the hook back to DDP, amid a backward at its end: DDP waits for its futures."""
        self._closed = True
        if not self._session.under_way:
            self._owner.frontend = None

    def take(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Deliver the gradients of one of DDP's buckets. Returns the future of its averages."""
        devices: Any = [self._session.device] if self._session.device.type == "cuda" else None
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        names = [self._names.get(id(p)) for p in bucket.parameters()]
        if self._refusal is not None and self._refusal() is not None:
            future.set_result(bucket.buffer())
            return future
        if self._begins(bucket, names):
            self._open, self._kept_back, self.averages.under_gradient = [], [], None
            self._raises = torch._C._current_graph_task_id() >= 0  # in a Join no backward runs
            try:
                self._check_join()
                self._session.begin()
                self._keep_guard_out()
            except Exception as error:
                if not self._raises:
                    raise
                self._refuse_later(error)
                future.set_result(bucket.buffer())
                return future
        buffer = bucket.buffer()  # gradients of a sparse bucket are not views of it
        self._open.append((future, buffer))
        gradients = bucket.gradients() if buffer.layout == torch.strided else [buffer]
        for name, parameter, gradient in zip(names, bucket.parameters(), gradients):
            if name is not None:
                self.averages.look(name, parameter.grad, added=1)
                own = _in_its_own_order(parameter, gradient)
                self._session.deliver(name, own)
                if self._ddp.find_unused_parameters and own.layout == torch.strided:
                    self._kept_back.append((parameter, own))
            elif parameter.requires_grad:
                raise UsageError(
                    "a parameter that was frozen in attach cannot be trained later; one of shape "
                    f"{list(parameter.shape)} was unfrozen. Wrap the module again with "
                    "DistributedDataParallel and attach."
                )
        if bucket.is_last() or self._session.all_delivered:
            self._session.flush(self._session.nothing)
            if self._raises:
                after_last_words(self._finish)
        return future

    def _begins(self, bucket: Any, names: list[str | None]) -> bool:
        """Whether a step begins with this bucket. In the first step of a static graph all buckets
        have index 0, and none is the last."""
        again = any(name is not None and self._session.delivered(name) for name in names)
        return not self._open or (bucket.index() == 0 and again)

    @property
    def _joins(self) -> bool:
        """Whether ranks may have left a Join: from its beginning to that of one with
        enable=False, as DDP does not tell its end."""
        join = getattr(self._ddp, "_join_config", None)
        return join is not None and bool(join.enable)

    def _keep_guard_out(self) -> None:
        """Keep the guard from looking at a step in a Join: it sums before the optimizer's step,
        which a rank that has left does not take. After `begin`, where a tuner may start it."""
        if self._joins and self._session.guard is not None:
            self._session.guard.look_anew(self._session.step + 1)

    def _check_join(self) -> None:
        """Raise UsageError for a Join that does not work, as with a GradScaler: a rank that has
        left sees no loss, so its scale stays as it was."""
        if not self._joins:
            return
        if not getattr(self._ddp, "_divide_by_initial_world_size", True):
            raise UsageError(
                "gradwire averages over all ranks, with zeros for those that have left a Join; "
                "got divide_by_initial_world_size=False. Leave it out, or give all ranks the same "
                "number of batches (drop_last=True)."
            )
        scaler = self._session.scaler
        if scaler is not None and scaler.is_enabled() and self._session.has_memory:
            raise UsageError(
                "residuals follow the loss scale, which a rank that has left a Join does not "
                "know; got a GradScaler inside a Join. Train in bfloat16 without a scaler, or "
                "give all ranks the same number of batches (drop_last=True)."
            )

    def _complete(self, error: BaseException | None) -> None:
        opened, self._open = self._open, []
        if not self._raises:  # in a Join nothing calls `wait`
            self._session.under_way = False
        for future, buffer in opened:
            # DDP turns an exception into "Unable to cast … to Tensor": `wait` raises it instead.
            if error is None or self._raises:
                future.set_result(buffer)
            else:
                future.set_exception(error)  # type: ignore[arg-type] # torch's stub is wrong

    def _let_go(self) -> None:
        """Give the hook back to DDP if `close` was called amid the backward that is over now."""
        if self._closed:
            self._owner.frontend = None

    def _refuse_later(self, error: Exception) -> None:
        """Exchange nothing in this backward, and raise the error at its end: raised from inside
        the hook it would leave DDP unusable."""
        callback = partial(self._refuse, error)
        self._refusal = weakref.ref(callback)  # dies with a backward that is aborted
        after_last_words(callback)

    def _refuse(self, error: Exception) -> None:
        self._refusal = None
        self._let_go()
        raise error

    @torch.no_grad()
    def _finish(self) -> None:
        """Wait, after DDP's own final callback, and set each `.grad` that DDP has not set."""
        self._let_go()
        self._session.wait(compares=not self._joins)
        self.averages.refuse()
        for parameter, average in self._kept_back:
            if parameter.grad is None:
                if average.any():
                    parameter.grad = average.clone()
            elif parameter.grad.data_ptr() != average.data_ptr():
                parameter.grad.copy_(average)
        self._kept_back = []
        if self._session.has_memory:
            now = ((n, p.grad) for n, p in self._session.parameters.items())
            self.averages.remember(now, shows_backwards=not _shares_memory(self._ddp))


class _Owner:
    """The hook's state, which DDP keeps for good. A copy, as by pickle, has no frontend: the new
    reducer of a copied DDP has no hook, and averages as DDP does."""

    def __init__(
        self, frontend: DdpFrontend | None = None, group: dist.ProcessGroup | None = None
    ) -> None:
        self.frontend, self.group, self.process = frontend, group, os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Owner, ()


# A plain function whose second parameter is called bucket, without annotations: DDP accepts
# nothing else. pickle accepts it only at the top of a module.
def gradwire_hook(state, bucket):  # type: ignore[no-untyped-def]
    """DDP's communication hook. state: its `_Owner`."""
    if isinstance(bucket, tuple):
        raise UsageError(
            "gradwire needs DDP's C++ reducer; torch.compile's python_reducer passes single "
            "gradients. Set torch._dynamo.config.optimize_ddp = True."
        )
    if state.frontend is not None:
        return state.frontend.take(bucket)
    if state.process != os.getpid():
        after_last_words(_refuse_fork)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
    return allreduce_hook(state.group, bucket)


@cache
def _keep_out_of_graphs() -> None:
    """Has torch.compile leave the hook to Python, as `copies.Hook`; DDP wants a function, and
    pickle finds it by its name."""
    global gradwire_hook
    disable: Any = torch.compiler.disable
    gradwire_hook = disable(gradwire_hook)


def _refuse_fork() -> None:
    """Raise UsageError: in a fork DDP's exchange would hang, as its threads are the parent's."""
    raise UsageError(
        "DDP averages gradients only in the process that made it; this one is a fork of it. "
        "Train or evaluate the DDP's .module here, or start processes by torchrun."
    )


def _in_its_own_order(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Returns the gradient with the parameter's strides: DDP shows a channels_last gradient as if
    it were contiguous, though its memory is channels_last."""
    if parameter.is_contiguous() or gradient.layout != torch.strided:
        return gradient
    if not torch.ops.aten.is_non_overlapping_and_dense(parameter):
        return gradient
    return gradient.as_strided(parameter.shape, parameter.stride())


def _shares_memory(ddp: Any) -> bool:
    """Whether a gradient's version counter does not reveal a second backward: gradients that are
    views of one bucket share a counter, and zero_grad writes to that of an unused parameter."""
    return bool(ddp.gradient_as_bucket_view or ddp.find_unused_parameters or ddp.static_graph)


def inner(module: nn.Module) -> nn.Module:
    """Returns the DistributedDataParallel inside a wrapper (a trainer's, or torch.compile's), or
    else the module itself, without torch.compile's wrapper.

    Attached to such a wrapper, gradwire would exchange gradients that DDP has averaged already.
    """
    inside = [m for m in module.modules() if isinstance(m, DistributedDataParallel)]
    if not inside:
        plain: nn.Module = getattr(module, "_orig_mod", module)
        return plain
    within = set(inside[0].parameters())
    beside = [name for name, p in module.named_parameters() if p not in within]
    if len(inside) > 1 or beside:
        raise UsageError(
            "attach takes one DistributedDataParallel, which must hold all parameters; this "
            f"{type(module).__name__} holds {len(inside)}, and outside the first "
            f"{', '.join(beside[:3]) or 'no parameter'}. Attach each of them by itself."
        )
    return inside[0]


def ddp_kwargs(plan: Plan) -> dict[str, Any]:
    """Returns keyword arguments that give DistributedDataParallel the plan's bucket boundaries.

    plan: a `Plan`, as the model will be attached by. The arguments need torch 2.13
    (`bucket_cap_mb_list`) and are empty before it. Without them, and for a plan whose buckets are
    not runs of parameters in reverse order of registration, DDP's own buckets serve as well: the
    hook regroups by name. Not collective.

    Raises:
        UsageError: it is no `Plan`, such as a strategy's text.
    """
    import inspect

    if not isinstance(plan, Plan):
        raise UsageError(
            f"ddp_kwargs takes a Plan; got {plan!r}. Make one with Plan.make or Plan.load."
        )
    if "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel).parameters:
        return {}
    mib = 2.0**20
    return {"bucket_cap_mb_list": [bucket.bytes / mib for bucket in plan.buckets]}
