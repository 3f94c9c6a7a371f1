"""The slow obvious way to colour: edge after edge, by alternating paths (König 1916).

Vertices are cut into chunks of at most as many edges as there are colours, so that a colour may
come once at a chunk. If no colour is free at both ends of an edge, one that is free at the left
end and one that is free at the right change places along the path that begins at the right: it
never arrives at the left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_Chunk = dict[int, int]  # an edge for each colour that was given


def colour_twin(
    left: NDArray[np.int32], right: NDArray[np.int32], colours: int
) -> NDArray[np.int32]:
    """A colour for every edge; each vertex of d edges sees each floor or ceil of d / colours
    times. Groups are not looked at."""
    ends = list(zip(_chunks(left, colours), _chunks(right, colours)))
    found = np.full(len(ends), -1, np.int32)
    at_left: dict[int, _Chunk] = {}
    at_right: dict[int, _Chunk] = {}
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
            _give(one, other if found[one] == free else free, ends, found, at_left, at_right)
        _give(edge, free, ends, found, at_left, at_right)
    return found


def _give(
    edge: int, colour: int, ends: list[tuple[int, int]], found: NDArray[np.int32],
    at_left: dict[int, _Chunk], at_right: dict[int, _Chunk],
) -> None:  # fmt: skip
    found[edge] = colour
    a, b = ends[edge]
    at_left[a][colour] = at_right[b][colour] = edge


def _chunks(vertex: NDArray[np.int32], size: int) -> list[int]:
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
