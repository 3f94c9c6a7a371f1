"""Error against bytes, for every compressor, on gradients of three small models.

Writes results/error.json and results/error.png beside this file and prints the tables of
README.md; with --tables prints them from what lies in results/, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plot
import torch
from measure import bits_per_element, measure
from models import Workload, moments, workloads

from gradwire.bench.compressors import distinct_compressors, strategies
from gradwire.cli import bench_compressors
from gradwire.report.table import Table
from gradwire.strategy import Compressor

RESULTS = Path(__file__).parent / "results"
STARTS = (10, 150, 300)
WINDOW = 50
MORE = ("topk(0.1)", "terngrad(clip=2.5)")  # in addition to `gradwire bench compressors`


def main() -> None:
    """Measures and saves, unless only the tables are requested; prints them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="only print what was measured")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"))
    parser.add_argument("--machine", default="", help="in words, without names")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if not asked.tables:
        torch.set_num_threads(1)
        origin = {"date": asked.date, "machine": asked.machine, "torch": torch.__version__}
        save(origin | run(workloads(), STARTS, WINDOW), asked.out)
    print(tables(asked.out))


def compressors() -> list[Compressor]:
    """Every exported compressor, with the parameters listed for it."""
    chosen = [*strategies(), *strategies(MORE)]
    return distinct_compressors(chosen)


def run(made: Sequence[Workload], starts: tuple[int, ...], window: int) -> dict[str, Any]:
    """Measures all compressors at all moments of all models."""
    return {"window": window, "models": [_model(each, starts, window) for each in made]}


def _model(workload: Workload, starts: tuple[int, ...], window: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    found: dict[str, Any] = {"name": workload.name, "losses": {}}
    for moment in moments(workload, starts, window):
        print(f"{workload.name}, step {moment.step}: loss {moment.loss:.3f}", file=sys.stderr)
        found["losses"][str(moment.step)] = moment.loss
        for compressor in compressors():
            row = rows.setdefault(str(compressor), {"compressor": str(compressor), "moments": {}})
            row["bits_per_element"] = bits_per_element(compressor, moment.gradients[0][0])
            row["moments"][str(moment.step)] = measure(compressor, moment.gradients)
        found["elements"] = sum(x.numel() for x in moment.gradients[0][0].values())
    return found | {"rows": list(rows.values())}


def save(document: dict[str, Any], folder: Path) -> None:
    """Writes error.json, and error.png if matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error.json").write_text(json.dumps(document, indent=1) + "\n")
    panels = [(model["name"], _points(model)) for model in document["models"]]
    plot.save(panels, document["window"], folder / "error.png")


def _points(model: dict[str, Any]) -> list[plot.Point]:
    """Returns all points except an absolute threshold, which says nothing here, and duplicates in
    a short format."""
    hidden = "threshold(2.0)", 'topk(0.001, values="bf16")'
    return [
        plot.Point(
            row["compressor"], row["bits_per_element"], middle(row, "one_step"),
            middle(row, "sum_ef"),
        )
        for row in model["rows"]
        if row["compressor"] not in hidden
    ]  # fmt: skip


def middle(
    row: dict[str, Any], what: str, of: str = "mean", number: str = "error"
) -> float | None:
    """Returns the median over the moments, or None if it was not measured."""
    given = [moment[what][of][number] for moment in row["moments"].values() if what in moment]
    return statistics.median(given) if given else None


# -- tables ------------------------------------------------------------------------------------


def tables(folder: Path) -> str:
    """Returns the tables of README.md, from the files in the folder."""
    parts = []
    if (folder / "speed.json").exists():
        speed = json.loads((folder / "speed.json").read_text())
        facts, encode, decode = bench_compressors.tables(speed)
        parts += [facts, encode.as_markdown(), decode.as_markdown()]
    if (folder / "error.json").exists():
        document = json.loads((folder / "error.json").read_text())
        for model in document["models"]:
            parts += [_headline(model), _table(model, document["window"]).as_markdown()]
    return "\n\n".join(parts)


def _headline(model: dict[str, Any]) -> str:
    losses = ", ".join(f"{loss:.2f} at step {step}" for step, loss in model["losses"].items())
    return f"**{model['name']}**, {model['elements']:,} elements in matrices; loss {losses}."


def _table(model: dict[str, Any], window: int) -> Table:
    headers = ("", "bits/element", "one rank", "cosine", "mean of 4", "cosine",
               f"sum of {window}", "with ef", "last step with ef")  # fmt: skip
    return Table(headers, [_cells(row) for row in model["rows"]])


def _cells(row: dict[str, Any]) -> list[str]:
    numbers = [
        middle(row, "one_step", "rank"),
        middle(row, "one_step", "rank", "cosine"),
        middle(row, "one_step"),
        middle(row, "one_step", "mean", "cosine"),
        middle(row, "sum"),
        middle(row, "sum_ef"),
        middle(row, "last_ef"),
    ]
    shown = ["" if x is None else f"{x:.2g}" if x < 0.99 else f"{x:.3g}" for x in numbers]
    return [row["compressor"], f"{row['bits_per_element']:.3g}", *shown]


if __name__ == "__main__":
    main()
