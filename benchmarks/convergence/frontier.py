"""What the bytes buy: bits per character against how many times fewer are sent, AdamW and Muon.

python benchmarks/convergence/frontier.py results/full.json results/frontier.png

Four workers, 2,000 steps, every method at its best rate of those run; means over seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import report
from matplotlib.figure import Figure

from gradwire.report.labels import spread

TASKS = {"gpt": ("AdamW", "#0072B2", "o"), "gpt-muon": ("Muon", "#D55E00", "s")}
WORST = 2.5
"""Bits: what reads more is harm, and leaves the plot."""
ROW = 0.009
"""Bits: a label's height."""


def points(records: Sequence[report.Record], task: str) -> dict[str, tuple[float, float]]:
    """Method to (times fewer bytes, bits)."""
    own = [r for r in records if (r["task"], r["workers"], r["steps"]) == (task, 4, 2000)]
    dense = fmean(r["bytes_per_step"] for r in own if r["method"] == "dense")
    found: dict[str, tuple[float, float]] = {}
    for row in report.rows(own):
        sent = fmean(run["bytes_per_step"] for run in row.runs)
        point = dense / sent, fmean(row.metrics)
        if row.method not in found or point[1] < found[row.method][1]:
            found[row.method] = point
    return found


def main() -> None:
    records = report.read([Path(sys.argv[1])])
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for task, (optimizer, colour, marker) in TASKS.items():
        found = points(records, task)
        level = found["dense"][1]
        axes.axhline(level, color=colour, linewidth=1, linestyle="--")
        axes.annotate(f"dense {optimizer}", (0.46, level), xytext=(0, 3), color=colour,
                      textcoords="offset points", fontsize=8)  # fmt: skip
        shown = [(m, p) for m, p in found.items() if p[1] <= WORST and m != "dense"]
        kept = dict(sorted(shown, key=lambda pair: pair[1][1]))  # from below
        beside = spread([bits for _, bits in kept.values()], ROW)
        for (method, (fewer, bits)), at in zip(kept.items(), beside):
            axes.plot(fewer, bits, marker, color=colour, markersize=5)
            axes.annotate(method, (fewer, bits), (1.09 * fewer, at), fontsize=7, va="center")
    axes.set_xscale("log")
    axes.set_xlim(0.45, 500)
    axes.set_xlabel("times fewer bytes than fp32 all-reduce, among four")
    axes.set_ylabel("held-out text (bits/character)")
    axes.grid(alpha=0.3)
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
