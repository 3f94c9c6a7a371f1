"""Warm-up: more of each gradient is sent in the first steps, when gradients change fast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from gradwire import beside
from gradwire.errors import PlanError
from gradwire.plan import Plan
from gradwire.strategy import Strategy

PAPER = (0.25, 0.0625, 0.015625, 0.004)
"""Lin et al. 2018, section 3.3: sparsity 75, 93.75, 98.4375, 99.6, then 99.9 percent."""


@dataclass(frozen=True)
class Warmup:
    """The first `steps` exchanges, split evenly among densities; then the plan as it is.

    A text may stand for a density, as "lloyd(2) | allgather": buckets whose compressor wants a
    feedback then travel by it, with their own feedback.

    A density replaces that of `topk`, `dgc`, `randk` if it is larger. Above 1/(2·ranks) lists
    of places and values are longer than the gradient, so it travels dense instead, with the
    momentum that it has later; compressors without a density travel dense all the while.

    Attributes:
        steps: its length, in exchanges that were not skipped (not in epochs: count the batches of
            one); at least one for each density.
        densities: fractions of elements, each above 0 and at most 1, or strategies without a
            feedback, as text. By default those of Lin et al. 2018, section 3.3.

    Raises:
        PlanError: `steps` or a density is out of range; or, at `attach`, a strategy of the plan
            has no dense form.
        StrategyError: a text cannot be read, or has a feedback.

    Example:
        >>> warmup = gradwire.Warmup(4 * len(batches))  # four epochs: 25, 6.25, 1.56 and 0.4 %
        >>> handle = gradwire.attach(model, "topk(0.001)+ef | allgather", warmup=warmup)
    """

    steps: int
    densities: Sequence[float | str] = PAPER

    def __post_init__(self) -> None:
        given: Any = self.densities
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise PlanError(
                "warm-up's densities must be a list of numbers or strategies; got "
                f"{given!r} alone. Put it in brackets: Warmup({self.steps}, [{given!r}])."
            )
        object.__setattr__(self, "densities", tuple(given))
        if type(self.steps) is not int or self.steps < len(self.densities):
            raise PlanError(
                "warm-up needs a whole number of steps, at least one for each of its "
                f"{len(self.densities)} densities; got {self.steps!r}. Pass the steps of some "
                "epochs, for example Warmup(4 * len(loader))."
            )
        if not self.densities or any(
            type(d) not in (int, float) or not 0 < d <= 1
            for d in self.densities
            if not isinstance(d, str)
        ):
            raise PlanError(
                "warm-up's densities must be numbers above 0 and at most 1, or "
                f"strategies without a feedback; got {list(self.densities)!r}. Leave them out for "
                f"the paper's {PAPER}."
            )
        for text in self.densities:
            if isinstance(text, str):
                beside.without_feedback(text, "a warm-up's text")

    @staticmethod
    def exponential(steps: int, levels: int, density: float) -> Warmup:
        """Make a warm-up with densities c, c², …, where c^(levels + 1) = density comes after it.

        This is the rule in the released code of Lin et al., not the list in their paper.

        Raises:
            PlanError: a number is out of range.
        """
        if not 0 < density <= 1 or type(levels) is not int or levels < 1:
            raise PlanError(
                "exponential warm-up needs a whole number of levels, and a density above 0 and at "
                f"most 1; got levels={levels!r}, density={density!r}. Use for example "
                "Warmup.exponential(1000, 4, 0.001)."
            )
        base = density ** (1 / (levels + 1))
        return Warmup(steps, tuple(base ** (level + 1) for level in range(levels)))

    @property
    def begins(self) -> list[int]:
        """The step at which each density begins, and the one after the warm-up."""
        each = len(self.densities)
        return sorted({-(-k * self.steps // each) for k in range(each + 1)})

    def density(self, step: int) -> float | str | None:
        """Returns the density in force at a step, counted from 0; None once it is over."""
        if step >= self.steps:
            return None
        return self.densities[step * len(self.densities) // self.steps]


def at_density(plan: Plan, density: float | str | None, world: int) -> Plan:
    """Returns the plan during a warm-up at a density or with its text; None: the plan itself."""
    if density is None:
        return plan
    dense = {s for b, s in zip(plan.buckets, plan.strategies) if not b.has_rows}
    found = {
        s: _by(s, density) if isinstance(density, str) else of_density(s, density, world)
        for s in dense
    }
    strategies = tuple(  # rows are sparse by nature
        s if b.has_rows else found[s] for b, s in zip(plan.buckets, plan.strategies)
    )
    return plan if strategies == plan.strategies else replace(plan, strategies=strategies)


def _by(strategy: Strategy, text: str) -> Strategy:
    """Returns the warm-up text's strategy, with the feedback of one that wants a feedback."""
    if strategy.feedback is None or not strategy.compressor.claims(1 << 20).wants_feedback:
        return strategy
    read = beside.without_feedback(text, "a warm-up's text")
    return Strategy(read.compressor, read.collective, strategy.feedback)


def of_density(strategy: Strategy, density: float, world: int) -> Strategy:
    """Returns what takes a strategy's place in a warm-up, at a density. Errors are PlanError."""
    compressor: Any = strategy.compressor
    claims = compressor.claims(1 << 20)
    if claims.direction:
        raise PlanError(
            "warm-up begins by sending dense gradients; "
            f"'{strategy}' sends signs without a scale, which need another learning rate. Leave "
            "warmup out."
        )
    if strategy.feedback is not None and strategy.feedback.rule == "orthogonal":
        raise PlanError(
            f"'{strategy.feedback}' has no dense form, so its first steps must be compressed, "
            "too. Leave warmup out, or use gradwire.Warmup(steps, ['lloyd(2) | allgather'])."
        )
    if claims.sums and claims.elements is None and not strategy.collective.own_feedback:
        return strategy  # dense already
    if not any(f.name == "density" for f in fields(compressor)):
        return beside.dense(strategy)
    own = replace(compressor, density=max(density, compressor.density))
    if not claims.sums and own.density > 1 / (2 * world):
        return beside.dense(strategy)
    return Strategy(own, strategy.collective, strategy.feedback)
