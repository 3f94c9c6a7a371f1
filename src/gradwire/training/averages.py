"""The averages that were handed out last: what is added on top of one is no gradient."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor

from gradwire.errors import UsageError


class Averages:
    """Which tensors hold them, and how often each had been written to. Weakly held: addresses are
    handed out again."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[weakref.ref[Tensor], int]] = {}

    def remember(self, handed_out: Iterable[tuple[str, Tensor | None, int]]) -> None:
        """By parameter name, with the number of writes until now."""
        self._written = {n: (weakref.ref(g), w) for n, g, w in handed_out if g is not None}

    def holds(self, name: str, gradient: Tensor | None, writes: int) -> bool:
        """Whether it was that tensor, after so many writes."""
        if gradient is None or name not in self._written:
            return False
        written, count = self._written[name]
        return written() is gradient and count == writes


def second_backward(name: str) -> UsageError:
    """For a strategy that would remember an average as if it were a gradient."""
    return UsageError(
        "a strategy with memory takes one backward() per step, which begins without gradients; "
        f"'{name}' still held the last one's average. Call zero_grad() on all that is attached "
        "between, or wrap all but the last backward() in handle.no_sync(), and those whose "
        "gradients are thrown away, as a generator's through its discriminator: what was "
        "exchanged is remembered. Parts with optimizers of their own take turns: attach each of "
        "them. Reentrant checkpointing counts as several: use use_reentrant=False."
    )
