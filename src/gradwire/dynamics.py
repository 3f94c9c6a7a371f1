"""The strategies that a plan may combine: those that mean the same to the optimizer.

    where the momentum is        sent whole               compressed
    the optimizer                none, bf16               int8+ef, topk(0.01)+ef
    the plan, of averages        none+server_momentum     dgc(0.001)
    the plan, of every rank      none+adam                lloyd(2)+adam
    the plan; directions         -                        sign+momentum | vote

Formats that are as good as exact work with the momentum of any line. Those that lose more were
judged with their own feedback, and belong to its line. Within a line each bucket may have either
strategy, and change it during training; a change of line would need another optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gradwire import beside
from gradwire.soundness import is_exact_enough
from gradwire.strategy import Strategy

_MANY = 1 << 20  # elements


@dataclass(frozen=True)
class Dynamics:
    """feedback: of matrices that are sent whole, as text; "": none. vectors: that of vectors.
    directions: whether directions arrive, which no plan may combine with gradients."""

    feedback: str = ""
    vectors: str = ""
    directions: bool = False

    @staticmethod
    def of(strategy: Strategy) -> Dynamics:
        """Returns a strategy's dynamics; without feedback, those of the optimizer itself."""
        feedback = beside.turns(strategy)[0].feedback
        directions = strategy.compressor.claims(_MANY).direction
        if feedback is None:
            return Dynamics(directions=directions)
        vectors = beside.dense(strategy).feedback
        dense = "" if vectors is None else str(vectors)
        own = str(feedback) if feedback.rule != "linear" and not feedback.sends_all else dense
        return Dynamics(own, dense, directions)

    def take(self, text: str) -> str | None:
        """Returns the strategy with these dynamics: unchanged if it has them, or a format as good
        as exact with the feedback for what is sent whole. None if it has other dynamics."""
        strategy = Strategy.parse(text)
        if Dynamics.of(strategy) == self:
            return text
        if self.directions or not adapts(strategy):
            return None
        return f"{strategy.compressor}+{self.feedback} | {strategy.collective}"

    @property
    def keeps_moments(self) -> bool:
        """Whether each rank keeps the optimizer's moments for it, as a part of what compresses: a
        momentum, Adam's, Muon's. Those of averages take their time later, as an optimizer's do."""
        return _steps_on_the_way(self.feedback)

    @property
    def of_vectors(self) -> Dynamics:
        """The dynamics of vectors."""
        return Dynamics(self.vectors, self.vectors, self.directions)


@lru_cache(maxsize=64)
def _steps_on_the_way(feedback: str) -> bool:
    made = Strategy.parse(f"none+{feedback} | allreduce").feedback if feedback else None
    return made is not None and not made.sends_all


PLAIN = Dynamics()
"""The dynamics of plain gradients: the optimizer keeps the momentum."""


def has_vectors_apart(strategy: Strategy) -> bool:
    """Whether vectors in its plan have other dynamics than matrices."""
    own = Dynamics.of(strategy)
    return own != own.of_vectors


def adapts(strategy: Strategy) -> bool:
    """Whether it needs no feedback, and so works with the dynamics of any other strategy."""
    alone = strategy.feedback is None and not strategy.collective.own_feedback
    return alone and is_exact_enough(strategy.compressor)


def all_dynamics(strategies: Iterable[Strategy]) -> list[Dynamics]:
    """Returns the dynamics of these strategies, in order, without those that adapt; else PLAIN."""
    own = [Dynamics.of(s) for s in strategies if not adapts(s)]
    return list(dict.fromkeys(own)) or [PLAIN]
