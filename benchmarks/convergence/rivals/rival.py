"""The base class of rivals: they take the place of a plan's workers, and report what they send."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from gradwire.buckets import Parameter
from gradwire.plan import Plan
from gradwire.strategy import State, Strategy
from gradwire.testing import Workers
from gradwire.trace import Span


class Rival(Workers, ABC):
    """The workers of a published method, which exchanges its own parameters; the plan does the
    rest.

        N gradients ─► own parameters: stacked, (workers, *shape) ─► meet ─► what all step by
                    └► all others: as the plan has it

    A parameter's state is in `memory`, for all workers at once, and is saved with the run. A clip
    scale multiplies a worker's gradient before anything else sees it.
    """

    def __init__(self, plan: Plan, world: int, *, seed: int = 0) -> None:
        super().__init__(plan, world, seed=seed)
        self.world, self.seed = world, seed
        pairs = list(zip(plan.buckets, plan.strategies))
        others = [pair for pair in pairs if not self.takes(pair[1])]
        self._others = Workers(
            Plan(tuple(b for b, _ in others), tuple(s for _, s in others)), world, seed=seed
        )
        for mine, theirs in zip(self.ledgers, self._others.ledgers):
            mine.memory.update(theirs.memory)
        self.memory = self.ledgers[0].memory
        self._own = [p for pair in pairs if pair not in others for p in pair[0].parameters]
        for parameter in self._own:
            self.memory[parameter.name].update(self.begin(parameter))

    def takes(self, strategy: Strategy) -> bool:
        """Whether this method takes the parameters that the plan sends by that strategy; by
        default all."""
        return True

    @abstractmethod
    def begin(self, parameter: Parameter) -> State:
        """Returns the state of a parameter before the first step."""

    @abstractmethod
    def meet(self, name: str, x: Tensor, state: State) -> Tensor:
        """Returns what all workers step by, from what each of them contributes: (workers, *shape)
        -> shape.

        May change the state; reports what is sent to `count`.
        """

    @torch.no_grad()
    def exchange(
        self, gradients: Sequence[Mapping[str, Tensor]], clip_scales: Sequence[float] = ()
    ) -> dict[str, Tensor]:
        """The same as in `Workers`."""
        self._others.step = self.step
        averages = self._others.exchange(gradients, clip_scales)
        self.trace = self._others.trace
        scales = clip_scales or [1.0] * self.world
        for name in (p.name for p in self._own):
            x = torch.stack([mine[name] * scale for mine, scale in zip(gradients, scales)])
            averages[name] = self.meet(name, x, self.memory[name])
        self.step += 1
        return averages

    def count(self, move: Literal["all_reduce", "all_gather"], payload: float) -> None:
        """Counts a move to which every worker contributes `payload` bytes, and sends what
        `gradwire.moves` says."""
        others = self.world - 1
        sent = others * payload if move == "all_gather" else 2 * others / self.world * payload
        for rank in range(self.world):
            self.trace.add(Span(rank, 0, "wire", move, bytes=sent))
