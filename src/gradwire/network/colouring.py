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

from gradwire.network.colouring_twin import colour_twin
from gradwire.network.native import core

Numbers = NDArray[np.int32]


class Side(NamedTuple):
    """Of a bipartite graph: the vertex of each edge, from 0, and the group of each vertex."""

    vertex: Numbers
    group: Numbers

    @staticmethod
    def of(
        vertex: Sequence[int] | NDArray[np.integer], group: Sequence[int] | NDArray[np.integer]
    ) -> Side:
        """Of any whole numbers."""
        return Side(_numbers(vertex), _numbers(group))

    @staticmethod
    def alone(vertex: Sequence[int] | NDArray[np.integer]) -> Side:
        """All vertices are of one group."""
        return Side.of(vertex, [0] * (int(np.max(vertex, initial=-1)) + 1))

    def some(self, edges: NDArray[np.integer]) -> Side:
        """Of these edges."""
        return Side(self.vertex[edges], self.group)


def colour(left: Side, right: Side, colours: int, seed: int = 0) -> Numbers:
    """A colour below `colours` for every edge: each vertex of d edges sees each colour
    floor(d / colours) or ceil(d / colours) times; if colours is a power of two, each group too.
    Two sides of equally many edges. The same for the same seed.
    """
    found = np.zeros(len(left.vertex), np.int32)
    if colours == 1 or not len(found):
        return found
    native = core()
    if native is None:
        return colour_twin(left.vertex, right.vertex, colours)
    native.colour_edges(
        len(found), left.vertex.ctypes.data, right.vertex.ctypes.data,
        _given(left), _given(right), colours, seed, found.ctypes.data,
    )  # fmt: skip
    return found


def _given(side: Side) -> tuple[int, int, int]:
    """Vertices, the address of their groups, groups."""
    return len(side.group), side.group.ctypes.data, int(side.group.max()) + 1


def _numbers(values: Sequence[int] | NDArray[np.integer]) -> Numbers:
    return np.ascontiguousarray(values, np.int32)
