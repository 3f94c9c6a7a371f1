"""Plain modules: a hook per parameter, our own buckets, the wait at the end of backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gradwire.errors import UsageError
from gradwire.training.session import Session


class ModuleFrontend:
    """Gradients by post-accumulate-grad hooks, so accumulation and sharing are autograd's.

    One backward outside `no_sync` is one exchange. A parameter that got no gradient takes part
    with what its `.grad` holds, or with zeros. A rank whose backward reaches no parameter at all
    must call `Handle.synchronize` instead, or its peers wait until the timeout.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._enabled, self._active = True, False
        self._written: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]
            for name, p in session.parameters.items()
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
        if not self._active:
            self._begin()
        self._session.flush(self._absent)

    def land(self) -> None:
        """Wait for what was launched."""
        self._active = False
        self._session.wait()
        self._remember_averages()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def on_gradient(parameter: Tensor) -> None:
            if self._enabled:
                self._on_gradient(name, parameter)

        return on_gradient

    def _on_gradient(self, name: str, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if self._is_average(name, gradient):
            raise UsageError(
                f"a strategy with memory takes one backward() per step; '{name}' got a second one "
                "on top of an average. Call zero_grad() between, or wrap all but the last "
                "backward() in handle.no_sync(). Reentrant checkpointing counts as several: use "
                "use_reentrant=False."
            )
        if not self._active:
            self._begin()
            # Runs once autograd has nothing left to do, in the thread that called backward().
            torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)
        self._session.deliver(name, gradient)

    def _is_average(self, name: str, gradient: Tensor) -> bool:
        """Was it added to our last average? Weakly held: addresses are handed out again."""
        written, version = self._written.get(name, (None, 0))
        return written is not None and written() is gradient and gradient._version == version + 1

    def _begin(self) -> None:
        self._session.begin()
        self._active = True

    def _remember_averages(self) -> None:
        """All, so that a second backward is refused before it has begun an exchange."""
        if self._session.has_memory:
            self._written = {
                name: (weakref.ref(p.grad), p.grad._version)
                for name, p in self._session.parameters.items()
                if p.grad is not None
            }

    def _absent(self, name: str) -> Tensor:
        parameter: nn.Parameter = self._session.parameters[name]
        if parameter.grad is None:
            parameter.grad = self._session.nothing(name)
        return parameter.grad
