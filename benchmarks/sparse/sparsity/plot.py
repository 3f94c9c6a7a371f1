"""Plots the costs of schemes over world size, on log axes: a line each, and measured dots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradwire.errors import UsageError
from gradwire.report.labels import spread

# Okabe and Ito's colours without the yellow, then two of Tol's, for colour-blind readers too.
_COLOURS = ("#56B4E9", "#CC79A7", "#E69F00", "#D55E00", "#009E73", "#0072B2", "#882255", "#332288")
_GREY, _BLACK = "#8A8A8A", "#000000"
_WIDTH, _HEIGHT, _DOTS_PER_INCH = 9.0, 6.0, 140
_ROW = 0.045  # a label's height, as a fraction of the plot's
_ABOVE = 4.0  # times the ceiling: higher costs leave the plot

Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Curve:
    """One scheme: (workers, cost) by formula, ascending, and as measured.

    `style` is for yardsticks: "ceiling" is the one that all are compared with, "floor" the one
    that none can go below.
    """

    label: str
    points: Points
    measured: Points = ()
    style: Literal["", "ceiling", "floor"] = ""


@dataclass(frozen=True)
class Panel:
    """Curves of one kind of cost; costs are divided by `unit` for the axis that `label` names."""

    label: str
    unit: float
    curves: Sequence[Curve]


def save(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Writes the plot, in the format of the path's ending: panels side by side.

    Raises:
        UsageError: matplotlib is missing, or does not write such files.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "a plot needs matplotlib, which is not installed. Run pip install 'gradwire[plot]'."
        ) from None
    figure = Figure(figsize=(_WIDTH * len(panels), _HEIGHT), layout="constrained")
    endings = figure.canvas.get_supported_filetypes()
    if path.suffix[1:] not in endings:
        raise UsageError(
            f"the ending of a plot's name is one of {', '.join(sorted(endings))}; "
            f"got '{path.name}'. Use '{path.stem or 'plot'}.png'."
        )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    drawn = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(drawn, panels):
        _dress(axes, panel)
        for curve, colour in zip(panel.curves, _colours(panel.curves)):
            _draw(axes, curve, colour, panel.unit)
        _limit(axes, panel)
    figure.draw_without_rendering()  # fixes the limits, on which the labels' positions depend
    for axes, panel in zip(drawn, panels):
        _label(axes, panel)
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _colours(curves: Sequence[Curve]) -> list[str]:
    """Returns the palette in order; grey for the ceiling, black for the floor."""
    palette = iter(_COLOURS * (1 + len(curves) // len(_COLOURS)))
    fixed = {"ceiling": _GREY, "floor": _BLACK}
    return [fixed[curve.style] if curve.style else next(palette) for curve in curves]


def _dress(axes: Any, panel: Panel) -> None:
    workers = sorted({n for curve in panel.curves for n, _ in curve.points})
    axes.set_title(" ", fontsize=11)  # space for the names of lines that leave the plot
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(workers, [f"{n:,}" for n in workers])
    axes.yaxis.set_major_formatter(lambda cost, _: f"{cost:,g}")
    axes.minorticks_off()
    axes.set_xlabel("workers")
    axes.set_ylabel(panel.label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E8E8E8", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw(axes: Any, curve: Curve, colour: str, unit: float) -> None:
    line = {"ceiling": "--", "floor": ":"}.get(curve.style, "-")
    axes.plot(*_in_units(curve.points, unit), line, color=colour, linewidth=1.8)
    if curve.measured:
        axes.plot(
            *_in_units(curve.measured, unit), "o", color=colour, markersize=7,
            markeredgecolor="white", zorder=3,
        )  # fmt: skip


def _limit(axes: Any, panel: Panel) -> None:
    """Limits the height, so that one line does not make all others flat."""
    ceilings = [cost for c in panel.curves if c.style == "ceiling" for _, cost in c.points]
    if ceilings:
        highest = axes.get_ylim()[1]
        axes.set_ylim(top=min(highest, _ABOVE * max(ceilings) / panel.unit))


def _in_units(points: Points, unit: float) -> tuple[list[int], list[float]]:
    return [n for n, _ in points], [cost / unit for _, cost in points]


def _label(axes: Any, panel: Panel) -> None:
    """Draws names at the lines' ends: on the right without overlaps, or above the plot where lines
    leave it."""
    inside = []
    for curve, colour in zip(panel.curves, _colours(panel.curves)):
        places = [_place(axes, n, cost / panel.unit) for n, cost in curve.points]
        place = places[-1]
        if place[1] > 1:
            x = _leaves(places)
            axes.annotate(
                curve.label, (x, 1), (0, 3), xycoords="axes fraction",
                textcoords="offset points", ha="center", color=colour, fontsize=10,
            )  # fmt: skip
        else:
            inside.append((place[1], place[0], curve.label, colour))
    inside.sort()
    arrow = {"arrowstyle": "-", "color": _GREY, "linewidth": 0.5, "relpos": (0, 0.5)}
    for (y, x, label, colour), height in zip(inside, spread([end[0] for end in inside], _ROW)):
        axes.annotate(
            label, (x, y), (1.03, height), xycoords="axes fraction",
            textcoords="axes fraction", va="center", color=colour, fontsize=10,
            arrowprops=arrow, annotation_clip=False,
        )  # fmt: skip


def _place(axes: Any, workers: int, height: float) -> tuple[float, float]:
    """Returns a point's position, in fractions of the axes."""
    x, y = axes.transLimits.transform(axes.transScale.transform((workers, height)))
    return float(x), float(y)


def _leaves(places: Sequence[tuple[float, float]]) -> float:
    """Returns where a line crosses the top."""
    first = next(i for i, (_, y) in enumerate(places) if y > 1)
    if first == 0:
        return places[0][0]
    (x0, y0), (x1, y1) = places[first - 1], places[first]
    return x0 + (x1 - x0) * (1 - y0) / (y1 - y0)
