"""Sums of what a session's steps took, from which `handle.stats()` and recordings compute means.

    ┬── compute ──┬──── backward ────┬── exposed ──┬── compute ──
    exchange      first              backward      exchange
    over          gradient           over          over

If an exchange ends before backward does, as for one part of a larger model, nothing is exposed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter

import torch
from torch import Tensor

from gradwire.runtime.context import BucketContext
from gradwire.trace import TRAINING_THREAD, Span, Trace

KINDS = "encode", "wire", "decode"
"""The kinds of spans in the lanes."""


class Stats:
    """Sums over the steps of one plan, from the trace that the lanes wrote.

    sums: "steps", of which "skipped" were not finite; seconds of "compute", "backward", "exposed"
    and of each of KINDS; "bytes_sent", "bytes_across", and "row_bytes", of sparse gradients.
    """

    def __init__(self, contexts: Sequence[BucketContext], before: Stats | None = None) -> None:
        """before: the sums of the plan that was in force until now; the first step's compute time
        begins at the end of its last exchange."""
        self._contexts = contexts
        names = ("steps", "skipped", "compute", "backward", "exposed", *KINDS)
        self.sums = dict.fromkeys((*names, "bytes_sent", "bytes_across", "row_bytes"), 0.0)
        self._sums_before = dict(self.sums) if before is None else before.totals()
        now = perf_counter()
        self._ended: float = now if before is None else before._ended
        self._before = self._begun = self._ended
        self._over: float | None = None
        dense = [p for c in contexts for p in c.bucket.parameters if not p.sparse]
        self.dense_bytes = float(sum(p.bytes for p in dense))
        elements = sum(c.bucket.elements for c in contexts)
        self._density = sum(_elements_sent(c) for c in contexts) / max(elements, 1)

    def ages(self) -> list[float | None]:
        """Returns, bucket by bucket, the mean number of steps from one time that an element is
        sent to the next; None if that depends on the data."""
        found = []
        for context in self._contexts:
            feedback = context.strategy.feedback
            turns, sent = feedback.turns if feedback else 1, _elements_sent(context)
            found.append(turns * context.bucket.elements / sent if sent > 0 else None)
        return found

    def totals(self) -> dict[str, float]:
        """Returns the sums since the model was attached, over all plans."""
        return {name: total + self._sums_before[name] for name, total in self.sums.items()}

    @property
    def exchanges(self) -> int:
        """The number of exchanges since attach, whatever step number a loaded state has."""
        return int(self.sums["steps"] + self._sums_before["steps"])

    def given(self, gradient: Tensor) -> None:
        """Count the bytes of a gradient whose size is not known beforehand."""
        dense = gradient.layout == torch.strided
        self.sums["row_bytes"] += (gradient if dense else gradient._values()).nbytes

    def forget_now(self) -> None:
        """Exclude the time since the last exchange from all steps."""
        self._ended = perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Exclude so many seconds of the time since the last exchange from the next step."""
        self._ended += seconds

    def begun(self) -> None:
        """Note that the first gradient of a step is ready."""
        self._begun, self._over = perf_counter(), None

    def backward_over(self) -> None:
        """Note that backward is over: from now on the step only waits for the exchange."""
        self._over = perf_counter()

    def record(self, trace: Trace, skipped: bool = False) -> None:
        """Add a step, which ends now. skipped: whether it was not finite."""
        sums = self.sums
        self._before, self._ended = self._ended, perf_counter()
        self._over = over = self.backward_ended
        sums["steps"] += 1
        sums["skipped"] += skipped
        sums["compute"] += self._begun - self._before
        sums["backward"] += over - self._begun
        sums["exposed"] += self._ended - over
        for span in trace.spans:
            sums[span.kind] += span.seconds
        sums["bytes_sent"] += sum(trace.bytes_sent)
        sums["bytes_across"] += sum(trace.bytes_across)

    @property
    def last_seconds(self) -> float:
        """The seconds of the last step, from the end of the exchange before to that of its own."""
        return self._ended - self._before

    @property
    def backward_ended(self) -> float:
        """The time when backward of the last step was over, by `perf_counter`."""
        return self._ended if self._over is None else self._over

    def last_spans(self, rank: int) -> list[Span]:
        """Returns the spans of the last step on the training thread."""
        times = (self._before, self._begun, self.backward_ended, self._ended)
        parts = zip(("compute", "backward", "wait"), times, times[1:])
        return [Span(rank, TRAINING_THREAD, kind, "", a, b) for kind, a, b in parts if b > a]

    def residual_norm(self, waiting: Callable[[str, Tensor], Tensor] | None = None) -> float:
        """Returns the 2-norm of all residuals on this rank, now."""
        return math.hypot(*(c.residual_norm(waiting) for c in self._contexts))

    def read(self, waiting: Callable[[str, Tensor], Tensor] | None = None) -> dict[str, float]:
        """Returns the means; see `Handle.stats`."""
        steps = max(self.sums["steps"], 1.0)
        mean = {name: total / steps for name, total in self.sums.items()}
        busy, exposed = sum(mean[kind] for kind in KINDS), mean["exposed"]
        return {
            "steps": self.sums["steps"],
            "bytes_given": self.dense_bytes + mean["row_bytes"],
            "bytes_sent": mean["bytes_sent"],
            "bytes_across": mean["bytes_across"],
            "density": self._density,
            **{f"{name}_seconds": mean[name] for name in ("compute", "backward", *KINDS)},
            "exposed_seconds": exposed,
            "overlap": max(0.0, 1.0 - exposed / busy) if busy else 0.0,
            "residual_norm": self.residual_norm(waiting),
        }


def _elements_sent(context: BucketContext) -> float:
    compressor, bucket = context.strategy.compressor, context.bucket
    if context.ragged or context.strategy.collective.own_feedback:
        return math.nan  # it depends on the data, or what is sent are no elements
    spoken = ((compressor.claims(n, bucket.dtype).elements, n) for n in bucket.sizes)
    return sum(n if elements is None else elements for elements, n in spoken)
