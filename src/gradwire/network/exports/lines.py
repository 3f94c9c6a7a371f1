"""A line for each piece, and a word for its path: what formats of pinned pieces share.

# flow from to bytes segments
0 0 4 8388608 fc00:0:2::
1 1 5 8388608/3 fc00:0:0::
2 1 2 8388608 -
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import lcm
from typing import NoReturn

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.amounts import numbers
from gradwire.network.fabric import BELOW, EVERY, Fabric
from gradwire.network.flows import Flows
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


def read(
    text: str, what: str, fabric: Fabric, flows: Flows, path: Callable[[int, str], int], of: str
) -> Routes:
    """What was written of these flows. path: of a flow's word; KeyError or ValueError for others,
    which are told to be none `of`. NetworkError with the line for what was not written so."""
    rows = list[tuple[int, int, Fraction]]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        try:
            flow, src, dst = map(int, words[:3])
            bytes = Fraction(words[3])
            ends = int(flows.src[flow]), int(flows.dst[flow])
            own = BELOW if words[4] == BELOW_WORD else path(flow, words[4])
        except (ValueError, KeyError, IndexError, ZeroDivisionError):
            _fail(number, line, f"'{_head(what)[2:]}' are numbers and {of}")
        if (src, dst) != ends or flow < 0:
            _fail(number, line, f"flow {flow} is from {ends[0]} to {ends[1]}")
        rows.append((flow, own, bytes))
    unit = lcm(1, *(bytes.denominator for _, _, bytes in rows))
    return Routes(
        fabric, flows, np.array([flow for flow, _, _ in rows], np.int64),
        np.array([path for _, path, _ in rows], np.int64),
        numbers([int(bytes * unit) for _, _, bytes in rows]), unit,
    )  # fmt: skip


def _head(what: str) -> str:
    return f"# flow from to bytes {what}"


def _fail(number: int, line: str, rule: str) -> NoReturn:
    raise NetworkError(f"{rule}; line {number} is {line!r}. Correct it.")
