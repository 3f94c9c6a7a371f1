"""What waits keeps the learning rate that it came with: it arrives at another one.

residual  *=  rate then / rate now       so that   rate now · residual  =  Σ rate then · gradient
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

TOLERANCE = 0.01
"""How far, in parts, rates may drift before what waits is multiplied: schedules that fall in each
of thousands of steps cost a hundred passes over memory in all."""

FALL = 1000.0
"""A rate that falls by more at once is a schedule's end (the cosine of π is not quite -1), not a
rate: what waits would be multiplied out of a 16-bit number's range."""


class Waiting(Protocol):
    """Sums that wait, by the parameter's name: a `Ledger`'s, for example."""

    def scale_waiting(self, name: str, factor: float) -> None:
        """Multiply all that waits of a parameter."""


class Rates:
    """Knows in which learning rate's unit each parameter's residuals are. The same on all ranks,
    but for one that has left a `Join`: it steps no more.

    Source: Karimireddy et al. 2019, "Error Feedback Fixes SignSGD", algorithm 2, which remembers
    rate · gradient; here memory stays in the gradients' unit, so that clipping, loss scales and
    optimizers see gradients.
    """

    def __init__(self) -> None:
        self.units: dict[str, float] = {}
        """By the parameter's name; to be saved."""

    def follow(self, rates: Mapping[str, float], ledgers: Sequence[Waiting]) -> None:
        """A step is made at these rates, after its exchange. Zero, or almost, says nothing.

        Where a rate jumps, what remained of this step's own gradient is multiplied too: one of
        the many that wait.
        """
        for name, now in rates.items():
            then = self.units.get(name, now)
            if now > 0 and then <= FALL * now:
                self.units.setdefault(name, now)
                if abs(then - now) > TOLERANCE * now:
                    for ledger in ledgers:
                        ledger.scale_waiting(name, then / now)
                    self.units[name] = now
