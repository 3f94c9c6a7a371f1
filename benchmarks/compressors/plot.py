"""Error against bits per element: one panel per model, a label at every point."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.report.labels import spread

_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#8A8A8A"
_PANEL, _HEIGHT, _DOTS_PER_INCH = 5.2, 6.6, 140
_ROW = 0.036  # a label's height, as a fraction of the panel's
_LEFT_BITS = 3.0  # below this, labels are on the left


@dataclass(frozen=True)
class Point:
    """One compressor: the error of one step, and of the sum of many with error feedback."""

    label: str
    bits: float
    error: float | None
    error_with_feedback: float | None


def save(panels: Sequence[tuple[str, Sequence[Point]]], window: int, path: Path) -> bool:
    """Writes the PNG; returns False if matplotlib is missing. Points without error are left
    out."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_PANEL * len(panels), _HEIGHT), layout="constrained")
    grid = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (title, points) in zip(grid, panels):
        _draw(axes, title, points)
    grid[0].set_ylabel("relative error of the mean of 4 ranks")
    _legend(figure, grid[0], window)
    figure.draw_without_rendering()  # fixes the limits, on which the labels' positions depend
    for axes, (_, points) in zip(grid, panels):
        _label(axes, [point for point in points if point.error])
    figure.savefig(path, dpi=_DOTS_PER_INCH)
    return True


def _draw(axes: Any, title: str, points: Sequence[Point]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="bits per element", xlim=(1e-5, 3e4))
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E8E8E8", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.axhline(1, color=_GREY, linewidth=0.9, linestyle=":")
    axes.set_xticks([0.1, 1, 8, 32], ["0.1", "1", "8", "32"])
    axes.minorticks_off()
    for point in points:
        if point.error:
            _point(axes, point)


def _point(axes: Any, point: Point) -> None:
    axes.plot(point.bits, point.error, "o", color=_BLUE, markersize=5)
    if point.error_with_feedback:
        ends = (point.error, point.error_with_feedback)
        axes.plot([point.bits] * 2, ends, color=_ORANGE, linewidth=0.8, alpha=0.5, zorder=1)
        axes.plot(point.bits, ends[1], "o", color=_ORANGE, markersize=4, fillstyle="none")


def _legend(figure: Any, axes: Any, window: int) -> None:
    axes.plot([], [], "o", color=_BLUE, markersize=5, label="one step, without memory")
    axes.plot(
        [], [], "o", color=_ORANGE, markersize=4, fillstyle="none",
        label=f"the sum of {window} steps, with ef",
    )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def _label(axes: Any, points: Sequence[Point]) -> None:
    """Draws names in a column on either side, in the order of the points' heights, without
    overlaps."""
    for left in (True, False):
        side = [p for p in points if (p.bits < _LEFT_BITS) == left]
        places = [_place(axes, point) for point in side]
        order = sorted(range(len(side)), key=lambda i: places[i][::-1])
        heights = spread([places[i][1] for i in order], _ROW)
        x, align, end = (0.31, "right", 1) if left else (0.74, "left", 0)
        arrow = {"arrowstyle": "-", "color": _GREY, "linewidth": 0.5, "relpos": (end, 0.5)}
        for i, height in zip(order, heights):
            axes.annotate(
                side[i].label, places[i], (x, height), xycoords="axes fraction",
                textcoords="axes fraction", va="center", ha=align, fontsize=8, arrowprops=arrow,
            )  # fmt: skip


def _place(axes: Any, point: Point) -> tuple[float, float]:
    """Returns a point's position, in fractions of the panel."""
    data = axes.transScale.transform((point.bits, point.error))
    x, y = axes.transLimits.transform(data)
    return float(x), float(y)
