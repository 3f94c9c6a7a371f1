"""What members promise each other: a strategy that breaks it is refused, with what to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire.errors import StrategyError
from gradwire.member import PROMISES

if TYPE_CHECKING:
    from gradwire.strategy import Strategy


def check_promises(strategy: Strategy) -> None:
    """StrategyError unless the compressor promises what the collective needs, the collective
    leaves memory to the feedback that stands beside it, and has nothing against them itself."""
    collective, compressor = strategy.collective, strategy.compressor
    for promise in collective.needs:
        if not getattr(compressor.claims(1 << 20), promise):
            raise StrategyError(
                f"the collective '{collective}' needs a compressor that promises '{promise}' "
                f"({PROMISES[promise]}); '{compressor}' does not. Use '{_instead(strategy)}'."
            )
    if collective.own_feedback and strategy.feedback is not None:
        raise StrategyError(
            f"the collective '{collective}' keeps what it did not send itself; got the feedback "
            f"'{strategy.feedback}' beside it. Use '{compressor} | {collective}'."
        )
    feedback, claims = strategy.feedback, compressor.claims(1 << 20)
    in_parts = collective.per_node is not None or collective.tasks is not None
    if in_parts and feedback is not None and feedback.rule == "orthogonal":
        raise StrategyError(
            f"the feedback '{feedback}' takes whole matrices; '{collective}' cuts them "
            f"before they are compressed. Use '{strategy.left} | allgather', or alltoall."
        )
    if feedback is not None and feedback.turns > 1 and claims.elements and not claims.entries:
        raise StrategyError(
            f"'{feedback}' sends a parameter in every so-manieth step, and '{compressor}' a part "
            "that the step decides: some would never be sent. Leave turns to one of them."
        )
    collective.check(strategy)


def without_feedback(text: object, whose: str) -> Strategy:
    """A strategy to which its owner gives a feedback; StrategyError unless the text is one."""
    from gradwire.strategy import Strategy

    made = Strategy.parse(text)  # type: ignore[arg-type] # it says so itself
    way = made.collective
    by_parts = way.per_node is not None or way.tasks is not None
    if made.feedback is not None or way.takes_rows or way.own_feedback or by_parts:
        raise StrategyError(
            f"{whose} is a compressor and a collective, between which a feedback comes; got "
            f"'{made}'. Use for example 'qsgd(4) | alltoall'."
        )
    return made


def _instead(strategy: Strategy) -> str:
    collective = strategy.collective
    alone = f"{collective.partner} | {collective}"
    return alone if collective.own_feedback else f"{strategy.left} | allgather"
