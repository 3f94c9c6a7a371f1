"""The family of feedbacks that compress each rank's own step, and measure its noise.

w, of this rank ──► 32 random sums, and the sum of their squares ──► mean over the ranks
                                                                        │
κ² = mean of |w|² over |mean of w|², smoothed, between 1 and N  ◄───────┘
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import StrategyError
from gradwire.local import NOISE, Own
from gradwire.moves import AllReduce
from gradwire.strategy import Compressor, Encoder, Feedback, Key, Rounds, Sections, State, StepInfo

PROJECTIONS = 32
"""Of each tensor; each is the sum of a part of it, with signs at random."""
SMOOTHING = 0.9
"""How much of the last measurements a new one leaves."""


class Measured(Feedback):
    """A rank divides by what its own gradients have been, which holds the noise of its batch: its
    step is too short, by κ. In every `every`-th step, before anything is encoded, it is measured.

    The numbers are few: their bytes are not in a strategy's price.

    turns: a parameter is stepped in every so-manieth step only, in the `turn`-th of them, and so
    many times as far; the others have other turns. Between, its moments follow the gradients.
    """

    makes_good: ClassVar[bool] = True
    exact_mean: ClassVar[bool] = True
    every: ClassVar[int] = 10
    turn: int = 0

    def rests(self, step: int) -> bool:
        """Whether that step is others' turn."""
        return step % self.turns != self.turn % self.turns

    def measures(self, step: int, state: State) -> bool:
        """Whether noise is measured before that step, which is its turn: now and then, and at
        once where moments are the average's still. state: of one of the parameters, which are
        alike in that, on all ranks."""
        return step % self.every < self.turns or _are_the_average_s(state)

    def check_turns(self) -> None:
        """StrategyError unless they are numbers that make sense."""
        whole = all(type(n) is int for n in (self.turns, self.turn))
        if not whole or self.turns < 1 or not 0 <= self.turn < self.turns:
            raise StrategyError(
                f"{self.name}'s turns is a whole number, at least 1, and turn one below it; got "
                f"turns={self.turns!r}, turn={self.turn!r}. Use for example {self.name}(turns=4)."
            )

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {**state, "residual": x - sent}

    @abstractmethod
    def encoder(self, compressor: Compressor) -> Encoder:
        """It and a compressor at work, in place."""

    @abstractmethod
    def divided(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        """w: what x, or a sample of it, is behind the division. 1-D. Changes nothing."""

    def opening(self, step: int, own: Callable[[], Sequence[Own]], world: int) -> Rounds[bool]:
        """The noise of all parameters in one move; where it is not finite it teaches nothing. In
        a step that is others' turn nothing is sent."""
        if self.rests(step):
            for one in own():
                status = kernels.new_status(one.gradient.device)
                kernels.flag_non_finite(one.gradient, status)  # a bucket whose turn it is says so
                self.follow(one.x, one.state, status)
            return False
        given = own()
        if self.measures(step, given[0].state):
            numbers = [self.measure(one.x, one.state, one.info, one.key) for one in given]
            total = yield AllReduce(torch.cat(numbers))
            means = total.div_(world).cpu()  # the one wait, now and then
            for mean, one in zip(means.view(len(given), -1), given):
                if kernels.is_finite(mean):
                    self.learn(mean, one.state, world)
        return True

    def follow(self, x: Tensor, state: State, status: Tensor) -> None:
        """The moments alone take up x, 1-D, scaled already, unless the status is raised; in
        place."""
        raise NotImplementedError(f"{self.name} has no turns")

    def measure(self, x: Tensor, state: State, info: StepInfo, key: Key) -> Tensor:
        """This rank's numbers of one parameter: (PROJECTIONS + 1,). Changes nothing."""
        w = self.divided(x, state, info)
        dice = kernels.Noise.of(f"{key.seed}/{key.step}/{key.parameter}/noise factor")
        minus = kernels.random_bits(dice, w.numel(), device=x.device) >= 1 << 31
        signed = torch.where(minus, -w, w)
        padded = torch.nn.functional.pad(signed, (0, -w.numel() % PROJECTIONS))
        sums = padded.view(PROJECTIONS, -1).sum(1)
        return torch.cat([sums, sums.square().sum().view(1)])

    def learn(self, mean: Tensor, state: State, world: int) -> None:
        """Their mean over the ranks, which is finite, into the state."""
        *_, squares = mean
        found = torch.stack([squares, mean[:-1].square().sum()])
        borrowed = _are_the_average_s(state)
        if NOISE in state and not borrowed:
            found = state[NOISE][:2].lerp(found, 1 - SMOOTHING)
        ratio = found[0] / found[1].clamp(min=torch.finfo(torch.float32).tiny)
        factor = ratio.sqrt().clamp(1.0, world**0.5)
        if borrowed and "exp_avg_sq" in state:
            state["exp_avg_sq"].mul_(factor**2)
        state[NOISE] = torch.cat([found, factor.view(1)])

    def adopt(self, moments: State) -> State:
        """That the noise is nothing yet says whose moments they are."""
        x = moments["exp_avg"]
        return {**moments, "residual": torch.zeros_like(x), NOISE: torch.zeros(3)}


@dataclass
class StepEncoder(Encoder):
    """Such a feedback's: a step joins what waits, what is sent leaves it. States are vectors of
    the parameter's size, one of them "residual"."""

    compressor: Compressor
    states: ClassVar[tuple[str, ...]]
    _fresh: bool = field(default=False, kw_only=True)  # this step made the state
    _key: Key | None = field(default=None, kw_only=True)

    def begin(self, x: Tensor, state: State, key: Key) -> None:
        """The state is there."""
        self._key, self._fresh = key, "residual" not in state
        if self._fresh:
            for name in self.states:
                state[name] = kernels.zeros(x.numel(), x.device)

    def send(self, state: State, sections: Sections, key: Key, status: Tensor) -> None:
        """What waits, and keep the rest."""
        v = state["residual"]
        self.compressor.encode(v, sections, key, status)
        self.compressor.add(sections, v, -1.0, key)

    def forget(self, state: State) -> None:
        """The state that this step made."""
        for name in self.states:
            state.pop(name, None)

    def give_back(self, state: State, sections: Sections) -> None:
        self.compressor.add(sections, state["residual"], 1.0, self._key)


def _are_the_average_s(state: State) -> bool:
    """Whether the moments are still those that `adopt` was given."""
    return NOISE in state and not state[NOISE].any()


def noise_factor(state: State) -> float:
    """κ, as it was measured last."""
    return (float(state[NOISE][2]) if NOISE in state else 0.0) or 1.0
