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
from gradwire.network.fabric import count
from gradwire.network.native import core

Numbers = NDArray[np.int32]
_Chunk = dict[int, int]  # an edge for each colour that was given
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


def colour_twin(left: Numbers, right: Numbers, colours: int) -> Numbers:
    """The slow obvious way: edge after edge, by alternating paths (König 1916). Groups are not
    looked at.

    Vertices are cut into chunks of at most as many edges as there are colours, so that a colour
    may come once at a chunk. If no colour is free at both ends of an edge, one that is free at the
    left end and one that is free at the right change places along the path that begins at the
    right: it never arrives at the left.
    """
    ends = list(zip(_chunks(left, colours), _chunks(right, colours)))
    found = np.full(len(ends), -1, np.int32)
    at_left: dict[int, _Chunk] = {}
    at_right: dict[int, _Chunk] = {}

    def give(edge: int, colour: int) -> None:
        found[edge] = colour
        a, b = ends[edge]
        at_left[a][colour] = at_right[b][colour] = edge

    for edge, (a, b) in enumerate(ends):
        here, there = at_left.setdefault(a, {}), at_right.setdefault(b, {})
        free = next(c for c in range(colours) if c not in here)
        other = next(c for c in range(colours) if c not in there)
        path, chunk, side = list[int](), there, 1
        wanted = free
        while wanted in chunk:
            path.append(chunk[wanted])
            side = 1 - side
            chunk = (at_left, at_right)[side][ends[path[-1]][side]]
            wanted = other if wanted == free else free
        for one in path:
            del at_left[ends[one][0]][int(found[one])], at_right[ends[one][1]][int(found[one])]
        for one in path:
            give(one, other if found[one] == free else free)
        give(edge, free)
    return found


def _chunks(vertex: Numbers, size: int) -> list[int]:
    """The chunk of each edge at its vertex: numbered as they are begun."""
    current: dict[int, tuple[int, int]] = {}  # of each vertex: its chunk, and how full it is
    begun, found = 0, list[int]()
    for v in vertex.tolist():
        chunk, full = current.get(v, (-1, size))
        if full == size:
            chunk, full, begun = begun, 0, begun + 1
        current[v] = chunk, full + 1
        found.append(chunk)
    return found
