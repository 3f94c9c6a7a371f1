"""The strategies of parameters and gradients that a plan's own strategy is not made for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradwire.errors import StrategyError
from gradwire.strategy import Strategy


def dense(strategy: Strategy) -> Strategy:
    """Returns the strategy of parameters not worth compressing, with the same dynamics."""
    feedback = strategy.feedback and strategy.feedback.dense()
    return Strategy.parse(f"none+{feedback} | allreduce" if feedback else "none | allreduce")


def second(strategy: Strategy) -> Strategy | None:
    """Returns the strategy of parameters under its optimizer's second rule, if there is one."""
    text = strategy.feedback and strategy.feedback.others(strategy)
    return Strategy.parse(text) if text else None


def turns(strategy: Strategy) -> list[Strategy]:
    """Returns one strategy for each turn, in order; the strategy itself if there are no turns."""
    feedback: Any = strategy.feedback
    if feedback is None or feedback.turns == 1:
        return [strategy]
    own = [replace(feedback, turn=turn) for turn in range(feedback.turns)]
    return [Strategy(strategy.compressor, strategy.collective, each) for each in own]


def rows(strategy: Strategy) -> Strategy:
    """Returns the strategy of sparse (COO) gradients: exact, and made for entries or rows."""
    way = strategy.collective
    made_for_it = "entries" in way.needs or way.own_feedback
    return strategy if takes_rows(strategy) and made_for_it else Strategy.parse("none | columns")


def takes_rows(strategy: Strategy) -> bool:
    """Whether it takes sparse (COO) gradients: their rows travel as they are, without loss."""
    exact = strategy.compressor.claims(1 << 20).exact and strategy.feedback is None
    return strategy.collective.takes_rows and exact


def without_feedback(text: object, whose: str) -> Strategy:
    """Read a strategy to which its owner adds a feedback; StrategyError if it has its own."""
    made = Strategy.parse(text)  # type: ignore[arg-type] # it says so itself
    way = made.collective
    by_parts = way.per_node is not None or way.tasks is not None
    if made.feedback is not None or way.own_feedback or by_parts:
        raise StrategyError(
            f"{whose} must be a compressor without feedback and a collective other than "
            f"hierarchical, steps or one with its own feedback; got '{made}'. Use for example "
            "'qsgd(4) | alltoall'."
        )
    return made
