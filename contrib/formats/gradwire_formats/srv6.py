"""Segment lists (RFC 8986): the switch above the leaf, or the core, to which each piece is sent.

# flow from to bytes segments
0 0 4 8388608 fc00:0:2::
"""

from __future__ import annotations

from collections.abc import Callable

from gradwire.network.routes import Routes
from gradwire_formats import lines

_WHAT = "segments"


def sid(path: int) -> str:
    """Returns the segment of a path's number: 16 bits after a prefix of the network."""
    return f"fc00:0:{path:x}::"


def srv6(routes: Routes) -> str:
    """Returns the text that `write` makes with segments from `sid`. Raises NetworkError as `write`
    does."""
    return write(routes)


def write(routes: Routes, segment: Callable[[int], str] = sid) -> str:
    """Returns a line for each piece. segment: makes the text of a path's number. Raises
    NetworkError as `lines.write` does."""
    return lines.write(routes, _WHAT, lambda piece: segment(piece.path))
