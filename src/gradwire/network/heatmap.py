"""Draws the loads of links between leaves and the switches above: one SVG, no other file.

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
from gradwire.report.terminal import plain

_LEAST, _GAP, _TEXT, _WIDE = 9, 28, 13, 170  # pixels: a cell, a gap, a line of text, a scheme
_MOST = 64
"""The most leaves that are drawn."""


def heatmap(routes: Mapping[str, Routes]) -> str:
    """Draws routes on one fabric, by name, side by side. Of more than 64 leaves, it draws those
    with the fullest links. A page that holds the picture may give it other colours: they are
    attributes, which style sheets override."""
    loads = {name: _loads(own) for name, own in routes.items()}
    fullest = max((float(load.max(initial=0)) for load in loads.values()), default=0.0)
    peak = np.max([load.max((0, 2), initial=0) for load in loads.values()], axis=0)
    leaves = np.sort(np.argsort(-peak, kind="stable")[:_MOST])
    uplinks = next(iter(loads.values())).shape[2]
    cell = max(_LEAST, min(2 * _LEAST, _WIDE // max(uplinks, len(leaves))))
    wide, high = max(_WIDE, uplinks * cell), len(leaves) * cell
    parts = list[str]()
    for column, (name, load) in enumerate(loads.items()):
        left = _GAP + column * (wide + _GAP)
        title = f"{escape(name)}: fullest {_told(float(load.max(initial=0)))}"
        parts.append(f'<text x="{left}" y="{_TEXT}">{title}</text>')
        for row, way in enumerate(("up: leaf by uplink", "down")):
            top = 2 * _TEXT + row * (high + _GAP)
            parts.append(f'<text x="{left}" y="{top + _TEXT - 4}">{way}</text>')
            grid = load[row][leaves]
            name_of_way = way.partition(":")[0]
            parts += _cells(grid, leaves, left, top + _TEXT, cell, fullest, name_of_way)
    width, height = _GAP + len(loads) * (wide + _GAP), 3 * _TEXT + 2 * (high + _GAP)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" class="heatmap" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11" fill="#222222" role="img" aria-label="How full each link is">',
        '<rect class="paper" width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>", "",
    ])  # fmt: skip


def _loads(routes: Routes) -> Reals:
    """Returns the seconds that each link is busy, [up and down, leaves, uplinks]."""
    fabric = routes.fabric
    low = fabric.leaves * len(fabric.uplinks)
    rates = fabric.rates[: 2 * low].astype(float)
    amount = routes.loads.amount[: 2 * low].astype(float) * 8 / routes.loads.unit
    busy = np.divide(amount, rates, out=np.zeros_like(amount), where=rates > 0)
    by_way: Reals = busy.reshape(2, fabric.leaves, -1)
    return by_way


def _cells(
    grid: Reals, leaves: Ints, left: int, top: int, cell: int, fullest: float, way: str
) -> list[str]:
    found = []
    for y, (leaf, row) in enumerate(zip(leaves.tolist(), grid.tolist())):
        for x, seconds in enumerate(row):
            full = 0.05 + 0.95 * (seconds / fullest if fullest else 0.0)
            name = f"leaf {leaf}, uplink {x}, {way}: {_told(seconds)}"
            found.append(
                f'<rect x="{left + x * cell}" y="{top + y * cell}" width="{cell - 1}" '
                f'height="{cell - 1}" fill-opacity="{full:.3g}">'
                f"<title>{name}</title></rect>"
            )
    return found


def _told(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{plain(seconds / scale)} {unit}"
    return f"{plain(seconds * 1e9)} ns"
