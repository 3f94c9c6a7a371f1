"""Segment lists (RFC 8986): the switch above the leaf, or the core, that every piece is sent to.

# flow from to bytes segments
0 0 4 8388608 fc00:0:2::
1 1 5 8388608/3 fc00:0:0::
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
from gradwire.network.routes import Routes

_HEAD = "# flow from to bytes segments"


def sid(path: int) -> str:
    """Of a path's number: 16 bits behind a block of the network's own."""
    return f"fc00:0:{path:x}::"


def write(routes: Routes, segment: Callable[[int], str] = sid) -> str:
    """A line for each piece; what stays below its leaf has no segment. segment: the text of a
    path's number. NetworkError for sprayed packets, which have no one path."""
    if (routes.path == EVERY).any():
        raise NetworkError(
            "segment lists are of pinned pieces; got sprayed packets. Route by 'coloured' or "
            "another scheme that pins."
        )
    src, dst = routes.flows.src.tolist(), routes.flows.dst.tolist()
    lines = [
        f"{p.flow} {src[p.flow]} {dst[p.flow]} {p.bytes} "
        f"{'-' if p.path == BELOW else segment(p.path)}"
        for p in routes.assignments
    ]
    return "\n".join([_HEAD, *lines, ""])


def read(text: str, fabric: Fabric, flows: Flows, segment: Callable[[int], str] = sid) -> Routes:
    """What was written of these flows. NetworkError with the line for what was not."""
    most = len(fabric.uplinks) * max(fabric.cores, 1)
    path_of = {segment(path): path for path in range(most)} | {"-": BELOW}
    rows = list[tuple[int, int, Fraction]]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        try:
            flow, src, dst = map(int, words[:3])
            bytes, path = Fraction(words[3]), path_of[words[4]]
            ends = int(flows.src[flow]), int(flows.dst[flow])
        except (ValueError, KeyError, IndexError):
            _fail(number, line, f"'{_HEAD[2:]}' are numbers and a segment of {most}")
        if (src, dst) != ends or flow < 0:
            _fail(number, line, f"flow {flow} is from {ends[0]} to {ends[1]}")
        rows.append((flow, path, bytes))
    unit = lcm(1, *(bytes.denominator for _, _, bytes in rows))
    return Routes(
        fabric, flows, np.array([flow for flow, _, _ in rows], np.int64),
        np.array([path for _, path, _ in rows], np.int64),
        numbers([int(bytes * unit) for _, _, bytes in rows]), unit,
    )  # fmt: skip


def _fail(number: int, line: str, rule: str) -> NoReturn:
    raise NetworkError(f"{rule}; line {number} is {line!r}. Correct it.")
