"""The weights as they would be if this rank's residual had been sent: it computes gradients there.

                 at rest          at the own view
    weights      x, shared   ◄─►  x - rate · residual
    residual     residual    ◄─►  x

The two arrays hold both at all times, so that the view takes no memory. A rank leaves the view of
a parameter once its gradient is computed: backward no longer needs its weights, and the residual
is about to be sent. x comes back to the bit, the residual up to the rounding of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from gradwire.runtime.ledger import Ledger
from gradwire.strategy import Strategy

CHUNK = 1 << 16
"""The number of elements that are moved at a time: they stay in a processor's cache meanwhile."""
CHUNK_ELSEWHERE = 1 << 24
"""The same on a device, where launching an operation takes longer than CHUNK elements would."""


class Swap:
    """A parameter that is at the own view, or on its way there or back.

    An exception, such as KeyboardInterrupt, may come between any two lines of a swap, and must not
    lose weights: the current state is known at all times, and `leave` continues from it.

    shared: the shared weights, 1-D. rate: the learning rate of the residual whose memory they are
    in; None: they are in a copy. spare: a buffer for a chunk.
    """

    def __init__(self, shared: Tensor, rate: float | None, spare: Tensor) -> None:
        self.shared, self.rate, self._spare = shared, rate, spare
        self._swapped, self._phase = 0, 0  # chunks done; how far the next one is

    def enter(self, weights: Tensor) -> None:
        """Moves the weights to the own view, chunk by chunk."""
        assert self.rate is not None, "weights in a copy are moved by who copies them"
        for w, v in _chunks(weights, self.shared):
            moved = torch.sub(w, v, alpha=self.rate, out=self._room(w))
            self._phase = 1
            v.copy_(w)
            self._phase = 2
            w.copy_(moved)
            self._swapped, self._phase = self._swapped + 1, 0

    def leave(self, weights: Tensor) -> None:
        """Puts the shared weights back, to the bit."""
        if self.rate is None:
            weights.copy_(self.shared.view_as(weights))
            return
        self.settle(weights)
        chunks = list(_chunks(weights, self.shared))
        while self._swapped:
            w, v = chunks[self._swapped - 1]
            residual = torch.sub(v, w, out=self._room(w)).div_(self.rate)
            self._phase = 3
            w.copy_(v)
            self._phase = 4
            v.copy_(residual)
            self._swapped, self._phase = self._swapped - 1, 0

    def settle(self, weights: Tensor) -> None:
        """Puts an unfinished chunk back to the shared weights."""
        if not self._phase or self.rate is None:
            return
        is_leaving = self._phase > 2
        w, v = list(_chunks(weights, self.shared))[self._swapped - is_leaving]
        if self._phase in (2, 3):
            w.copy_(v)
            self._phase = 4 if is_leaving else 1
        if is_leaving:
            v.copy_(self._room(w))
        else:
            torch.sub(w, self._room(w), out=v).div_(self.rate)
        self._swapped, self._phase = self._swapped - is_leaving, 0

    def _room(self, w: Tensor) -> Tensor:
        return self._spare[: w.numel()].view(w.shape)


class OwnView:
    """One rank's own view. weights: what this rank holds of each parameter, by its name."""

    def __init__(self) -> None:
        self._swaps: dict[str, Swap] = {}
        self._rooms: dict[str, Tensor] = {}  # copies of weights that cannot swap
        self._spare = torch.empty(0, dtype=torch.float32)

    @property
    def entered(self) -> bool:
        """Whether some weights are at the own view."""
        return bool(self._swaps)

    @property
    def names(self) -> list[str]:
        """The parameters at the own view."""
        return list(self._swaps)

    def enter(
        self, weights: Mapping[str, Tensor], ledger: Ledger, rates: Mapping[str, float]
    ) -> None:
        """Moves the weights whose feedback wants it to the own view. rates: the learning rate of
        each residual."""
        self.leave(weights)
        for name, residual in self._waiting(ledger).items():
            if rate := rates.get(name, 0.0):
                w = weights[name].data  # autograd need not know
                if swaps(w, residual):
                    self._swaps[name] = swap = Swap(residual, rate, self._spare_for(w))
                    swap.enter(w)
                else:
                    if name not in self._rooms:
                        self._rooms[name] = w.new_empty(w.numel())
                    self._rooms[name].view(w.shape).copy_(w)
                    self._swaps[name] = Swap(self._rooms[name], None, self._spare)
                    w.sub_(residual.to(w.device, w.dtype).view_as(w), alpha=rate)

    def leave(self, weights: Mapping[str, Tensor], names: Iterable[str] | None = None) -> None:
        """Puts the shared weights back, to the bit; all, or only those of these names."""
        self._settle(weights)
        for name in list(self._swaps if names is None else names):
            if name in self._swaps:
                self._swaps[name].leave(weights[name].data)
                del self._swaps[name]

    def _settle(self, weights: Mapping[str, Tensor]) -> None:
        """Puts an unfinished chunk back, before other swaps use the spare room."""
        for name in [name for name in self._swaps if name in weights]:
            self._swaps[name].settle(weights[name].data)

    def uncover(self, weights: Mapping[str, Tensor]) -> None:
        """Puts the residuals back into their memory, for others to read and write. The weights
        stay at the own view, so the shared weights are in a copy until they are left."""
        self._settle(weights)
        for name, swap in self._swaps.items():
            if swap.rate is not None:
                w = weights[name].data
                own = w.clone()
                swap.leave(w)
                shared = torch.clone(w, memory_format=torch.contiguous_format).view(-1)
                self._swaps[name] = Swap(shared, None, self._spare)
                w.copy_(own)

    def waiting(self, name: str, weights: Tensor, residual: Tensor) -> Tensor:
        """Returns a parameter's residual; `residual` is the tensor in its state. Changes nothing:
        any thread may call it during a step."""
        swap = self._swaps.get(name)
        if swap is None or swap.rate is None:
            return residual
        return torch.sub(residual, weights.reshape(-1)).div_(swap.rate)

    def _spare_for(self, weights: Tensor) -> Tensor:
        n, at_once = weights.numel(), _at_once(weights)
        n = min(n, at_once) if weights.is_contiguous() else n
        if self._spare.numel() < n or self._spare.device != weights.device:
            self._spare = torch.empty(n, device=weights.device, dtype=torch.float32)
        return self._spare

    def moves(self, ledger: Ledger) -> bool:
        """Whether `enter` would have weights to move."""
        return bool(self._waiting(ledger))

    def _waiting(self, ledger: Ledger) -> dict[str, Tensor]:
        """Returns the residuals of feedbacks that want it, of parameters of whose gradient this
        rank keeps its own state."""
        plan, memory = ledger.plan, ledger.memory
        return {
            name: memory[name]["residual"]
            for bucket, strategy in zip(plan.buckets, plan.strategies)
            if is_local(strategy)
            for name in bucket.names
            if "residual" in memory[name] and ledger.is_own(name)
        }


def swaps(weights: Tensor, residual: Tensor) -> bool:
    """Whether weights and residual can share two arrays: not if the weights are too coarse for a
    residual to be computed from them, or on another device."""
    return weights.dtype == torch.float32 and weights.device == residual.device


def is_local(strategy: Strategy) -> bool:
    """Whether ranks compute at their own views with this strategy."""
    return strategy.feedback is not None and strategy.feedback.local


def _at_once(weights: Tensor) -> int:
    return CHUNK if weights.is_cpu else CHUNK_ELSEWHERE


def _chunks(weights: Tensor, other: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields both in parts, as writable views."""
    if weights.is_contiguous():
        n = _at_once(weights)
        yield from zip(torch.split(weights.view(-1), n), torch.split(other, n))
    else:
        yield weights, other.view(weights.shape)
