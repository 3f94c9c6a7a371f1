"""Equitable edge colourings of bipartite multigraphs (de Werra 1971).

    leaves that send            leaves that receive
        0 ●══════════════════════════● 0        an edge is a flow, its colour the spine it takes:
        1 ●═════════╲════════════════● 1        each leaf has d / colours flows on every spine,
        2 ●══════════╲═══════════════● 2        rounded up or down

So no link carries more than ceil(D / colours) flows of equal size, D being the most that a leaf
sends or receives: no plan that cuts none is better.
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
_Chunk = dict[int, int]  # the edge of each colour that was given
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
        """Checks and converts both columns. Raises NetworkError for a vertex without a group."""
        groups = whole("groups of vertices", group, _MOST_GROUPS)
        own = whole("vertices", vertex, len(groups))
        return Side(own.astype(np.int32), groups.astype(np.int32))

    @staticmethod
    def alone(vertex: Sequence[int] | NDArray[np.integer]) -> Side:
        """Returns a side with all vertices in one group."""
        own = whole("vertices", vertex, _MOST_PLACES)
        return Side.of(own, np.zeros(int(own.max(initial=-1)) + 1, np.int64))

    def some(self, edges: NDArray[np.integer]) -> Side:
        """Returns the side of these edges alone."""
        return Side(self.vertex[edges], self.group)


def colour(left: Side, right: Side, colours: int, seed: int = 0) -> Numbers:
    """Returns a colour below `colours` for every edge: each vertex of d edges sees each colour
    floor(d / colours) or ceil(d / colours) times; if colours is a power of two, each group too.
    Both sides have equally many edges. Equal seeds give equal colours. Raises NetworkError for
    columns that are no such graph, and for a graph that is too large.
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
    """Returns the number of vertices, the address of their groups, and the number of groups."""
    return len(side.group), side.group.ctypes.data, int(side.group.max()) + 1


def _refuse_too_large(left: Side, right: Side, colours: int) -> None:
    """Raises NetworkError if the extension's table is too large: the odd part of `colours`, above
    1, takes up to that many places more at every vertex."""
    edges = len(left.vertex)
    odd = colours // (colours & -colours)
    vertices = min(max(len(left.group), len(right.group)), edges)
    places = edges + (vertices * odd if odd > 1 else 0)
    if places > _MOST_PLACES or colours >= 1 << 31:
        raise NetworkError(
            f"a colouring can have at most {_MOST_PLACES} edges, with those added for odd numbers "
            f"of colours; {edges} edges at {vertices} vertices with {colours} colours take "
            f"{places}. Use fewer, or a power of two of colours below 2^31."
        )


def colour_twin(left: Numbers, right: Numbers, colours: int) -> Numbers:
    """The slow twin of `colour`: edge after edge, by alternating paths (König 1916). It ignores
    groups.

    Vertices are cut into chunks of at most as many edges as there are colours, so that a chunk
    sees a colour at most once. If no colour is free at both ends of an edge, one that is free at
    the left end and one that is free at the right swap along the path that begins at the right,
    which never arrives at the left.
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
    """Returns the chunk of each edge at its vertex; chunks are numbered as they begin."""
    current: dict[int, tuple[int, int]] = {}  # by vertex: its chunk, and the edges in it
    begun, found = 0, list[int]()
    for v in vertex.tolist():
        chunk, full = current.get(v, (-1, size))
        if full == size:
            chunk, full, begun = begun, 0, begun + 1
        current[v] = chunk, full + 1
        found.append(chunk)
    return found
