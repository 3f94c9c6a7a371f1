"""All ranks send to one at once: gather, reduce, and gradients for a parameter server."""

from __future__ import annotations

import numpy as np

from gradwire.network.flows import Flows
from gradwire.network.patterns.parts import checked, steps


def gather(ranks: int, bytes: int) -> Flows:
    """Returns flows from every rank to rank 0. bytes: those that each rank sends."""
    checked(ranks, bytes)
    rank = np.arange(ranks)
    return steps([(rank, np.zeros_like(rank), np.full(ranks, bytes))])
