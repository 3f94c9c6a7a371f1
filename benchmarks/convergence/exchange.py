"""The workers of one run in lockstep: gradients in, averages out; all state can be saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from methods import Method
from task import Settings
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from gradwire.buckets import Parameter
from gradwire.plan import Plan
from gradwire.runtime.own_view import OwnView
from gradwire.runtime.rates import Rates
from gradwire.training.accordion import Phases
from gradwire.training.clipping import LocalClip
from gradwire.training.session import describe
from gradwire.training.trainable import others
from gradwire.warmup import at_density

Gradients = Mapping[str, Tensor]
WHOLE = "model"
PHASES, ETA = 10, 0.5
"""Intervals of a run after each of which Accordion decides, and the change that is critical."""


class Exchange:
    """A method's plan on a number of workers, with its warm-up and its clipping."""

    def __init__(
        self, model: nn.Module, method: Method, settings: Settings, *,
        workers: int, steps: int, density: float, seed: int,
    ) -> None:  # fmt: skip
        parameters = describe(dict(model.named_parameters()))
        self._shapes = {p.name: p.shape for p in parameters}
        self._whole, self._world = method.whole, workers
        if method.whole:
            parameters = [Parameter(WHOLE, (1, sum(p.elements for p in parameters)))]
        self._plan = Plan.make(
            parameters, method.strategy(density, settings), others=others(model)
        )
        self._warmup = method.warmup(settings, steps)
        self._phases = Phases(max(steps // PHASES, 1), ETA) if method.critical else None
        self._critical, self._is_critical = method.critical * density, bool(method.critical)
        norm = {method.clips: settings.clip}
        self._norm = norm.get("average")
        self._clip = LocalClip.of(norm.get("local"), overlap=False, world=workers)
        if self._clip is not None:
            self._clip.follow(self._at(0).strategies)
        device = next(model.parameters()).device
        options = {} if device.type == "cpu" else {"device": device}  # rivals run on the CPU only
        self.workers = method.workers(self._at(0), workers, seed=seed, **options)
        follows = method.follows_rate and (settings.optimizer == "sgd" or method.keeps_moments)
        self.rates = Rates() if follows else None

    def _at(self, step: int) -> Plan:
        density = self._warmup.density(step) if self._warmup else None
        if self._is_critical:
            density = self._critical
        return at_density(self._plan, density, self._world)

    def _follow(self) -> None:
        """Changes to the plan that warm-up, or the phase, has for the next step."""
        phases = self._phases
        if phases is not None and phases.is_over and phases.sums:
            self._is_critical = phases.found_critical(float(phases.norm()), phases.rate)
        plan = self._at(self.workers.step)
        if plan != self.workers.plan:
            self.workers.adopt(plan)
            if self._clip is not None:
                self._clip.follow(plan.strategies)

    def __call__(self, gradients: Sequence[Gradients]) -> dict[str, Tensor]:
        """Returns one step's averages, by name. Gradients may be changed."""
        self._follow()
        scales = self._scales(gradients)
        if self._whole:
            gradients = [{WHOLE: self._together(mine)} for mine in gradients]
        averages = self.workers.exchange(gradients, scales)
        if self._whole:
            averages = self._apart(averages[WHOLE])
        if self._phases is not None:
            self._phases.add(averages)
        if self._norm is not None:
            found = list(averages.values())
            above = float(get_total_norm(found)) / self._norm
            torch._foreach_mul_(found, 1 / max(1.0, above))
        return averages

    def follow(self, rate: float) -> None:
        """Tells the exchange the step's learning rate, which `attach` reads from the optimizer."""
        if self.rates is not None:
            names = self.workers.ledgers[0].memory
            self.rates.follow(dict.fromkeys(names, rate), self.workers.ledgers)

    @contextmanager
    def seen_by(self, worker: int, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Moves the weights to where that worker computes gradients."""
        view, ledger = OwnView(), self.workers.ledgers[worker]
        view.enter(weights, ledger, {} if self.rates is None else self.rates.units)
        try:
            yield
        finally:
            view.leave(weights)

    @property
    def bytes_sent(self) -> float:
        """The bytes sent in the last step: the mean over workers."""
        sent = self.workers.trace.bytes_sent
        return sum(sent) / len(sent)

    def _scales(self, gradients: Sequence[Gradients]) -> list[float]:
        return [1.0 if self._clip is None else self._scale(self._clip, mine) for mine in gradients]

    @staticmethod
    def _scale(clip: LocalClip, mine: Gradients) -> float:
        clip.look(mine.values())
        return clip.scale_for(clip.learn())

    def _together(self, mine: Gradients) -> Tensor:
        return torch.cat([mine[name].reshape(-1) for name in self._shapes]).view(1, -1)

    def _apart(self, flat: Tensor) -> dict[str, Tensor]:
        sizes = [torch.Size(shape).numel() for shape in self._shapes.values()]
        parts = flat.view(-1).split(sizes)
        return {name: x.view(shape) for (name, shape), x in zip(self._shapes.items(), parts)}

    # -- to be saved -----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns what all workers remember between two steps; the tensors are not copied."""
        ledgers, phases = self.workers.ledgers, self._phases
        return {
            "step": self.workers.step,
            "rates": {} if self.rates is None else self.rates.units,
            "ledgers": [{"memory": x.memory, "leftovers": x.leftovers} for x in ledgers],
            "phases": None if phases is None else {
                "taken": phases.taken, "before": phases.before, "sums": phases.sums,
                "is_critical": self._is_critical,
            },
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a state into a new exchange of the same run, which continues with the same
        bits."""
        if self._phases is not None:
            told = state["phases"]
            self._phases.taken, self._phases.before = told["taken"], told["before"]
            self._phases.sums, self._is_critical = dict(told["sums"]), told["is_critical"]
        # The last step's plan, not the next one's, because adopting the next plan converts
        # memory of the one into memory of the other.
        plan = self._at(max(state["step"] - 1, 0))
        if plan != self.workers.plan:
            self.workers.adopt(plan)
        self.workers.step = state["step"]
        if self.rates is not None:
            self.rates.units = dict(state["rates"])
        for ledger, saved in zip(self.workers.ledgers, state["ledgers"], strict=True):
            for name, mine in saved["memory"].items():
                placed = {key: ledger.placed(name, key, x) for key, x in mine.items()}
                ledger.memory[name].clear()
                ledger.memory[name].update(placed)
            ledger.leftovers = dict(saved["leftovers"])
