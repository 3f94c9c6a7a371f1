"""How what a strategy is not for travels beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradwire.errors import StrategyError
from gradwire.strategy import Strategy


def dense(strategy: Strategy) -> Strategy:
    """Parameters that are not worth compressing, with the same dynamics."""
    feedback = strategy.feedback and strategy.feedback.dense()
    return Strategy.parse(f"none+{feedback} | allreduce" if feedback else "none | allreduce")


def second(strategy: Strategy) -> Strategy | None:
    """What its optimizer treats by another rule, if there is one."""
    text = strategy.feedback and strategy.feedback.others(strategy)
    return Strategy.parse(text) if text else None


def turns(strategy: Strategy) -> list[Strategy]:
    """Of a feedback whose parameters take turns, one strategy for each turn, the first's first."""
    feedback: Any = strategy.feedback
    if feedback is None or feedback.turns == 1:
        return [strategy]
    own = [replace(feedback, turn=turn) for turn in range(feedback.turns)]
    return [Strategy(strategy.compressor, strategy.collective, each) for each in own]


def rows(strategy: Strategy) -> Strategy:
    """Gradients that come as rows and their ids: exactly, by what is made for entries or rows."""
    way = strategy.collective
    made_for_it = "entries" in way.needs or way.own_feedback
    return strategy if takes_rows(strategy) and made_for_it else Strategy.parse("none | columns")


def takes_rows(strategy: Strategy) -> bool:
    """Whether it takes such gradients: rows travel as they are, so nothing may be lost of them."""
    exact = strategy.compressor.claims(1 << 20).exact and strategy.feedback is None
    return strategy.collective.takes_rows and exact


def without_feedback(text: object, whose: str) -> Strategy:
    """A strategy to which its owner gives a feedback; StrategyError unless the text is one."""
    made = Strategy.parse(text)  # type: ignore[arg-type] # it says so itself
    way = made.collective
    by_parts = way.per_node is not None or way.tasks is not None
    if made.feedback is not None or way.own_feedback or by_parts:
        raise StrategyError(
            f"{whose} is a compressor and a collective, between which a feedback comes; got "
            f"'{made}'. Use for example 'qsgd(4) | alltoall'."
        )
    return made
