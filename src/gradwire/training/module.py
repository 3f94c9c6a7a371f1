"""Plain modules: a hook per parameter, our own buckets, the wait at the end of backward."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.errors import UsageError
from gradwire.training.averages import Averages
from gradwire.training.session import Session


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
                (name, self._gradient(name), self._writes(name)) for name in self._parameters
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

    def _writes(self, name: str) -> int:
        """How often that was written to."""
        gradient = self._gradient(name)
        return 0 if gradient is None else gradient._version

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
        return self.averages.look(name, self._gradient(name), self._writes(name) - added)

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
