"""Plain modules: a hook per parameter, the plan's buckets, and a wait at the end of backward."""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import PeerError, UsageError
from gradwire.training.copies import Hook
from gradwire.training.session import Session
from gradwire.training.trainable import is_shard, shard_of

SAMPLED, PLACES = 8, 16
"""The number of averages of which some elements are kept, and of these elements."""


class Averages:
    """Remembers the last averages and their version counters, to detect gradients that are added
    to one. It holds tensors weakly, as addresses are reused."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._shows_backwards = True
        self._samples: dict[str, Tensor] = {}
        self.keeps_samples = False
        """Whether some elements are kept, for `changed` to tell what writes have changed."""
        self.under_gradient: str | None = None
        """A parameter whose `.grad` still held an average when its next gradient was added."""

    def remember(
        self, handed_out: Iterable[tuple[str, Tensor | None]], shows_backwards: bool = True
    ) -> None:
        """Remember the averages now in `.grad`, by parameter name. shows_backwards: whether their
        counters tell a second backward from other writes, so that `look` may find it."""
        self._shows_backwards = shows_backwards
        held = {name: g for name, g in handed_out if g is not None}
        self._written = {name: (weakref.ref(g), _writes(g)) for name, g in held.items()}
        if self.keeps_samples:
            dense = [(name, g) for name, g in held.items() if g.layout == torch.strided]
            some = dense[:: max(1, -(-len(dense) // SAMPLED))]  # none where a step was lost
            self._samples = {name: _sample(g) for name, g in some}

    def look(self, name: str, gradient: Tensor | None, added: int) -> bool:
        """Whether `gradient` is the last average, with `added` gradients added since. `refuse`
        raises the error later, as other ranks are amid their own backward."""
        if gradient is None or name not in self._written or not self._shows_backwards:
            return False
        written, count = self._written[name]
        if written() is not gradient or count != _writes(gradient) - added:
            return False
        self.under_gradient = name
        return True

    def changed(self, names: Iterable[str], loss_scale: float) -> str | None:
        """Returns one of these parameters whose last average was changed since, as far as is
        known; or None. To multiply by 1 is no change, as a norm is measured so by clipping to an
        infinite one, and neither is to unscale."""
        written = [name for name in names if self._was_written(name)]
        sampled = [name for name in written if name in self._samples]
        other = next((n for n in sampled if not self._is_as_it_was(n, loss_scale)), None)
        return other or (None if sampled else next(iter(written), None))

    def _was_written(self, name: str) -> bool:
        """Whether it may have been written to: torch does not count what clipping does to the
        shards of many gradients at once."""
        kept = self._written.get(name)
        gradient = kept[0]() if kept else None
        if gradient is None or kept is None:
            return False
        uncounted = name in self._samples and is_shard(gradient)
        return uncounted or _writes(gradient) != kept[1]

    def _is_as_it_was(self, name: str, loss_scale: float) -> bool:
        gradient, then = self._written[name][0](), self._samples[name]
        if gradient is None:
            return True
        now, unscaled = _sample(gradient), then / loss_scale
        same = (now == then) | (now == unscaled) | (now.isnan() & then.isnan())
        return bool(same.all())

    def refuse(self) -> None:
        """Raise UsageError if `look` found such a parameter: a strategy would remember the average
        as if it were a gradient."""
        name, self.under_gradient = self.under_gradient, None
        if name is not None:
            raise UsageError(
                "a strategy that keeps residuals needs one backward() per step, with .grad empty "
                f"before it; '{name}' still held the last average. Call zero_grad() on all "
                "attached parameters between two, or wrap in handle.no_sync() all but the last "
                "backward(), and any whose gradients you discard (as a generator's loss leaves in "
                "the discriminator), as every exchange changes the residuals. Attach parts that "
                "have their own optimizers and train in alternation each by itself. Reentrant "
                "checkpointing counts as several backward(): set use_reentrant=False."
            )


def _sample(gradient: Tensor) -> Tensor:
    """Returns a copy of some elements, and the largest magnitude, which clipping by value
    changes."""
    flat = shard_of(gradient).detach().reshape(-1)
    some = flat[:: max(1, flat.numel() // PLACES)][:PLACES]
    if not len(flat):
        return some.clone()
    return torch.cat([some, torch.linalg.vector_norm(flat, math.inf).reshape(1)])


def _writes(gradient: Tensor) -> int:
    """Returns the number of writes. For a sharded gradient torch counts writes to the whole, as by
    zero_grad, and writes to this rank's shard, to which fully_shard adds, separately."""
    shard = shard_of(gradient)
    return gradient._version + (0 if shard is gradient else shard._version)


class ModuleFrontend:
    """Takes gradients from post-accumulate-grad hooks, so autograd does accumulation and sharing.

    One backward outside `no_sync` is one exchange. A parameter without a new gradient takes part
    with its `.grad`, or with zeros. A rank whose backward reaches no parameter at all must call
    `Handle.synchronize` instead, or its peers wait until the timeout.
    """

    def __init__(
        self, session: Session, parameters: Mapping[str, nn.Parameter] | None = None
    ) -> None:
        self._session, self._parameters = session, parameters or session.parameters
        self._enabled, self._active, self._exchanges = True, False, False
        self._backward: weakref.ref[Any] | None = None  # the one under way, by its callback
        self._lost: PeerError | None = None  # as a step began; raised when backward is over
        self._thread = 0
        self.averages = Averages()
        self._hooks: dict[str, Any] = {name: self._hook(name) for name in self._parameters}
        self._overtaken: list[str] = []  # parameters with hooks of users after the one here
        self._is_alone = False  # whether nobody else wrote averages after the first ones here

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which gradients only accumulate."""
        before, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = before

    def synchronize(self) -> None:
        """Exchange the gradients in `.grad`. Collective; blocks."""
        with self._session.going_on():
            self.launch()
            self.land()

    def launch(self) -> None:
        """Begin to exchange the gradients in `.grad`. Collective; returns at once."""
        self._notice_aborted()
        while self._overtaken:  # not amid the calls of hooks, which fully_shard iterates over
            self._hooks[name := self._overtaken.pop()].remove()
            self._hooks[name] = self._hook(name)
        try:
            if not self._active:
                self._begin()
            if self._exchanges:
                self._session.flush(self._absent)
        except BaseException:
            self._active = False
            raise

    def land(self) -> None:
        """Wait for the launched exchange; raise UsageError if there was none, with the reason."""
        try:
            if self._exchanges:
                self._session.wait()
        finally:
            self._active, self._backward = False, None
            lost, self._lost = self._lost, None
        if lost is not None:
            raise lost
        self._session.refuse_failed()
        self.averages.refuse()
        if self._session.has_memory:
            # All averages, so that a second backward is refused before it begins an exchange.
            self.averages.remember(
                (name, parameter.grad) for name, parameter in self._parameters.items()
            )

    def close(self) -> None:
        """Remove the hooks: no more exchanges."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        self._overtaken.clear()

    def _hook(self, name: str) -> Any:
        """Register the hook of a parameter. Returns its handle."""
        call = Hook(partial(self._on_gradient, name))
        return self._parameters[name].register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call]

    # -- what is a gradient, and when backward is over -------------------------------------

    def _gradient(self, name: str) -> Tensor | None:
        """Returns the memory of `.grad`, which an average overwrites."""
        return self._parameters[name].grad

    def _absent(self, name: str) -> Tensor:
        if self._session.ledger.memory.get(name) and self._look(name, added=0):
            return self._session.nothing(name)
        gradient = self._gradient(name)
        if gradient is None:
            gradient = self._parameters[name].grad = self._session.nothing(name)
        return gradient

    def _after_backward(self, callback: Callable[[], None]) -> None:
        """Queue a callback for the end of the backward, in the thread that called backward()."""
        torch.autograd.Variable._execution_engine.queue_callback(Hook(callback))

    def _notice_aborted(self) -> None:
        """Fail if the last backward was aborted: autograd has then dropped the queued callback."""
        if self._active and self._backward is not None and self._backward() is None:
            self._active, self.averages.under_gradient = False, None
            if self._exchanges:
                self._session.fail_aborted()

    # -- one backward ----------------------------------------------------------------------

    def _on_gradient(self, name: str, _: Tensor) -> None:
        if not self._enabled:
            return
        self._notice_aborted()
        self._look(name, added=1)
        if not self._active:
            _refuse_compiled()
            callback = partial(self._end)
            self._after_backward(callback)
            self._backward = weakref.ref(callback)
            self._begin()
        self._refuse_another_thread(name)
        gradient = self._gradient(name)
        if self._exchanges and gradient is not None:
            self._deliver(name, gradient)

    def _end(self) -> None:
        """Exchange at the end of a backward. After the first time, look whether another callback
        at its end writes averages, too."""
        self.synchronize()
        if not self._is_alone:
            self._is_alone = True
            self._after_backward(partial(self._refuse_others, self._versions()))

    def _versions(self) -> dict[str, int]:
        """Returns how often each `.grad` was written; -1 for a view, as of a bucket of DDP."""
        grads = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        return {name: -1 if g._is_view() else g._version for name, g in grads.items()}

    def _refuse_others(self, before: Mapping[str, int]) -> None:
        """Raise UsageError if DDP averages these gradients, too, or instead."""
        now = self._versions()
        if (now != before or -1 in now.values()) and _are_in_ddp(self._parameters.values()):
            raise UsageError(
                "the gradients of an attached model must be averaged by gradwire alone; a "
                "DistributedDataParallel around it averages them, too, and overwrites what "
                "gradwire wrote. Attach the DistributedDataParallel itself: attach(ddp, …), not "
                "attach(ddp.module, …)."
            )

    def _deliver(self, name: str, gradient: Tensor) -> None:
        """Deliver a gradient, unless a user's hook, registered since, may yet change it: `launch`
        delivers it then, and makes the hook here the last one."""
        hooks: Any = self._parameters[name]._post_accumulate_grad_hooks
        later = takewhile(self._hooks[name].id.__ne__, reversed(hooks))
        if all(isinstance(hooks[number], Hook) for number in later):
            self._session.deliver(name, gradient)
        else:
            self._overtaken.append(name)

    def _look(self, name: str, added: int) -> bool:
        """Whether `.grad` is the last average, with `added` gradients added since."""
        return self.averages.look(name, self._parameters[name].grad, added)

    def _begin(self) -> None:
        """Begin a step, without an exchange if `land` will raise: torch does not always survive an
        error raised amid a backward."""
        self._active, self._thread = True, threading.get_ident()
        self._exchanges = self.averages.under_gradient is None and not self._session.failed
        try:
            if self._exchanges:
                self._session.begin()
        except PeerError as error:
            if self._session.on_lost is None:
                self._active = False
                raise
            self._lost, self._exchanges = error, False
        except BaseException:
            self._active = False
            raise

    def _refuse_another_thread(self, name: str) -> None:
        """Raise UsageError for a backward of another thread. On CPUs one runs in the thread that
        called it; on a GPU all share one, so it is not checked."""
        if self._session.device.type == "cpu" and self._thread != threading.get_ident():
            error = UsageError(
                "an attached model can run one backward() at a time; during the exchange of step "
                f"{self._session.step} a gradient of '{name}' came from another thread, and .grad "
                "holds the sum of both now. Call backward() from one thread, or under a lock."
            )
            self._session.fail(error)
            raise error


def _are_in_ddp(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether some DistributedDataParallel has one of these parameters; takes a tenth of a
    second."""
    own = {id(p) for p in parameters}
    ddps = [x for x in gc.get_objects() if issubclass(type(x), DistributedDataParallel)]
    return any(id(p) in own for ddp in ddps for p in ddp.parameters())


def _refuse_compiled() -> None:
    """Raise UsageError amid a backward that torch has compiled: it calls hooks, but no callback at
    its end."""
    compiler: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiler is not None and compiler.in_compiled_autograd_region:
        raise UsageError(
            "an attached model needs a backward() that autograd runs by itself; this one is "
            "compiled, by torch._dynamo.config.compiled_autograd = True or the like. Set it to "
            "False: the model, and a whole step, may be compiled all the same."
        )


def after_last_words(callback: Callable[[], None]) -> None:
    """Queue, amid a backward, a callback to run after the final ones of DDP and fully_shard, which
    still reduce. They are queued during the pass, so this one is queued at its end."""
    queue = torch.autograd.Variable._execution_engine.queue_callback
    queue(Hook(lambda: queue(Hook(callback))))
