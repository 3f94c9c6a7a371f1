"""Plain modules: a hook per parameter, our own buckets, the wait at the end of backward."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.errors import UsageError
from gradwire.training.session import Session
from gradwire.training.trainable import shard_of


class Averages:
    """The averages that were handed out last, and how often each had been written to: what is
    added on top of one is no gradient. Weakly held: addresses are handed out again."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self.under_gradient: str | None = None
        """A parameter that was found to hold one when its next gradient came."""

    def remember(self, handed_out: Iterable[tuple[str, Tensor | None]]) -> None:
        """Keep what `.grad` holds now, by parameter name."""
        self._written = {
            name: (weakref.ref(g), _writes(g)) for name, g in handed_out if g is not None
        }

    def look(self, name: str, gradient: Tensor | None, added: int) -> bool:
        """Whether it is that tensor, to which so many gradients were added since. `refuse` raises
        it later: other ranks are amid their own backward."""
        if gradient is None or name not in self._written:
            return False
        written, count = self._written[name]
        if written() is not gradient or count != _writes(gradient) - added:
            return False
        self.under_gradient = name
        return True

    def was_changed(self, name: str) -> bool:
        """Whether what was handed out for it has been written to since, as far as can be told."""
        kept = self._written.get(name)
        gradient = kept[0]() if kept else None
        return gradient is not None and kept is not None and _writes(gradient) != kept[1]

    def refuse(self) -> None:
        """UsageError if one was found: a strategy would remember it as if it were a gradient."""
        name, self.under_gradient = self.under_gradient, None
        if name is not None:
            raise UsageError(
                "a strategy with memory takes one backward() per step, which begins without "
                f"gradients; '{name}' still held the last one's average. Call zero_grad() on all "
                "that is attached between, or wrap all but the last backward() in "
                "handle.no_sync(), and those whose gradients are thrown away, as a generator's "
                "through its discriminator: what was exchanged is remembered. Parts with "
                "optimizers of their own take turns: attach each of them. Reentrant "
                "checkpointing counts as several: use use_reentrant=False."
            )


def _writes(gradient: Tensor) -> int:
    """torch counts apart what is done to the whole of a sharded one, as zero_grad does, and to
    this rank's shard, to which fully_shard adds."""
    shard = shard_of(gradient)
    return gradient._version + (0 if shard is gradient else shard._version)


class ModuleFrontend:
    """Gradients by post-accumulate-grad hooks, so accumulation and sharing are autograd's.

    One backward outside `no_sync` is one exchange. A parameter that got no gradient takes part
    with what its `.grad` holds, or with zeros. A rank whose backward reaches no parameter at all
    must call `Handle.synchronize` instead, or its peers wait until the timeout.
    """

    def __init__(
        self, session: Session, parameters: Mapping[str, nn.Parameter] | None = None
    ) -> None:
        self._session, self._parameters = session, parameters or session.parameters
        self._enabled, self._active, self._exchanges = True, False, False
        self._backward: weakref.ref[Any] | None = None  # the one under way, by its callback
        self._thread = 0
        self.averages = Averages()
        self._hooks: list[Any] = [
            p.register_post_accumulate_grad_hook(partial(self._on_gradient, name))  # type: ignore[no-untyped-call]
            for name, p in self._parameters.items()
        ]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients only accumulate."""
        before, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = before

    def synchronize(self) -> None:
        """Exchange what `.grad` holds now. Collective."""
        self.launch()
        self.land()

    def launch(self) -> None:
        """Begin to exchange what `.grad` holds now. Collective; returns at once."""
        self._notice_aborted()
        try:
            if not self._active:
                self._begin()
            if self._exchanges:
                self._session.flush(self._absent)
        except BaseException:
            self._active = False
            raise

    def land(self) -> None:
        """Wait for what was launched; or say why it was not."""
        try:
            if self._exchanges:
                self._session.wait()
        finally:
            self._active, self._backward = False, None
        self._session.refuse_failed()
        self.averages.refuse()
        if self._session.has_memory:
            # All, so that a second backward is refused before it has begun an exchange.
            self.averages.remember(
                (name, parameter.grad) for name, parameter in self._parameters.items()
            )

    def close(self) -> None:
        """No more exchanges."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # -- what is a gradient, and when backward is over -------------------------------------

    def _gradient(self, name: str) -> Tensor | None:
        """What `.grad` holds: the memory that an average overwrites."""
        return self._parameters[name].grad

    def _absent(self, name: str) -> Tensor:
        if self._session.ledger.memory.get(name) and self._look(name, added=0):
            return self._session.nothing(name)
        gradient = self._gradient(name)
        if gradient is None:
            gradient = self._parameters[name].grad = self._session.nothing(name)
        return gradient

    def _after_backward(self, callback: Callable[[], None]) -> None:
        """Have it called once autograd has nothing left to do, in the thread that called
        backward()."""
        torch.autograd.Variable._execution_engine.queue_callback(callback)

    def _notice_aborted(self) -> None:
        """Autograd drops its callbacks with the backward that they were queued in."""
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
            callback = partial(self.synchronize)
            self._after_backward(callback)
            self._backward = weakref.ref(callback)
            self._begin()
        self._refuse_another_thread(name)
        gradient = self._gradient(name)
        if self._exchanges and gradient is not None:
            self._deliver(name, gradient)

    def _deliver(self, name: str, gradient: Tensor) -> None:
        self._session.deliver(name, gradient)

    def _look(self, name: str, added: int) -> bool:
        """Is it our last average, to which so many gradients were added since?"""
        return self.averages.look(name, self._parameters[name].grad, added)

    def _begin(self) -> None:
        """Begin, without an exchange where `land` will refuse: now would be amid a backward, which
        torch does not always survive."""
        self._active, self._thread = True, threading.get_ident()
        self._exchanges = self.averages.under_gradient is None and not self._session.failed
        try:
            if self._exchanges:
                self._session.begin()
        except BaseException:
            self._active = False
            raise

    def _refuse_another_thread(self, name: str) -> None:
        """Refuse a backward of another thread: on CPUs one runs in the thread that called it;
        those on a GPU share one."""
        if self._session.device.type == "cpu" and self._thread != threading.get_ident():
            error = UsageError(
                "an attached model has one backward() at a time; amid the exchange of step "
                f"{self._session.step} a gradient of '{name}' came from another thread, and both "
                "are in one .grad now. Call backward() from one thread, or under a lock."
            )
            self._session.fail(error)
            raise error


def after_last_words(callback: Callable[[], None]) -> None:
    """Have it called, amid a backward, after DDP's and fully_shard's own last words, which still
    reduce. These are queued in the pass; so we queue when it is over."""
    queue = torch.autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(callback))
