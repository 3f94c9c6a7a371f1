"""Moves in the form that pricing gives, made by hand."""

from __future__ import annotations

from gradwire.planner.priced import PricedMove


def move(
    name: str, bytes: int, group: str = "world", to: tuple[tuple[int, int], ...] = ()
) -> PricedMove:
    """A move among four ranks, whose payload does not matter."""
    return PricedMove(name, bytes, 0.0, 0.0, "uint8", group, 4, to)
