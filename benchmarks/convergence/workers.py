"""Results over the number of workers: is a method as good as dense among more, and what is sent?

python benchmarks/convergence/workers.py results/workers.json results/workers.png

Each number of workers has its own dense runs: a worker's batch keeps its size, so a step's whole
batch grows with their number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import report
from tasks import TASKS

from gradwire.report.table import Table

Rows = dict[int, dict[str, report.Row]]
"""Rows by number of workers, then by method."""


def of(records: Iterable[report.Record]) -> dict[tuple[str, int, float], Rows]:
    """Returns the runs of each task, length and density."""
    found: dict[tuple[str, int, float], Rows] = {}
    for (task, workers, steps, density), own in report.groups(records).items():
        by_method = {row.method: row for row in report.rows(own) if row.rate == 1.0}
        found.setdefault((task, steps, density), {})[workers] = by_method
    return found


def table(records: Iterable[report.Record]) -> str:
    """Returns Markdown: a row for each method, a column for each number of workers."""
    parts = []
    for (task, steps, density), rows in of(records).items():
        metric = TASKS[task].metric
        parts.append(
            f"**{task}**, density {density:g}, {steps:,} steps: {metric.name} in {metric.unit} "
            "(less dense's, and whether both rules call it as good), kB/step."
        )
        headers = ("method", *(f"{workers} workers" for workers in rows))
        cells = [
            (method, *(_cell(own.get(method)) for own in rows.values()))
            for method in sorted({m for own in rows.values() for m in own}, key=report.ORDER.index)
        ]
        parts.append(Table(headers, cells).as_markdown())
    return "\n\n".join(parts)


def _cell(row: report.Row | None) -> str:
    if row is None:
        return ""
    _, seeds, found, difference, as_good, _, learns, sent, *_ = row.cells()
    many = f", {seeds} seeds" if seeds != "1" else ""
    if not as_good:
        return f"{found}{many}; {sent}"
    passed = "yes" if as_good == learns == "yes" else "**no**"
    return f"{found} ({difference}, {passed}{many}); {sent}"


def plot(records: Sequence[report.Record], file: Path) -> None:
    """Plots a row for each task and length: the loss against dense, and what is sent."""
    from matplotlib.figure import Figure

    chosen = of(records)
    figure = Figure(figsize=(11, 3.6 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), 2, squeeze=False)
    for (left, right), ((task, steps, density), rows) in zip(axes, chosen.items()):
        metric = TASKS[task].metric
        for method in sorted({m for own in rows.values() for m in own}, key=report.ORDER.index):
            own = {n: by[method] for n, by in rows.items() if method in by}
            colour, style = report.LOOKS.get(method, ("tab:gray", "-."))
            look = {"color": colour, "linestyle": style, "marker": "o", "label": method}
            paired = {n: row for n, row in own.items() if row.dense}
            left.plot(
                list(paired),
                [
                    fmean(row.metrics) - fmean(run["metric"] for run in row.dense)
                    for row in paired.values()
                ],
                **look,
            )
            right.plot(
                list(own),
                [fmean(r["bytes_per_step"] for r in row.runs) / 1e3 for row in own.values()],
                **look,
            )
        for axis in (left, right):
            axis.set_xscale("log", base=2)
            axis.set_xticks(list(rows), [str(workers) for workers in rows])
            axis.set_xlabel("workers")
            axis.grid(alpha=0.3)
        left.set_title(f"{task}: density {density:g}, {steps:,} steps", fontsize=10, loc="left")
        left.set_ylabel(f"{metric.name} less dense's ({metric.unit})")
        right.set_ylabel("kB a step, warm-up included")
        right.set_yscale("log")
        right.legend(fontsize=8)
    figure.savefig(file, dpi=110)


def main() -> None:
    records = report.read([Path(sys.argv[1])])
    print(table(records))
    if len(sys.argv) > 2:
        plot(records, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
