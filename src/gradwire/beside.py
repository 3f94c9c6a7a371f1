"""How what a strategy is not for travels beside it."""

from __future__ import annotations

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


def rows(strategy: Strategy) -> Strategy:
    """Gradients that come as rows and their ids: exactly."""
    return strategy if strategy.collective.takes_rows else Strategy.parse("none | columns")


def without_feedback(text: object, whose: str) -> Strategy:
    """A strategy to which its owner gives a feedback; StrategyError unless the text is one."""
    made = Strategy.parse(text)  # type: ignore[arg-type] # it says so itself
    way = made.collective
    by_parts = way.per_node is not None or way.tasks is not None
    if made.feedback is not None or way.takes_rows or way.own_feedback or by_parts:
        raise StrategyError(
            f"{whose} is a compressor and a collective, between which a feedback comes; got "
            f"'{made}'. Use for example 'qsgd(4) | alltoall'."
        )
    return made
