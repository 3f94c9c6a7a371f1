"""The common format of pinned pieces: a line for each piece, with a word for its path."""

from __future__ import annotations

from collections.abc import Callable

from gradwire.errors import NetworkError
from gradwire.network.fabric import BELOW, EVERY
from gradwire.network.routes import Piece, Routes

BELOW_WORD = "-"
"""The word for a piece that stays below its leaf."""


def write(routes: Routes, what: str, word: Callable[[Piece], str]) -> str:
    """Returns the file's text. what: what the words are. Raises NetworkError for sprayed packets,
    which do not have one path."""
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
