"""A line for each piece, and a word for its path: what formats of pinned pieces share.

# flow from to bytes segments
0 0 4 8388608 fc00:0:2::
1 1 5 8388608/3 fc00:0:0::
2 1 2 8388608 -
"""

from __future__ import annotations

from collections.abc import Callable

from gradwire.errors import NetworkError
from gradwire.network.fabric import BELOW, EVERY
from gradwire.network.routes import Piece, Routes

BELOW_WORD = "-"
"""Of what stays below its leaf."""


def write(routes: Routes, what: str, word: Callable[[Piece], str]) -> str:
    """what: the words are. NetworkError for sprayed packets, which have no one path."""
    if (routes.path == EVERY).any():
        raise NetworkError(
            f"{what} are of pinned pieces; got sprayed packets. Route by 'coloured' or another "
            "scheme that pins."
        )
    src, dst = routes.flows.src.tolist(), routes.flows.dst.tolist()
    lines = [
        f"{p.flow} {src[p.flow]} {dst[p.flow]} {p.bytes} "
        f"{BELOW_WORD if p.path == BELOW else word(p)}"
        for p in routes.assignments
    ]
    return "\n".join([_head(what), *lines, ""])


def _head(what: str) -> str:
    return f"# flow from to bytes {what}"
