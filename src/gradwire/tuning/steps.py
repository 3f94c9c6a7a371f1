"""Something that happens at the beginning of every step, on all ranks at the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch
from torch import nn

from gradwire.training.session import Session


class OnSteps:
    """Runs a generator from one `yield` to the next at the beginning of each step.

    In the thread that calls forward, before it; evaluations, and further forwards before a step's
    exchange, are no steps. `seconds` is what the last step took, without what the generator did.
    """

    def __init__(
        self, module: nn.Module, session: Session, life: Callable[[OnSteps], Iterator[None]]
    ) -> None:
        self._session, self._seen, self._began = session, -1, 0.0
        self.seconds = 0.0
        self._life = life(self)
        self._hook: Any = module.register_forward_pre_hook(self._on_forward)

    def close(self) -> None:
        """No more."""
        self._hook.remove()

    def _on_forward(self, module: nn.Module, inputs: Any) -> None:
        if not torch.is_grad_enabled() or self._session.step == self._seen:
            return
        self.seconds, self._seen = perf_counter() - self._began, self._session.step
        next(self._life, None)
        self._began = perf_counter()


def for_steps(count: int) -> Iterator[None]:
    """So many steps in which nothing happens."""
    for _ in range(count):
        yield
