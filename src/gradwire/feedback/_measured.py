"""The base of feedbacks that compress each rank's own step, and measure its noise.

w, of this rank ──► 32 random sums, and the sum of their squares ──► mean over the ranks
                                                                        │
κ² = mean of |w|² over |mean of w|², smoothed, between 1 and N  ◄───────┘
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
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
"""The number of projections of each tensor; each is the sum of a part of it, with random signs."""
SMOOTHING = 0.9
"""The weight of earlier measurements in the moving average."""


class Measured(Feedback):
    """A rank divides by the size of its past gradients, which holds the noise of its batch: its
    step is too short, by κ. In every `every`-th step, κ is measured before anything is encoded.

    The numbers are few: their bytes are not in a strategy's price.

    turns: a parameter is stepped only once in so many steps, in the `turn`-th of them, and so many
    times as far; others have other turns. In between, its moments follow the gradients.
    """

    makes_good: ClassVar[bool] = True
    exact_mean: ClassVar[bool] = True
    every: ClassVar[int] = 10
    turn: int = 0

    def rests(self, step: int) -> bool:
        """Whether that step is the turn of other parameters."""
        return step % self.turns != self.turn % self.turns

    def measures(self, step: int, states: Iterable[State]) -> bool:
        """Whether noise is measured before that step, which is its turn: every `every` steps, and
        at once where moments are still the average's, or noise has not been measured yet, as after
        the number of ranks has changed. states: those of a bucket, alike in this on all ranks."""
        is_due = step % self.every < self.turns
        return is_due or any(NOISE not in s or _are_the_average_s(s) for s in states)

    def check_turns(self) -> None:
        """Raise StrategyError unless turns and turn are valid."""
        whole = all(type(n) is int for n in (self.turns, self.turn))
        if not whole or self.turns < 1 or not 0 <= self.turn < self.turns:
            raise StrategyError(
                f"{self.name}'s turns must be a whole number, at least 1, and turn one from 0 to "
                f"turns - 1; got turns={self.turns!r}, turn={self.turn!r}. Use for example "
                f"{self.name}(turns=4)."
            )

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {**state, "residual": x - sent}

    @abstractmethod
    def encoder(self, compressor: Compressor) -> Encoder:
        """Returns an encoder that applies it and a compressor in place."""

    @abstractmethod
    def divided(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        """Returns w: x, or a sample of it, after the division, 1-D. Changes nothing."""

    def opening(self, step: int, own: Callable[[], Sequence[Own]], world: int) -> Rounds[bool]:
        """Measure the noise of all parameters in one move; values that are not finite are ignored.
        Nothing is sent in a step that is the turn of others."""
        if self.rests(step):
            for one in own():
                status = kernels.new_status(one.gradient.device)
                # One that is not finite is left out: no message goes that could tell others.
                kernels.flag_non_finite(one.gradient, status)
                self.follow(one.x, one.state, status)
            return False
        given = own()
        if self.measures(step, (one.state for one in given)):
            numbers = [self.measure(one.x, one.state, one.info, one.key) for one in given]
            total = yield AllReduce(torch.cat(numbers))
            means = total.div_(world).cpu()  # waits for the device, but only in these steps
            for mean, one in zip(means.view(len(given), -1), given):
                if kernels.is_finite(mean):
                    self.learn(mean, one.state, world)
        return True

    def follow(self, x: Tensor, state: State, status: Tensor) -> None:
        """Update the moments alone by x, 1-D, already scaled, in place, unless the status is
        raised."""
        raise NotImplementedError(f"{self.name} has no turns")

    def measure(self, x: Tensor, state: State, info: StepInfo, key: Key) -> Tensor:
        """Returns this rank's numbers of one parameter, (PROJECTIONS + 1,). Changes nothing."""
        w = self.divided(x, state, info)
        dice = kernels.Noise.of(f"{key.seed}/{key.step}/{key.parameter}/noise factor")
        minus = kernels.random_bits(dice, w.numel(), device=x.device) >= 1 << 31
        signed = torch.where(minus, -w, w)
        padded = torch.nn.functional.pad(signed, (0, -w.numel() % PROJECTIONS))
        sums = padded.view(PROJECTIONS, -1).sum(1)
        return torch.cat([sums, sums.square().sum().view(1)])

    def learn(self, mean: Tensor, state: State, world: int) -> None:
        """Update the state by the numbers' mean over the ranks, which is finite."""
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
        """A noise of zeros marks the moments as those of the average."""
        x = moments["exp_avg"]
        noise = torch.zeros(3, dtype=torch.float32, device="cpu")
        return {**moments, "residual": torch.zeros_like(x), NOISE: noise}


@dataclass
class StepEncoder(Encoder):
    """The encoder of such a feedback: a step is added to the residual, and what is sent leaves it.
    States are vectors of the parameter's size, one of them "residual"."""

    compressor: Compressor
    states: ClassVar[tuple[str, ...]]
    _fresh: bool = field(default=False, kw_only=True)  # this step made the state
    _key: Key | None = field(default=None, kw_only=True)

    def begin(self, x: Tensor, state: State, key: Key) -> None:
        """Create what the state lacks: all, or the residual of a rank that got its moments from
        another."""
        self._key, self._fresh = key, not any(name in state for name in self.states)
        for name in self.states:
            if name not in state:
                state[name] = kernels.zeros(x.numel(), x.device)

    def send(self, state: State, sections: Sections, key: Key, status: Tensor) -> None:
        """Encode the residual, and subtract what is sent."""
        v = state["residual"]
        self.compressor.encode(v, sections, key, status)
        self.compressor.add(sections, v, -1.0, key)

    def forget(self, state: State) -> None:
        """Remove the state that this step made."""
        for name in self.states:
            state.pop(name, None)

    def give_back(self, state: State, sections: Sections) -> None:
        self.compressor.add(sections, state["residual"], 1.0, self._key)


def _are_the_average_s(state: State) -> bool:
    """Whether the moments are still those of the average that `adopt` got."""
    return NOISE in state and not state[NOISE].any()


def noise_factor(state: State) -> float:
    """Returns κ, as it was measured last; 1 before."""
    return (float(state[NOISE][2]) if NOISE in state else 0.0) or 1.0
