"""Segment lists (RFC 8986): the switch above the leaf, or the core, that every piece is sent to.

# flow from to bytes segments
0 0 4 8388608 fc00:0:2::
"""

from __future__ import annotations

from collections.abc import Callable

from gradwire.network.routes import Routes
from gradwire_formats import lines

_WHAT = "segments"


def sid(path: int) -> str:
    """Of a path's number: 16 bits behind a block of the network's own."""
    return f"fc00:0:{path:x}::"


def srv6(routes: Routes) -> str:
    """Segments of `sid`. NetworkError as of `write`."""
    return write(routes)


def write(routes: Routes, segment: Callable[[int], str] = sid) -> str:
    """A line for each piece. segment: the text of a path's number. NetworkError as of
    `lines.write`."""
    return lines.write(routes, _WHAT, lambda piece: segment(piece.path))
