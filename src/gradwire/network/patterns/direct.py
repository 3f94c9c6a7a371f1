"""All-reduce in two steps: each part to its owner, and its sum back to all."""

from __future__ import annotations

from gradwire.network.flows import Flows
from gradwire.network.patterns.parts import all_pairs, checked, parts, steps


def direct(ranks: int, bytes: int) -> Flows:
    """Returns flows between all pairs at once, twice."""
    checked(ranks, bytes)
    source, target = all_pairs(ranks)
    sizes = parts(bytes, ranks)
    return steps([(source, target, sizes[target]), (source, target, sizes[source])])
