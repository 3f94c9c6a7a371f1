"""Records when each gradient is ready, and the rest of a step's time, by hooks on a real job.

─ forward ─┬─ backward ──●──●───●─┬ exchange ┬─ optimizer, data, … ─┬─ forward
           └ time 0      ready    └ nothing moved before ┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradwire.training.copies import Hook
from gradwire.training.session import Session
from gradwire.training.trainable import is_sharded, others
from gradwire.tuning.agree import now

_LEAST = 1e-9  # seconds of a backward


class Watched(NamedTuple):
    """A watched step. around: seconds from the end of the previous exchange to the start of the
    last backward; ready: seconds from that start to each gradient that came; busy: processors
    that all threads of this process used meanwhile; stepping: the part of `around` in which
    optimizers of these parameters stepped."""

    around: float
    ready: Mapping[str, float]
    busy: float = 1.0
    stepping: float = 0.0


class Recorder:
    """Watches some steps of an attached model, in which nothing is exchanged before backward ends.

    Times are CPU clocks: on CUDA, it waits for the streams at each gradient, which slows these
    steps. With a sharded model the gradients are this rank's parts; the session reports them,
    because fully_shard is running a parameter's hooks when the recorder is made and closed.
    keeps: about how many elements of this rank's gradients to keep in `samples` per step: the
    first rows of every matrix. `steps`: equally many on every rank. `density`: the fraction of
    each first gradient that is not zero. `tables`: the first gradient of each parameter whose
    gradients are rows. Gradients are those that are sent: of a step that accumulates, the sums.
    `others`: names of parameters that the optimizer treats by its other rule, if it has one.
    """

    def __init__(self, module: nn.Module, session: Session, keeps: int = 0) -> None:
        self._rows = _sampled(session, keeps)
        self.samples: dict[str, list[Tensor]] = {name: [] for name in self._rows}
        self._session, self._device = session, session.device
        self._names = {id(p): name for name, p in session.parameters.items()}
        self._began = self._ended = self._used = self._used_before = 0.0
        self._ready: dict[str, float] = {}
        self._stepped, self._stepping = 0.0, False  # since the last exchange; under way
        self.steps = list[Watched]()
        self.others = frozenset(others(module, session.settings.optimizer))
        self.density: dict[str, float] = {}
        self.tables: dict[str, Tensor] = {}
        self._thin: dict[str, float] = {}  # of the step under way, as the next two
        self._tables: dict[str, Tensor] = {}
        self._samples: dict[str, Tensor] = {}
        self._deferred, session.launches_at_end = session.launches_at_end, True
        self._before, session.on_end = session.on_end, self._on_end
        self._hooks: list[Any] = [
            module.register_forward_hook(Hook(self._on_forward)),
            register_optimizer_step_pre_hook(Hook(self._before_step)),
            register_optimizer_step_post_hook(Hook(self._after_step)),
        ]
        if is_sharded(module):
            session.on_part = self._on_gradient
            return
        self._hooks += [
            p.register_post_accumulate_grad_hook(Hook(self._on_whole))  # type: ignore[no-untyped-call]
            for p in session.parameters.values()
        ]

    def close(self) -> None:
        """Removes the hooks; the session launches buckets as before."""
        for hook in self._hooks:
            hook.remove()
        self._session.on_part = None
        self._session.launches_at_end, self._session.on_end = self._deferred, self._before

    def _on_forward(self, *_: object) -> None:
        if torch.is_grad_enabled():
            self._began, self._used_before = now(self._device), process_time()

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        held = (id(p) for group in optimizer.param_groups for p in group["params"])
        if any(one in self._names for one in held):
            self._stepped, self._stepping = self._stepped - now(self._device), True

    def _after_step(self, *_: object) -> None:
        if self._stepping:  # else a closure's backward has exchanged within the step
            self._stepped, self._stepping = self._stepped + now(self._device), False

    def _on_whole(self, parameter: Tensor) -> None:
        self._on_gradient(self._names[id(parameter)], parameter.grad)

    def _on_gradient(self, name: str, gradient: Tensor | None) -> None:
        at = now(self._device)
        if not self._began:  # no forward, if only parts are called
            self._began, self._used_before = at, process_time()
        self._ready[name], self._used = at - self._began, process_time() - self._used_before
        if gradient is not None:
            self._look(name, gradient)

    def _look(self, name: str, gradient: Tensor) -> None:
        """Notes what a gradient holds. Where a step accumulates gradients, the last one counts,
        which is what is sent."""
        if name not in self.density:
            self._thin[name] = _density(gradient)
            if gradient.layout != torch.strided:
                self._tables[name] = gradient.detach().clone()
        if self._ended and name in self._rows:
            own = gradient[: self._rows[name]].detach().to(torch.float32, copy=True)
            self._samples[name] = own.contiguous()

    def _on_end(self, error: BaseException | None) -> None:
        at = now(self._device)
        self.density |= self._thin
        self.tables |= self._tables
        for name, own in self._samples.items():
            self.samples[name].append(own)
        self._thin, self._tables, self._samples = {}, {}, {}
        if self._ended:  # else recording began in the middle of this step
            busy = self._used / max(*self._ready.values(), _LEAST) if self._ready else 0.0
            around, stepped = (self._began or at) - self._ended, self._stepped
            stepping = 0.0 if self._stepping else stepped
            self.steps.append(Watched(around, self._ready, busy, stepping))
        self._began, self._ended, self._ready = 0.0, at, {}
        self._stepped, self._stepping = 0.0, False
        before: Callable[[BaseException | None], None] | None = self._before
        if before is not None:
            before(error)


def _sampled(session: Session, elements: int) -> dict[str, int]:
    """Returns by name how many rows to keep: the same share of every matrix, at least one row."""
    matrices = [
        p for bucket in session.plan.buckets for p in bucket.parameters
        if not p.sparse and len(p.shape) > 1 and p.elements
    ]  # fmt: skip
    share = min(1.0, elements / sum(p.elements for p in matrices)) if matrices else 0.0
    return {p.name: max(1, int(share * p.shape[0])) for p in matrices} if elements else {}


def _density(gradient: Tensor) -> float:
    if gradient.layout != torch.strided or not gradient.numel():
        return 1.0
    return float(torch.count_nonzero(gradient)) / gradient.numel()
