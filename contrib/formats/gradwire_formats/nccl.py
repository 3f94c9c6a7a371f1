"""Variables of NCCL, RCCL and UCCL: how many queue pairs, and whether messages are cut.

Stock NCCL sets no source ports (its flow label is 0), so variables cannot pin a path: they set the
plan's number of pieces, and hashes decide the rest by chance. Pinning needs a network plugin, or
switches that route by segments (`srv6`). Source: NCCL 2.30's net_ib and its documentation.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gradwire.network.routes import Routes

_MOST = 128  # most queue pairs of a connection


def nccl(routes: Routes) -> str:
    """The same as `write`."""
    return write(routes)


def write(routes: Routes) -> str:
    """Returns lines for a shell, with comments. NCCL has one setting for the whole job: the pair
    of hosts with the most pieces decides."""
    between = routes.path >= 0
    flow = routes.flow[between]
    pairs = np.stack([routes.flows.src[flow], routes.flows.dst[flow]], axis=1)
    most = int(np.unique(pairs, axis=0, return_counts=True)[1].max(initial=1)) if len(flow) else 1
    cut = routes.splits > 0
    pieces = [Fraction(int(n), routes.unit) for n in routes.amount[between].tolist()]
    smallest = int(min(pieces, default=Fraction(0)))
    lines = [
        "# Queue pairs alone pin no path: see the note of gradwire's nccl export.",
        f"export NCCL_IB_QPS_PER_CONNECTION={min(most, _MOST)}",
        f"export NCCL_IB_SPLIT_DATA_ON_QPS={int(cut)}",
        f"# The smallest piece has {smallest} bytes.",
        "# UCCL sprays over paths of its own: as many as the plan has pieces.",
        f"export UCCL_PORT_ENTROPY={min(most, 256)}",
    ]
    return "\n".join([*lines, ""])
