"""Bytes of every sparse exchange against the number of workers: files, plots, and tables.

Writes results/PRESET.json and PRESET.png beside this file and prints the tables of README.md.
Where results/PRESET-measured.json lies (a list of {scheme, n, bytes}), its points are marked.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gradwire.cli import bench_sparse as bench
from gradwire.errors import UsageError

RESULTS = Path(__file__).parent / "results"
PRESETS = ("lstm", "nmt", "bert", "deepfm", "topk")


def main() -> None:
    """Every preset in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", default=PRESETS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--scale", type=float, default=1.0)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for preset in asked.presets:
        print(one(preset, asked.scale, asked.out), end="\n\n")


def one(preset: str, scale: float, folder: Path) -> str:
    """Compute, save and draw one preset; its table."""
    points = folder / f"{preset}-measured.json"
    known = bench.read_measured(points) if points.exists() else []
    document = bench.compute(preset, scale=scale, points=known)
    (folder / f"{preset}.json").write_text(json.dumps(document, indent=1) + "\n")
    try:
        bench.draw(document, folder / f"{preset}.png")
    except UsageError as error:
        print(error, file=sys.stderr)
    return f"{bench.headline(document)}\n\n{bench.table(document).as_markdown()}"


if __name__ == "__main__":
    main()
