"""Sums up a choice in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gradwire.layout.message import Layout
from gradwire.plan import Plan
from gradwire.planner.candidates import BF16, FP32, Candidate
from gradwire.planner.choose import LEAST_GAIN, WORTH, Choice
from gradwire.planner.timeline import ratio
from gradwire.report.terminal import plain
from gradwire.strategy import Strategy

_MANY = 1 << 20  # elements
_SHORT = {FP32: "fp32", BF16: "bf16"}


@dataclass(frozen=True)
class Verdict:
    """Whether to compress. compressed, tensors: numbers of tensors in the plan. seconds: of a
    step, predicted. against: the shorter of the tuned baselines; None: none was measured;
    against_seconds: its step. unbeaten: the shorter one of those that may be used; None: none may.
    unbeaten_seconds: its step. added: the share of the step that communication adds.
    """

    kind: Literal["compress", "dense"]
    compressed: int
    tensors: int
    seconds: float
    against: str | None = None
    against_seconds: float = 0.0
    unbeaten: str | None = None
    added: float = 0.0
    unbeaten_seconds: float = 0.0

    @property
    def speedup(self) -> float:
        """The speedup against the baseline; 1.0 if there is none."""
        return ratio(self.against_seconds, self.seconds) if self.against else 1.0

    def __str__(self) -> str:
        if self.kind == "compress":
            gain = f": {faster(self.speedup)} than {_SHORT[self.against]}" if self.against else ""
            return f"compress {self.compressed} of {self.tensors} tensors{gain}"
        if self.unbeaten and self.unbeaten_seconds > (1 + LEAST_GAIN) * self.seconds:
            gain = faster(ratio(self.unbeaten_seconds, self.seconds))
            return f"do not compress: this plan is {gain} than tuned {_SHORT[self.unbeaten]}"
        if self.unbeaten and self.seconds > (1 + LEAST_GAIN) * self.unbeaten_seconds > 0:
            # Of a plan that was not searched.
            gain = faster(ratio(self.seconds, self.unbeaten_seconds))
            return f"this plan does not compress: tuned {_SHORT[self.unbeaten]} is {gain}"
        if self.added < WORTH:
            return "do not compress: the network is not your bottleneck"
        best = f"beats tuned {_SHORT[self.unbeaten]}" if self.unbeaten else "is faster"
        return f"do not compress: nothing that may be used {best}"


def verdict(choice: Choice) -> Verdict:
    """Judges a choice against the shorter of its baselines."""
    best, against = choice.best, _shortest(choice.baselines)
    compressed, tensors = counts(best.plan)
    unbeaten = _shortest(choice.usable)
    return Verdict(
        "compress" if compressed else "dense", compressed, tensors, best.seconds, against,
        choice.baselines[against].seconds if against else 0.0, unbeaten, best.added,
        choice.baselines[unbeaten].seconds if unbeaten else 0.0,
    )  # fmt: skip


def _shortest(baselines: Mapping[str, Candidate]) -> str | None:
    return min(baselines, key=lambda own: baselines[own].seconds, default=None)


def counts(plan: Plan) -> tuple[int, int]:
    """Returns how many tensors a plan compresses, and how many it has."""
    pairs = list(zip(plan.buckets, plan.strategies))
    dense = [(bucket, strategy) for bucket, strategy in pairs if not bucket.has_rows]
    compressed = sum(len(b.parameters) for b, s in dense if compresses(s))
    return compressed, sum(len(b.parameters) for b, _ in pairs)


def compresses(strategy: Strategy) -> bool:
    """Whether the strategy sends less than 16 bits per element."""
    collective, claims = strategy.collective, strategy.compressor.claims(_MANY)
    is_short = not claims.fixed or Layout.of([claims]).bytes < 2 * _MANY
    return collective.compresses or is_short


def faster(ratio: float) -> str:
    """Says in words how much shorter a step is, given the ratio of the other one's time to its."""
    if ratio < 1.0:
        return f"{plain(100 * (1 / ratio - 1), 2)} % slower"
    return f"{ratio:.2f}× faster" if ratio >= 1.1 else f"{100 * (ratio - 1):.2g} % faster"
