"""A residual keeps the learning rate of its gradients, though it is sent at another one.

residual  *=  rate then / rate now       so that   rate now · residual  =  Σ rate then · gradient
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

TOLERANCE = 0.01
"""The relative change of a rate from which residuals are multiplied: a schedule that falls in each
of thousands of steps costs a hundred passes over memory in all."""

FALL = 1000.0
"""A rate that falls by a larger factor at once is a schedule's end (the cosine of π is not quite
-1), not a rate: residuals would be multiplied out of a 16-bit number's range."""


class Waiting(Protocol):
    """Residuals by the parameter's name: those of a `Ledger`, for example."""

    def scale_waiting(self, name: str, factor: float) -> None:
        """Multiplies a parameter's residuals by factor."""


class Rates:
    """The learning rate in whose unit each parameter's residuals are. The same on all ranks,
    except one that has left a `Join` and steps no more.

    Source: Karimireddy et al. 2019, "Error Feedback Fixes SignSGD", algorithm 2, which remembers
    rate · gradient; here memory stays in the gradients' unit, so that clipping, loss scales and
    optimizers see gradients.
    """

    def __init__(self) -> None:
        self.units: dict[str, float] = {}
        """The rates by the parameter's name, to be saved."""

    def follow(self, rates: Mapping[str, float], ledgers: Sequence[Waiting]) -> None:
        """Converts residuals to the rates of a step, after its exchange. A rate of zero, or almost
        zero, is ignored.

        If a rate jumps, this step's own share of the residual is multiplied, too: it is one of
        many.
        """
        for name, now in rates.items():
            then = self.units.get(name, now)
            if now > 0 and then <= FALL * now:
                self.units.setdefault(name, now)
                if abs(then - now) > TOLERANCE * now:
                    for ledger in ledgers:
                        ledger.scale_waiting(name, then / now)
                    self.units[name] = now
