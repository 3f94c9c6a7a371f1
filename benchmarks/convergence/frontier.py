"""What the bytes buy: bits per character against how many times fewer are sent, AdamW and Muon.

python benchmarks/convergence/frontier.py results/full.json results/frontier.png

Four workers, 2,000 steps, every method at its best rate of those run; means over seeds, hollow
where there is one. Of `gpt` what ran at the task's own rate alone is left out: dense is best at
twice that.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import report
from matplotlib.figure import Figure

from gradwire.report.labels import spread

TASKS = {"gpt": ("AdamW", "#0072B2", "o"), "gpt-muon": ("Muon", "#D55E00", "s")}
LEAST_RATE = {"gpt": 1.25, "gpt-muon": 1.0}
ROW = 0.0085
"""Bits: a label's height."""
COLUMNS = 1.5, 10.0, 60.0, math.inf
"""Times fewer: up to each, labels stand below one another."""


class Point(NamedTuple):
    """fewer: times fewer bytes than dense."""

    fewer: float
    bits: float
    seeds: int


def points(records: Sequence[report.Record], task: str) -> dict[str, Point]:
    """By method."""
    own = [r for r in records if (r["task"], r["workers"], r["steps"]) == (task, 4, 2000)]
    dense = fmean(r["bytes_per_step"] for r in own if r["method"] == "dense")
    found: dict[str, Point] = {}
    for row in report.rows(own):
        sent = fmean(run["bytes_per_step"] for run in row.runs)
        point = Point(dense / sent, fmean(row.metrics), len(row.runs))
        near = row.rate >= LEAST_RATE[task] or row.method.startswith("local")
        if near and (row.method not in found or point.bits < found[row.method].bits):
            found[row.method] = point
    return found


def main() -> None:
    records = report.read([Path(sys.argv[1])])
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for task, (optimizer, colour, marker) in TASKS.items():
        found = points(records, task)
        level = found["dense"].bits
        axes.axhline(level, color=colour, linewidth=1, linestyle="--")
        axes.annotate(f"dense {optimizer}", (0.46, level), xytext=(0, 3), color=colour,
                      textcoords="offset points", fontsize=8)  # fmt: skip
        for low, high in pairwise((0.0, *COLUMNS)):
            own = [(m, p) for m, p in found.items() if low < p.fewer <= high and m != "dense"]
            own.sort(key=lambda pair: pair[1].bits)  # from below
            heights = spread([point.bits for _, point in own], ROW)
            for (method, point), at in zip(own, heights):
                full = colour if point.seeds > 1 else "none"
                axes.plot(point.fewer, point.bits, marker, color=colour, markerfacecolor=full)
                axes.annotate(method, (point.fewer, point.bits), (1.1 * point.fewer, at),
                              fontsize=7, va="center")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(0.45, 500)
    axes.set_xlabel("times fewer bytes than fp32 all-reduce, among four")
    axes.set_ylabel("held-out text (bits/character)")
    axes.grid(alpha=0.3)
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
