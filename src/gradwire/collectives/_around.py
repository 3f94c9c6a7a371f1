"""Code shared by collectives that wrap another one."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.errors import StrategyError
from gradwire.strategy import Collective

_CLAIMS = (
    "needs", "partner", "own_feedback", "compresses", "sizes", "selects", "compresses_again",
)  # fmt: skip


def collective_of(owner: str, text: str) -> Collective:
    """Read a collective; a StrategyError names the owner whose `outer` it is."""
    try:
        outer: Collective = Collective.parse(text)
    except StrategyError as error:
        raise StrategyError(f"{owner}'s outer must be a collective, as text: {error}") from error
    return outer


def take_claims(around: Collective, outer: Collective, more: Sequence[str] = ()) -> None:
    """Copy the needs and promises of `outer` to the collective around it, and normalize its text,
    so that equal collectives compare equal."""
    for name in (*_CLAIMS, *more):
        object.__setattr__(around, name, getattr(outer, name))
    object.__setattr__(around, "outer", str(outer))
