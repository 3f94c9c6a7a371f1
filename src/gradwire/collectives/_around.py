"""What collectives share that are made around another one."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.errors import StrategyError
from gradwire.strategy import Collective

_CLAIMS = (
    "needs", "partner", "own_feedback", "compresses", "sizes", "selects", "compresses_again",
)  # fmt: skip


def collective_of(owner: str, text: str) -> Collective:
    """The collective of that text; StrategyError names whose `outer` it is."""
    try:
        outer: Collective = Collective.parse(text)
    except StrategyError as error:
        raise StrategyError(f"{owner}'s outer is a collective's text: {error}") from error
    return outer


def take_claims(around: Collective, outer: Collective, more: Sequence[str] = ()) -> None:
    """What `outer` asks for and promises is asked and promised by the one around it, and its text
    becomes as it prints, so that equals are equal."""
    for name in (*_CLAIMS, *more):
        object.__setattr__(around, name, getattr(outer, name))
    object.__setattr__(around, "outer", str(outer))
