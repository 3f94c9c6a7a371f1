"""Finds the number of local steps in a round, while the first steps are taken.

It is the fewest with which an exchange takes a tenth of the time of the round's steps, at most 8.
"""

from __future__ import annotations

import math
from statistics import median
from time import perf_counter

import torch

FIRST = 4
"""Steps in a round until the number is found."""
ROUNDS = 3
"""The number of rounds that are measured; the first also connects and allocates."""
SHARE = 0.1
"""The most time that an exchange should take, as a part of the time of its round's steps."""
LONGEST = 8
"""The most steps that benchmarks/convergence has judged: with Muon, 8 lose 3.7 % to dense Muon, 4
lose 2.6 %."""


class Rounds:
    """Measures one rank's steps and exchanges. device: the model's, which is synchronized after
    each measured step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._since: float | None = None
        self._steps, self._exchanges = list[float](), list[float]()

    def step_over(self) -> None:
        """Record that a step of the optimizer is over; an exchange may follow."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        now = perf_counter()
        if self._since is not None:
            self._steps.append(now - self._since)
        self._since = now

    def exchange_over(self) -> None:
        """Record that an exchange is over; a step follows."""
        assert self._since is not None, "an exchange follows a step"
        now = perf_counter()
        self._exchanges.append(now - self._since)
        self._since = now

    @property
    def are_enough(self) -> bool:
        """Whether enough rounds have been measured."""
        return len(self._exchanges) == ROUNDS

    def found(self) -> int:
        """Returns the number of steps in a round, by this rank's clock."""
        return steps_to_a_round(median(self._steps[1:]), min(self._exchanges))


def steps_to_a_round(step: float, exchange: float) -> int:
    """Returns the number of steps in a round, given the seconds of a step and of an exchange."""
    return min(LONGEST, max(1, math.ceil(exchange / (SHARE * step))))
