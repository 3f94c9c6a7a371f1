"""Bytes against world size, both axes logarithmic: a line per scheme, a dot per measurement."""

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
_ROW = 0.045  # of the height: a label's
_ABOVE = 4.0  # times the yardstick: what is dearer leaves the plot

Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Curve:
    """One scheme: (workers, bytes) by formula, ascending, and as measured.

    `style` is for yardsticks: "ceiling" is what all are compared with, "floor" what none passes.
    """

    label: str
    points: Points
    measured: Points = ()
    style: Literal["", "ceiling", "floor"] = ""


def save(curves: Sequence[Curve], title: str, path: Path) -> None:
    """Write the plot, in the format that the path ends with.

    Raises:
        UsageError: matplotlib is missing, or does not write such files.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "a plot needs matplotlib, which is not installed. Run pip install 'gradwire[plot]'."
        ) from None
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    endings = figure.canvas.get_supported_filetypes()
    if path.suffix[1:] not in endings:
        raise UsageError(
            f"the ending of a plot's name is one of {', '.join(sorted(endings))}; "
            f"got '{path.name}'. Use '{path.stem or 'plot'}.png'."
        )
    axes = figure.add_subplot()
    _dress(axes, title, sorted({n for curve in curves for n, _ in curve.points}))
    colours = _colours(curves)
    for curve, colour in zip(curves, colours):
        _draw(axes, curve, colour)
    _limit(axes, curves)
    figure.draw_without_rendering()  # settles the limits, which the labels' places depend on
    _label(axes, curves, colours)
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _colours(curves: Sequence[Curve]) -> list[str]:
    """The palette in order; grey for the ceiling, black for the floor."""
    palette = iter(_COLOURS * (1 + len(curves) // len(_COLOURS)))
    fixed = {"ceiling": _GREY, "floor": _BLACK}
    return [fixed[curve.style] if curve.style else next(palette) for curve in curves]


def _dress(axes: Any, title: str, workers: Sequence[int]) -> None:
    axes.set_title(title, loc="left", fontsize=11, pad=24)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(workers, [f"{n:,}" for n in workers])
    axes.yaxis.set_major_formatter(lambda megabytes, _: f"{megabytes:,g}")
    axes.minorticks_off()
    axes.set_xlabel("workers")
    axes.set_ylabel("MB received by the busiest node")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E8E8E8", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw(axes: Any, curve: Curve, colour: str) -> None:
    line = {"ceiling": "--", "floor": ":"}.get(curve.style, "-")
    axes.plot(*_megabytes(curve.points), line, color=colour, linewidth=1.8)
    if curve.measured:
        axes.plot(
            *_megabytes(curve.measured), "o", color=colour, markersize=7,
            markeredgecolor="white", zorder=3,
        )  # fmt: skip


def _limit(axes: Any, curves: Sequence[Curve]) -> None:
    """Not so high that one line makes all others flat."""
    ceilings = [count for c in curves if c.style == "ceiling" for _, count in c.points]
    if ceilings:
        highest = axes.get_ylim()[1]
        axes.set_ylim(top=min(highest, _ABOVE * max(ceilings) / 1e6))


def _megabytes(points: Points) -> tuple[list[int], list[float]]:
    return [n for n, _ in points], [count / 1e6 for _, count in points]


def _label(axes: Any, curves: Sequence[Curve], colours: Sequence[str]) -> None:
    """Names at the lines' ends: on the right none on another, above the plot where they leave."""
    inside = []
    for curve, colour in zip(curves, colours):
        place = _place(axes, curve.points[-1])
        if place[1] > 1:
            x = _leaves([_place(axes, point) for point in curve.points])
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


def _place(axes: Any, point: tuple[int, float]) -> tuple[float, float]:
    """Where a point lies, in fractions of the axes."""
    workers, count = point
    x, y = axes.transLimits.transform(axes.transScale.transform((workers, count / 1e6)))
    return float(x), float(y)


def _leaves(places: Sequence[tuple[float, float]]) -> float:
    """Where a line passes the top."""
    first = next(i for i, (_, y) in enumerate(places) if y > 1)
    if first == 0:
        return places[0][0]
    (x0, y0), (x1, y1) = places[first - 1], places[first]
    return x0 + (x1 - x0) * (1 - y0) / (y1 - y0)
