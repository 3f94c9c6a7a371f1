"""A rank's own view of a module's weights: entered by forward, left before other uses."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.runtime.own_view import OwnView, is_local
from gradwire.training.copies import Hook
from gradwire.training.session import Session
from gradwire.training.trainable import shard_of, shards_of


class AttachedView:
    """Moves a module's weights between the shared values and this rank's own view.

    A forward in training mode moves them to the own view. A parameter returns to the shared value
    when its gradient is ready, and all do before the optimizer's step, a state_dict() or
    load_state_dict(), and while the module is called in eval mode. Under DDP this is the module
    that it wraps, which may be set to eval mode, and called, by itself.
    """

    def __init__(self, session: Session, module: nn.Module) -> None:
        self._session, self._view = session, OwnView()
        self._at: int | None = None  # the exchange before which it was entered
        self._module, self._called, self._warned = module, False, False
        self._stepped = session.step
        self._looked_from: int | None = None
        self._hooks: list[Any] = []
        session.view = self
        self.hook()

    def hook(self) -> None:
        """Register hooks on the module, if the plan has a feedback with an own view."""
        strategies = (*self._session.plan.strategies, *self._session.whole_plan.strategies)
        if self._hooks or not any(map(is_local, strategies)):
            return
        module = self._module
        inside: Any = module.module if isinstance(module, DistributedDataParallel) else module
        self._hooks = [
            inside.register_forward_pre_hook(Hook(self._before_forward), prepend=True),
            inside.register_forward_hook(Hook(self._after_forward), always_call=True),
            inside.register_state_dict_pre_hook(Hook(lambda *_: self.leave())),
            inside.register_load_state_dict_pre_hook(Hook(lambda *_: self.leave())),
        ]

    def _before_forward(self, module: nn.Module, _: object) -> None:
        if not module.training:
            if self._view.entered:  # a backward through it may follow
                self._looked_from = self._at
                self._step_aside()
        elif torch.is_grad_enabled():
            self._called = True
            if self._at != self._session.step:
                self._enter()

    def _after_forward(self, *_: object) -> None:
        """After an evaluation, enter the view again for a backward that may follow."""
        at, self._looked_from = self._looked_from, None
        if at is not None and at == self._session.step:
            self._enter()

    def _enter(self) -> None:
        session = self._session
        self._view.enter(shards_of(session.parameters), session.ledger, session.rates.units)
        self._at = session.step

    def leave(self) -> None:
        """Put the shared weights into the module; the next forward in training enters anew."""
        left = self._view.names
        self._step_aside()
        self._tell(left)

    def _step_aside(self) -> None:
        """Leave, though a backward may follow, before which the view is entered again."""
        if self._view.entered:
            self._view.leave(shards_of(self._session.parameters))
        self._at = None

    def _tell(self, names: Iterable[str]) -> None:
        """Let autograd raise if a graph still needs the values at the own view."""
        for name in names:
            torch.autograd.graph.increment_version(self._session.parameters[name])

    def send(self, names: Iterable[str]) -> None:
        """Leave the view for parameters whose gradients are ready and are about to be sent."""
        if self._view.entered:
            own = {name: shard_of(self._session.parameters[name]) for name in names}
            self._view.leave(own, own)
            self._tell(own)

    def uncover(self) -> None:
        """Make residuals readable and writable, also amid a backward."""
        if self._view.entered:
            self._view.uncover(shards_of(self._session.parameters))

    def waiting(self, name: str, residual: torch.Tensor) -> torch.Tensor:
        """Returns a parameter's residual, to read, from any thread. residual: its memory, which
        may hold shared weights."""
        return self._view.waiting(
            name, shard_of(self._session.parameters[name]).detach(), residual
        )

    def before_step(self) -> None:
        """Leave the view before the optimizer's step. Warns once if the module itself was not
        called in training mode."""
        self.leave()
        since = max(self._stepped, self._session.began_at)
        exchanged, self._stepped = self._session.step > since, self._session.step
        missed = self._hooks and exchanged and not self._called and self._session.step > 1
        self._called = False
        if missed and not self._warned and self._view.moves(self._session.ledger):
            self._warned = True
            warnings.warn(
                "with 'adam' or 'muon' the attached module sets this rank's own view of the "
                "weights when it is called in training mode; only parts of it were called. Call "
                "the module that was attached, or attach the part that is called.",
                stacklevel=7,
            )

    def close(self) -> None:
        """Leave the view, and remove the hooks."""
        self.leave()
        for hook in self._hooks:
            hook.remove()
