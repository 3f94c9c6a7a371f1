"""What may stand beside each other in a plan: strategies that mean the same to the optimizer.

    who has the momentum         sent whole               compressed
    the optimizer                none, bf16               int8+ef, topk(0.01)+ef
    the plan, of averages        none+server_momentum     dgc(0.001)
    the plan, of every rank      none+adam                lloyd(2)+adam
    the plan; directions         -                        sign+momentum | vote

Formats that are as good as exact take the momentum of any line; what loses more was judged with
what remembers it, and stays where it is. Within a line a bucket goes by one or the other, and may
change while a model trains; between two lines the optimizer would have to change with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradwire import beside
from gradwire.soundness import is_exact_enough
from gradwire.strategy import Strategy

_MANY = 1 << 20  # elements


@dataclass(frozen=True)
class Dynamics:
    """feedback: of matrices that are sent whole, as text; "": none. vectors: of vectors.
    directions: what arrives are directions, beside which no gradient can stand."""

    feedback: str = ""
    vectors: str = ""
    directions: bool = False

    @staticmethod
    def of(strategy: Strategy) -> Dynamics:
        """Those of a strategy; of what remembers nothing, the optimizer's own."""
        feedback = beside.turns(strategy)[0].feedback
        directions = strategy.compressor.claims(_MANY).direction
        if feedback is None:
            return Dynamics(directions=directions)
        vectors = beside.dense(strategy).feedback
        dense = "" if vectors is None else str(vectors)
        own = str(feedback) if feedback.rule != "linear" and not feedback.sends_all else dense
        return Dynamics(own, dense, directions)

    def take(self, text: str) -> str | None:
        """The strategy with these dynamics: as it is, or, of a format as good as exact, with the
        feedback of what is sent whole; None, if it has others."""
        strategy = Strategy.parse(text)
        if Dynamics.of(strategy) == self:
            return text
        if self.directions or not adapts(strategy):
            return None
        return f"{strategy.compressor}+{self.feedback} | {strategy.collective}"

    @property
    def of_vectors(self) -> Dynamics:
        """Those of vectors."""
        return Dynamics(self.vectors, self.vectors, self.directions)


PLAIN = Dynamics()
"""Gradients as they are: momentum is the optimizer's."""


def has_vectors_apart(strategy: Strategy) -> bool:
    """Whether vectors have other dynamics beside it than matrices, whatever is sent of these."""
    own = Dynamics.of(strategy)
    return own != own.of_vectors


def adapts(strategy: Strategy) -> bool:
    """Whether nothing need be remembered, so that it takes whatever dynamics others have."""
    alone = strategy.feedback is None and not strategy.collective.own_feedback
    return alone and is_exact_enough(strategy.compressor)


def all_dynamics(strategies: Iterable[Strategy]) -> list[Dynamics]:
    """Those of these strategies, in their order: of what adapts, if there is nothing else."""
    own = [Dynamics.of(s) for s in strategies if not adapts(s)]
    return list(dict.fromkeys(own)) or [PLAIN]
