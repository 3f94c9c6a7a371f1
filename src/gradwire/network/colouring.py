"""Equitable edge colourings of bipartite multigraphs (de Werra 1971).

    leaves that send            leaves that receive
        0 ●══════════════════════════● 0        an edge is a flow, its colour the spine it takes:
        1 ●═════════╲════════════════● 1        each leaf has d / colours flows on every spine,
        2 ●══════════╲═══════════════● 2        rounded up or down

So no link carries more than ceil(D / colours) flows of equal size, D being the most that a leaf
sends or receives: without cutting any, nothing is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.errors import NetworkError
from gradwire.network.checked import same_length, whole
from gradwire.network.colouring_twin import colour_twin
from gradwire.network.fabric import count
from gradwire.network.native import core

Numbers = NDArray[np.int32]
_MOST_GROUPS = 1 << 24
_MOST_PLACES = 1 << 28  # of 40 bytes


class Side(NamedTuple):
    """One side of a bipartite graph: the vertex of each edge, from 0, and the group of each
    vertex."""

    vertex: Numbers
    group: Numbers

    @staticmethod
    def of(
        vertex: Sequence[int] | NDArray[np.integer], group: Sequence[int] | NDArray[np.integer]
    ) -> Side:
        """Number vertices that are any whole numbers; NetworkError for a vertex that is in no
        group."""
        groups = whole("groups of vertices", group, _MOST_GROUPS)
        own = whole("vertices", vertex, len(groups))
        return Side(own.astype(np.int32), groups.astype(np.int32))

    @staticmethod
    def alone(vertex: Sequence[int] | NDArray[np.integer]) -> Side:
        """All vertices are of one group."""
        own = whole("vertices", vertex, _MOST_PLACES)
        return Side.of(own, np.zeros(int(own.max(initial=-1)) + 1, np.int64))

    def some(self, edges: NDArray[np.integer]) -> Side:
        """The side of these edges alone."""
        return Side(self.vertex[edges], self.group)


def colour(left: Side, right: Side, colours: int, seed: int = 0) -> Numbers:
    """A colour below `colours` for every edge: each vertex of d edges sees each colour
    floor(d / colours) or ceil(d / colours) times; if colours is a power of two, each group too.
    Two sides of equally many edges. The same for the same seed. NetworkError for what is no such
    graph, and for one that is too large.
    """
    count("colours", colours)
    count("seed", seed, 0)
    left, right = Side.of(*left), Side.of(*right)
    same_length(left=left.vertex, right=right.vertex)
    found = np.zeros(len(left.vertex), np.int32)
    if colours == 1 or not len(found):
        return found
    _refuse_too_large(left, right, colours)
    native = core()
    if native is None:
        return colour_twin(left.vertex, right.vertex, colours)
    native.colour_edges(
        len(found), left.vertex.ctypes.data, right.vertex.ctypes.data,
        _given(left), _given(right), colours, seed % (1 << 64), found.ctypes.data,
    )  # fmt: skip
    return found


def _given(side: Side) -> tuple[int, int, int]:
    """Vertices, the address of their groups, groups."""
    return len(side.group), side.group.ctypes.data, int(side.group.max()) + 1


def _refuse_too_large(left: Side, right: Side, colours: int) -> None:
    """An odd number of colours fills every vertex up to so many edges."""
    edges = len(left.vertex)
    odd = colours // (colours & -colours)
    vertices = min(max(len(left.group), len(right.group)), edges)
    places = edges + (vertices * odd if odd > 1 else 0)
    if places > _MOST_PLACES or colours >= 1 << 31:
        raise NetworkError(
            f"a colouring takes {_MOST_PLACES} edges and places for others at most; {edges} edges "
            f"at {vertices} vertices with {colours} colours take {places}. Use fewer, or a power "
            "of two of colours below 2^31."
        )
