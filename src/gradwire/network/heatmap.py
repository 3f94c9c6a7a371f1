"""Loads of links between leaves and the switches above, as a picture: SVG, no other file.

         ecmp                    coloured
up    ┌──────────┐            ┌──────────┐
leaf  │░░▓█░░ ░▒ │            │▒▒▒▒▒▒▒▒▒▒│      a cell is a link, darker is fuller,
      └─ uplink ─┘            └──────────┘      black is as full as the fullest of all
down  ┌──────────┐            ┌──────────┐
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np

from gradwire.network.checked import Ints, Reals
from gradwire.network.routes import Routes

_CELL, _GAP, _TEXT, _MOST = 9, 28, 13, 64  # pixels; leaves that are drawn at most


def heatmap(routes: Mapping[str, Routes]) -> str:
    """Draw routes on one fabric, by name, side by side. Where there are more than 64 leaves, those
    with the fullest links are drawn."""
    loads = {name: _loads(own) for name, own in routes.items()}
    fullest = max((float(load.max(initial=0)) for load in loads.values()), default=0.0)
    peak = np.max([load.max((0, 2)) for load in loads.values()], axis=0)
    leaves = np.sort(np.argsort(-peak, kind="stable")[:_MOST])
    wide = next(iter(loads.values())).shape[2] * _CELL
    high = len(leaves) * _CELL
    parts = list[str]()
    for column, (name, load) in enumerate(loads.items()):
        left = _GAP + column * (wide + _GAP)
        title = f"{escape(name)}: fullest {_told(float(load.max(initial=0)))}"
        parts.append(f'<text x="{left}" y="{_TEXT}">{title}</text>')
        for row, way in enumerate(("up: leaf by uplink", "down")):
            top = 2 * _TEXT + row * (high + _GAP)
            parts.append(f'<text x="{left}" y="{top + _TEXT - 4}">{way}</text>')
            grid = load[row][leaves]
            parts += _cells(grid, leaves, left, top + _TEXT, fullest, way.partition(":")[0])
    size = f'width="{_GAP + len(loads) * (wide + _GAP)}" height="{3 * _TEXT + 2 * (high + _GAP)}"'
    style = "text{font:11px sans-serif;fill:#222}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>',
        '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>", "",
    ])  # fmt: skip


def _loads(routes: Routes) -> Reals:
    """[up and down, leaves, uplinks]: seconds that each link is busy."""
    fabric = routes.fabric
    low = fabric.leaves * len(fabric.uplinks)
    rates = fabric.rates[: 2 * low].astype(float)
    amount = routes.loads.amount[: 2 * low].astype(float) * 8 / routes.loads.unit
    busy = np.divide(amount, rates, out=np.zeros_like(amount), where=rates > 0)
    by_way: Reals = busy.reshape(2, fabric.leaves, -1)
    return by_way


def _cells(grid: Reals, leaves: Ints, left: int, top: int, fullest: float, way: str) -> list[str]:
    found = []
    for y, (leaf, row) in enumerate(zip(leaves.tolist(), grid.tolist())):
        for x, seconds in enumerate(row):
            shade = round(245 * (1 - seconds / fullest)) if fullest else 245
            name = f"leaf {leaf}, uplink {x}, {way}: {_told(seconds)}"
            found.append(
                f'<rect x="{left + x * _CELL}" y="{top + y * _CELL}" width="{_CELL - 1}" '
                f'height="{_CELL - 1}" fill="rgb({shade},{shade},{min(255, shade + 10)})">'
                f"<title>{name}</title></rect>"
            )
    return found


def _told(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
