"""Where a rank's weights would be, had all that waits here been sent: there it computes.

                 at rest          at the own view
    weights      x, shared   ◄─►  x - rate · residual
    residual     residual    ◄─►  x

The two arrays hold both at all times, so that the view takes no memory. A rank leaves it for a
parameter whose gradient is there: its backward needs the weights no more, and what waits is about
to be sent. x comes back to the bit; the residual to the rounding of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.runtime.ledger import Ledger
from gradwire.strategy import Strategy

CHUNK = 1 << 16
"""Elements that are moved at a time: they stay in a processor's cache meanwhile."""


class Kept(NamedTuple):
    """The shared weights of a parameter that is at the own view, 1-D."""

    shared: Tensor
    rate: float | None
    """In whose unit the residual is whose memory they are in; None: they are in a copy."""


class OwnView:
    """One rank's. Weights: what this rank holds of each parameter, by its name."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._rooms: dict[str, Tensor] = {}  # of weights that are no fp32

    @property
    def entered(self) -> bool:
        """Whether some weights are elsewhere than they are at rest."""
        return bool(self._kept)

    def enter(
        self, weights: Mapping[str, Tensor], ledger: Ledger, rates: Mapping[str, float]
    ) -> None:
        """Move the weights of feedbacks that want it. rates: in whose unit the residuals are."""
        self.leave(weights)
        for name, residual in self._waiting(ledger).items():
            if rate := rates.get(name, 0.0):
                w = weights[name].data  # autograd need not know
                if w.dtype == torch.float32:
                    _enter(w, residual, rate)
                    self._kept[name] = Kept(residual, rate)
                else:  # too coarse for a residual to come back from
                    room = self._rooms.setdefault(name, torch.empty_like(w).view(-1))
                    self._kept[name] = Kept(room.copy_(w.reshape(-1)), None)
                    w.sub_(residual.view_as(w).to(w.dtype), alpha=rate)

    def leave(self, weights: Mapping[str, Tensor], names: Iterable[str] | None = None) -> None:
        """Put them back, to the bit; of these names only, or all."""
        for name in list(self._kept) if names is None else names:
            if name in self._kept:
                w, (shared, rate) = weights[name].data, self._kept.pop(name)
                if rate is None:
                    w.copy_(shared.view_as(w))
                else:
                    _leave(w, shared, rate)

    def uncover(self, weights: Mapping[str, Tensor]) -> None:
        """The residuals are in their memory, for others to read and write, and the weights stay
        at the own view: this takes a copy of them until they are left."""
        for name, (shared, rate) in self._kept.items():
            if rate is not None:
                self._kept[name] = Kept(shared.clone(), None)
                for w, v in _chunks(weights[name].data, shared):
                    v.copy_(torch.sub(v, w).div_(rate))

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


def _enter(weights: Tensor, residual: Tensor, rate: float) -> None:
    for w, v in _chunks(weights, residual):
        moved = torch.sub(w, v, alpha=rate)
        v.copy_(w)
        w.copy_(moved)


def _leave(weights: Tensor, shared: Tensor, rate: float) -> None:
    for w, v in _chunks(weights, shared):
        residual = torch.sub(v, w).div_(rate)
        w.copy_(v)
        v.copy_(residual)


def _chunks(weights: Tensor, other: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both in parts, that can be written."""
    if weights.is_contiguous():
        yield from zip(torch.split(weights.view(-1), CHUNK), torch.split(other, CHUNK))
    else:
        yield weights, other.view(weights.shape)
