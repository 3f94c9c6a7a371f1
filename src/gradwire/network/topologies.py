"""Topologies by their text."""

from __future__ import annotations

from gradwire.errors import NetworkError
from gradwire.network.builders import BUILDERS
from gradwire.network.fabric import Fabric
from gradwire.notation import Notation

NOTATION = Notation(
    "topology", "a builder with its numbers", "leaf_spine(4, 4, 4, host_gbps=100)", NetworkError
)
_BY_NAME = {builder.__name__: builder for builder in BUILDERS}


def topology_of(text: str) -> Fabric:
    """Of 'leaf_spine(leaves=4, hosts=4, spines=4)', 'fat_tree(…)', 'rail_optimized(…)' or
    'dual_plane(…)'. NetworkError if it is none."""
    made: Fabric = NOTATION.member(text, NOTATION.read(text), _BY_NAME, "builder")
    return made
