"""How many steps local training takes to a round, found while the first ones are taken.

the fewest with which the exchange takes a tenth of the round's steps, at most 8
"""

from __future__ import annotations

import math
from statistics import median
from time import perf_counter

import torch

FIRST = 4
"""Steps to a round until it is found."""
ROUNDS = 3
"""So many rounds are measured; the first also connects and allocates."""
SHARE = 0.1
LONGEST = 8
"""What benchmarks/convergence has judged: with Muon, 8 lose 3.7 % to dense Muon, 4 lose 2.1 %."""


class Rounds:
    """Watches one rank's steps and exchanges. device: where they are computed, which is waited
    for after each step that is watched."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._since: float | None = None
        self._steps, self._exchanges = list[float](), list[float]()

    def step_over(self) -> None:
        """A step of the optimizer has been taken; what follows is exchange."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        now = perf_counter()
        if self._since is not None:
            self._steps.append(now - self._since)
        self._since = now

    def exchange_over(self) -> None:
        """An exchange is over; a step follows."""
        assert self._since is not None, "an exchange follows a step"
        now = perf_counter()
        self._exchanges.append(now - self._since)
        self._since = now

    @property
    def are_enough(self) -> bool:
        """Whether as many rounds as it takes have been measured."""
        return len(self._exchanges) == ROUNDS

    def found(self) -> int:
        """How many steps a round has, by this rank's clock."""
        return steps_to_a_round(median(self._steps[1:]), min(self._exchanges))


def steps_to_a_round(step: float, exchange: float) -> int:
    """How many steps a round has, by the seconds of a step and of an exchange."""
    return min(LONGEST, max(1, math.ceil(exchange / (SHARE * step))))
