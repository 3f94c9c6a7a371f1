"""One rank sends to all others at once: scatter, broadcast."""

from __future__ import annotations

import numpy as np

from gradwire.network.flows import Flows
from gradwire.network.patterns.parts import checked, steps


def scatter(ranks: int, bytes: int) -> Flows:
    """Returns flows from rank 0 to every other rank. bytes: those that it sends to each."""
    checked(ranks, bytes)
    rank = np.arange(ranks)
    return steps([(np.zeros_like(rank), rank, np.full(ranks, bytes))])
