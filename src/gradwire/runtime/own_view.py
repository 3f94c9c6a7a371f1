"""Where a rank's weights would be, had all that waits here been sent: there it computes.

forward begins                    backward is over
weights  x ───► x - rate · residual ───► x        shared, equal on all ranks, at rest
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradwire.runtime.ledger import Ledger
from gradwire.strategy import Strategy


class OwnView:
    """One rank's. Weights: what this rank holds of each parameter, by its name."""

    def __init__(self) -> None:
        self.shared: dict[str, Tensor] = {}
        """What the weights are at rest, of those that are elsewhere now."""
        self._room: dict[str, Tensor] = {}

    def enter(
        self, weights: Mapping[str, Tensor], ledger: Ledger, rates: Mapping[str, float]
    ) -> None:
        """Move the weights of feedbacks that want it. rates: in whose unit the residuals are."""
        self.leave(weights)
        for name, residual in self._waiting(ledger).items():
            if rate := rates.get(name, 0.0):
                x = weights[name].data  # autograd need not know
                if name not in self._room:
                    self._room[name] = torch.empty_like(x)
                self.shared[name] = self._room[name].copy_(x)
                x.sub_(residual.view_as(x).to(x.dtype), alpha=rate)

    def leave(self, weights: Mapping[str, Tensor]) -> None:
        """Put them back, to the bit."""
        for name, x in self.shared.items():
            weights[name].data.copy_(x)
        self.shared = {}

    def moves(self, ledger: Ledger) -> bool:
        """Whether there is something to enter."""
        return bool(self._waiting(ledger))

    def _waiting(self, ledger: Ledger) -> dict[str, Tensor]:
        """Residuals of feedbacks that want it, of what this rank looks after whole."""
        plan, memory = ledger.plan, ledger.memory
        return {
            name: memory[name]["residual"]
            for bucket, strategy in zip(plan.buckets, plan.strategies)
            if is_local(strategy)
            for name in bucket.names
            if "residual" in memory[name] and ledger.is_whole(name)
        }


def is_local(strategy: Strategy) -> bool:
    """Whether ranks compute at their own views beside it."""
    return getattr(strategy.feedback, "local", False)
