"""What `handle.stats()` tells: plain floats, means per step of the plan in force."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter

import torch
from torch import Tensor

from gradwire.runtime.context import BucketContext
from gradwire.trace import Trace


class Stats:
    """Sums over steps; reads the trace that the lanes wrote."""

    def __init__(self, contexts: Sequence[BucketContext]) -> None:
        self._contexts = contexts
        self._steps, self._exposed_seconds = 0, 0.0
        self._bytes_sent = self._bytes_across = 0.0
        self._waiting_since = perf_counter()
        self._seconds = {"encode": 0.0, "wire": 0.0, "decode": 0.0}
        dense = [p for c in contexts for p in c.bucket.parameters if not p.sparse]
        self._dense_bytes, self._row_bytes = float(sum(p.bytes for p in dense)), 0.0
        elements = sum(c.bucket.elements for c in contexts)
        self._density = sum(_elements_sent(c) for c in contexts) / max(elements, 1)

    def given(self, gradient: Tensor) -> None:
        """One whose size is not known beforehand."""
        dense = gradient.layout == torch.strided
        self._row_bytes += (gradient if dense else gradient._values()).nbytes

    def backward_over(self) -> None:
        """Note that from here on the step only waits for the exchange."""
        self._waiting_since = perf_counter()

    def record(self, trace: Trace) -> None:
        """Take up one step, which ends now."""
        self._exposed_seconds += perf_counter() - self._waiting_since
        self._steps += 1
        for span in trace.spans:
            self._seconds[span.kind] += span.seconds
        self._bytes_sent += sum(trace.bytes_sent)
        self._bytes_across += sum(trace.bytes_across)

    def read(self, waiting: Callable[[str, Tensor], Tensor] | None = None) -> dict[str, float]:
        """See `Handle.stats`."""
        steps = max(self._steps, 1)
        busy, exposed = sum(self._seconds.values()) / steps, self._exposed_seconds / steps
        return {
            "steps": float(self._steps),
            "bytes_given": self._dense_bytes + self._row_bytes / steps,
            "bytes_sent": self._bytes_sent / steps,
            "bytes_across": self._bytes_across / steps,
            "density": self._density,
            **{f"{kind}_seconds": total / steps for kind, total in self._seconds.items()},
            "exposed_seconds": exposed,
            "overlap": max(0.0, 1.0 - exposed / busy) if busy else 0.0,
            "residual_norm": math.hypot(*(c.residual_norm(waiting) for c in self._contexts)),
        }


def _elements_sent(context: BucketContext) -> float:
    compressor, bucket = context.strategy.compressor, context.bucket
    if context.ragged or context.strategy.collective.own_feedback:
        return math.nan  # not known, or no elements at all
    spoken = ((compressor.claims(n, bucket.dtype).elements, n) for n in bucket.sizes)
    return sum(n if elements is None else elements for elements, n in spoken)
