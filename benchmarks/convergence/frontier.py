"""Quality against bytes: bits per character over dense's, against how many times fewer bytes.

python benchmarks/convergence/frontier.py results/full.json results/frontier.png

Draws a panel for each task of four workers, with every method at its best rate of those run near
dense's own best; points are means over seeds, hollow if there is one. Points above the line count
as worse than dense. Points beyond a panel are named at its top.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import report

from gradwire.report.labels import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Panel(NamedTuple):
    """Selects of a task's runs those of `steps` steps, at rates between two."""

    title: str
    steps: int
    rates: tuple[float, float]


PANELS = {
    "gpt": Panel("AdamW, gpt", 2000, (1.25, 3.0)),
    "gpt-muon": Panel("Muon, gpt", 2000, (1.0, 3.0)),
    "llama-muon": Panel("Muon, llama", 4000, (0.25, 0.7)),
}
WORSE = 1.01
LEAST, MOST = 0.984, 1.062
ROW = 0.0021
"""The height of a label."""
COLOURS = {True: "#0072B2", False: "#D55E00"}
"""The colours of methods that are as good as dense, and of others."""


class Point(NamedTuple):
    """A method's result. ratio: its bits over dense's at its best rate, seed by seed; fewer: times
    fewer bytes than dense."""

    fewer: float
    ratio: float
    seeds: int


def points(records: Sequence[report.Record], task: str) -> dict[str, Point]:
    """Returns the points by method, without dense."""
    panel = PANELS[task]
    own = [r for r in records if (r["task"], r["workers"], r["steps"]) == (task, 4, panel.steps)]
    low, high = panel.rates
    rows = [
        row for row in report.rows(own) if low <= row.rate <= high or row.method[:5] == "local"
    ]
    best = min((row for row in rows if row.method == "dense"), key=lambda r: _finite(r.metrics))
    dense = {run["seed"]: run["metric"] for run in best.runs}
    sent = fmean(run["bytes_per_step"] for run in best.runs)
    found: dict[str, Point] = {}
    for row in rows:
        fewer = sent / fmean(run["bytes_per_step"] for run in row.runs)
        pairs = [run["metric"] / dense[run["seed"]] for run in row.runs if run["seed"] in dense]
        point = Point(fewer, _finite(pairs), len(pairs))
        if row.method not in found or point.ratio < found[row.method].ratio:
            found[row.method] = point
    found.pop("dense")
    return found


def _finite(values: Sequence[float]) -> float:
    """Returns the mean; inf if a run diverged, so that it is named beyond the panel."""
    mean = fmean(values)
    return math.inf if math.isnan(mean) else mean


def draw(axes: Axes, found: dict[str, Point]) -> None:
    """Draws one panel."""
    axes.axhline(1.0, color="#888888", linewidth=1, linestyle="--")
    axes.axhline(WORSE, color="#CC3311", linewidth=1)
    inside = sorted(
        ((m, p) for m, p in found.items() if p.ratio < MOST), key=lambda pair: pair[1].ratio
    )
    heights = spread([point.ratio for _, point in inside], ROW)
    for (method, point), at in zip(inside, heights):
        colour = COLOURS[point.ratio <= WORSE]
        full = colour if point.seeds > 1 else "none"
        axes.plot(point.fewer, point.ratio, "o", color=colour, markerfacecolor=full)
        axes.annotate(
            method, (point.fewer, point.ratio), (500, at), fontsize=7, va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "alpha": 0.5},
        )  # fmt: skip
    beyond = sorted((p.ratio, m) for m, p in found.items() if p.ratio >= MOST)
    told = "\n".join(
        f"{method}: {ratio:.2f}, {found[method].fewer:.0f}×" for ratio, method in beyond
    )
    axes.text(0.02, 0.985, told, transform=axes.transAxes, fontsize=7, va="top", color="#555555")


def main() -> None:
    from matplotlib.figure import Figure

    records = report.read([Path(sys.argv[1])])
    figure = Figure(figsize=(14, 6.5), layout="constrained")
    for number, (task, panel) in enumerate(PANELS.items()):
        axes = figure.add_subplot(1, len(PANELS), number + 1)
        draw(axes, points(records, task))
        axes.set_xscale("log")
        axes.set_xlim(0.4, 30000)
        axes.set_xticks([1, 10, 100], ["1×", "10×", "100×"])
        axes.minorticks_off()
        axes.set_ylim(LEAST, MOST)
        axes.set_title(panel.title)
        axes.set_xlabel("times fewer bytes than dense")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("bits per character ÷ dense's at its best rate")
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
