"""To one rank from all others, at once: gather, reduce, and whoever serves parameters."""

from __future__ import annotations

import numpy as np

from gradwire.network.flows import Flows
from gradwire.network.patterns.parts import checked, steps


def gather(ranks: int, bytes: int) -> Flows:
    """bytes: what each rank sends to rank 0."""
    checked(ranks, bytes)
    rank = np.arange(ranks)
    return steps([(rank, np.zeros_like(rank), np.full(ranks, bytes))])
