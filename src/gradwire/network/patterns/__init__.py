"""The flows between ranks in a collective, one pattern in each file.

A pattern is a function of ranks and bytes that returns `Flows` between ranks 0 to ranks - 1; the
`Placement` says on which hosts they are. One of another package may have parameters of its own.
"""

from gradwire.network.flows import Flows
from gradwire.network.patterns.all_to_all import all_to_all
from gradwire.network.patterns.direct import direct
from gradwire.network.patterns.double_tree import double_tree
from gradwire.network.patterns.gather import gather
from gradwire.network.patterns.halving_doubling import halving_doubling
from gradwire.network.patterns.pairwise import pairwise
from gradwire.network.patterns.ring import ring, ring_gather, ring_scatter
from gradwire.network.patterns.scatter import scatter

BASE = Flows
MEMBERS = (
    ring, ring_scatter, ring_gather, halving_doubling, double_tree, direct, all_to_all, pairwise,
    gather, scatter,
)  # fmt: skip

__all__ = [
    "BASE", "MEMBERS", "all_to_all", "direct", "double_tree", "gather", "halving_doubling",
    "pairwise", "ring", "ring_gather", "ring_scatter", "scatter",
]  # fmt: skip
