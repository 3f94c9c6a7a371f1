"""Each rank sends to the next: part after part goes round."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwire.network.checked import Ints
from gradwire.network.flows import Flows
from gradwire.network.patterns.parts import checked, parts, steps


def ring(ranks: int, bytes: int) -> Flows:
    """Returns flows of an all-reduce: ranks - 1 steps to add parts up, and as many to pass the
    sums on (Patarasuk and Yuan 2009)."""
    checked(ranks, bytes)
    return steps(_round(parts(bytes, ranks), 2 * (ranks - 1)))


def ring_scatter(ranks: int, bytes: int) -> Flows:
    """Returns flows of a reduce-scatter: the first half of `ring`."""
    checked(ranks, bytes)
    return steps(_round(parts(bytes, ranks), ranks - 1))


def ring_gather(ranks: int, bytes: int) -> Flows:
    """Returns flows of an all-gather. bytes: those that each rank has."""
    checked(ranks, bytes)
    return steps(_round(np.full(ranks, bytes), ranks - 1))


def _round(sizes: Ints, many: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    rank = np.arange(len(sizes))
    for step in range(many):
        yield rank, (rank + 1) % len(sizes), sizes[(rank - step) % len(sizes)]
