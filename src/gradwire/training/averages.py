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
        self.under_gradient: str | None = None
        """A parameter that was found to hold one when its next gradient came."""

    def remember(self, handed_out: Iterable[tuple[str, Tensor | None, int]]) -> None:
        """Keep the averages by parameter name, with the number of writes until now."""
        self._written = {n: (weakref.ref(g), w) for n, g, w in handed_out if g is not None}

    def look(self, name: str, gradient: Tensor | None, writes: int) -> bool:
        """Whether it is that tensor, after so many writes. `refuse` raises it later: other ranks
        are amid their own backward."""
        if gradient is None or name not in self._written:
            return False
        written, count = self._written[name]
        if written() is not gradient or count != writes:
            return False
        self.under_gradient = name
        return True

    def was_changed(self, name: str) -> bool:
        """Whether what was handed out for it has been written to since, as far as can be told."""
        kept = self._written.get(name)
        gradient = kept[0]() if kept else None
        return gradient is not None and kept is not None and gradient._version != kept[1]

    def refuse(self) -> None:
        """UsageError if one was found: a strategy would remember it as if it were a gradient."""
        name, self.under_gradient = self.under_gradient, None
        if name is not None:
            raise UsageError(
                "a strategy with memory takes one backward() per step, which begins without "
                f"gradients; '{name}' still held the last one's average. Call zero_grad() on all "
                "that is attached between, or wrap all but the last backward() in "
                "handle.no_sync(), and those whose gradients are thrown away, as a generator's "
                "through its discriminator: what was exchanged is remembered. Parts with "
                "optimizers of their own take turns: attach each of them. Reentrant "
                "checkpointing counts as several: use use_reentrant=False."
            )
