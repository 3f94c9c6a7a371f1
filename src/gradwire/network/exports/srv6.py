"""Segment lists (RFC 8986): the switch above the leaf, or the core, that every piece is sent to.

# flow from to bytes segments
0 0 4 8388608 fc00:0:2::
"""

from __future__ import annotations

from collections.abc import Callable

from gradwire.network.exports import lines
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes

_WHAT = "segments"


def sid(path: int) -> str:
    """Of a path's number: 16 bits behind a block of the network's own."""
    return f"fc00:0:{path:x}::"


def write(routes: Routes, segment: Callable[[int], str] = sid) -> str:
    """A line for each piece. segment: the text of a path's number. NetworkError as of
    `lines.write`."""
    return lines.write(routes, _WHAT, lambda piece: segment(piece.path))


def read(text: str, fabric: Fabric, flows: Flows, segment: Callable[[int], str] = sid) -> Routes:
    """What was written of these flows. NetworkError as of `lines.read`."""
    most = len(fabric.uplinks) * max(fabric.cores, 1)
    path_of = {segment(path): path for path in range(most)}
    return lines.read(
        text, _WHAT, fabric, flows, lambda _, word: path_of[word], f"a segment of {most}"
    )
