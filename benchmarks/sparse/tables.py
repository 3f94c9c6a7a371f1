"""Costs of every sparse exchange against the number of workers: files, plots, and tables.

    python benchmarks/sparse/tables.py
    python benchmarks/sparse/tables.py lstm --count 2 4     # sums tensors, 1.6 GB each

Writes results/PRESET.json and PRESET.png beside this file and prints the tables of README.md.
Where results/PRESET-measured.json lies (a list of {scheme, n, bytes, seconds}), its points are
marked; --count writes it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsity import costs

from gradwire.errors import UsageError

RESULTS = Path(__file__).parent / "results"
PRESETS = ("lstm", "nmt", "bert", "deepfm", "topk")


def main() -> None:
    """Makes the tables of every preset in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", default=PRESETS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--count", type=int, nargs="+", default=[])
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for preset in asked.presets:
        print(one(preset, asked.scale, asked.count, asked.out), end="\n\n")


def one(preset: str, scale: float, count: Sequence[int], folder: Path) -> str:
    """Computes, saves and draws one preset; returns its tables."""
    points = folder / f"{preset}-measured.json"
    known = costs.read_measured(points) if points.exists() and not count else []
    document = costs.compute(preset, scale=scale, points=known, count=count)
    if count:
        points.write_text(json.dumps(document["measured"], indent=1) + "\n")
    (folder / f"{preset}.json").write_text(json.dumps(document, indent=1) + "\n")
    try:
        costs.draw(document, folder / f"{preset}.png")
    except UsageError as error:
        print(error, file=sys.stderr)
    tables = [costs.table(document, cost).as_markdown() for cost in ("bytes", "seconds")]
    return "\n\n".join([costs.headline(document), *costs.facts(document), *tables])


if __name__ == "__main__":
    main()
