"""Promises between members: a strategy that breaks one is refused, with an alternative."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradwire.errors import StrategyError

PROMISES = {
    "sums": "adding payloads adds the tensors",
    "lossless": "what arrives is what was sent, bit for bit",
    "fixed": "the size of a payload is known in advance",
    "direction": "signs without a scale",
    "entries": "a payload is places and values",
    "exact": "what arrives equals what was sent",
}
"""The meaning of each promise, for the error when one is missing."""


class Parts(NamedTuple):
    """The members of a strategy. alias: the short name before the '|', if one was typed."""

    compressor: Any
    collective: Any
    feedback: Any | None = None
    alias: str | None = None

    @property
    def left(self) -> str:
        """The text before the '|'."""
        return self.alias or "+".join(map(str, filter(None, (self.compressor, self.feedback))))

    def __str__(self) -> str:
        whole = str(self.collective)
        return whole if self.alias == whole else f"{self.left} | {whole}"


def check_promises(parts: Parts) -> None:
    """Raise StrategyError unless the compressor promises what the collective needs, the collective
    keeps no residual of its own beside a feedback, and its own `check` passes."""
    compressor, collective, feedback, _ = parts
    for promise in collective.needs:
        if not getattr(compressor.claims(1 << 20), promise):
            raise StrategyError(
                f"the collective '{collective}' needs a compressor that promises '{promise}' "
                f"({PROMISES[promise]}); '{compressor}' does not. Use '{_instead(parts)}'."
            )
    if collective.own_feedback and feedback is not None:
        raise StrategyError(
            f"the collective '{collective}' has its own error feedback and takes no other; got "
            f"the feedback '{feedback}'. Use '{compressor} | {collective}'."
        )
    claims = compressor.claims(1 << 20)
    in_parts = collective.per_node is not None or collective.tasks is not None
    if in_parts and feedback is not None and feedback.rule == "orthogonal":
        raise StrategyError(
            f"the feedback '{feedback}' needs whole matrices; '{collective}' cuts them "
            f"before they are compressed. Use '{parts.left} | allgather', or alltoall."
        )
    if feedback is not None and feedback.turns > 1 and claims.elements and not claims.entries:
        raise StrategyError(
            f"'{feedback}' sends each parameter only in one of {feedback.turns} steps, and "
            f"'{compressor}' only the part that the step's number selects, so some elements would "
            "never be sent. Use only one of them."
        )
    collective.check(parts)


def _instead(parts: Parts) -> str:
    collective = parts.collective
    alone = f"{collective.partner} | {collective}"
    return alone if collective.own_feedback else f"{parts.left} | allgather"
