"""All-to-all, one partner after the other."""

from __future__ import annotations

import numpy as np

from gradwire.network.flows import Flows
from gradwire.network.patterns.parts import checked, parts, steps


def pairwise(ranks: int, bytes: int) -> Flows:
    """Returns flows from each rank, in step k, to the rank k + 1 after it. bytes: those that each
    rank has."""
    checked(ranks, bytes)
    rank, sizes = np.arange(ranks), parts(bytes, ranks)
    return steps(
        (rank, (rank + far) % ranks, sizes[(rank + far) % ranks]) for far in range(1, ranks)
    )
