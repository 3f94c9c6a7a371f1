"""All-to-all, all pairs at once."""

from __future__ import annotations

from gradwire.network.flows import Flows
from gradwire.network.patterns.parts import all_pairs, checked, parts, steps


def all_to_all(ranks: int, bytes: int) -> Flows:
    """Returns flows between all pairs. bytes: those that each rank has, a part for every rank."""
    checked(ranks, bytes)
    source, target = all_pairs(ranks)
    return steps([(source, target, parts(bytes, ranks)[target])])
