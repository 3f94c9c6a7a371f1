"""How long selection takes for one link, and how far its plan may be from the best.

python benchmarks/planner/selection.py [--json] [--quick] [--date 2026-11-21 --machine "…"]
Prints the table of README.md and writes results/selection.json beside this file; with --json that
document goes to standard output instead, and with --quick nothing is written.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from gradwire.kernels import instruction_set
from gradwire.planner.joint import Option, Solution, solve

TENSORS, QUICK = (32, 161, 314, 1000), (8, 32)
SLOW = (0.3, 1.0, 3.0, 10.0)  # seconds of sending everything as it is, by seconds of backward
BACKWARD_SECONDS = 0.1
RESULTS = Path(__file__).parent / "results" / "selection.json"


def resnet(n: int, dice: random.Random) -> list[float]:
    """A third of the tensors are kernels, 2^14 to 2^21 elements; the others scales and biases."""
    return [
        2.0 ** dice.uniform(14, 21) if j % 3 == 0 else 64.0 * 2 ** dice.randint(0, 5)
        for j in range(n)
    ]


def random_sizes(n: int, dice: random.Random) -> list[float]:
    return [1e6 * dice.random() for _ in range(n)]


def equal(n: int, _: random.Random) -> list[float]:
    return [1e5] * n


def heavy(n: int, dice: random.Random) -> list[float]:
    """Few hold most: Pareto, index 0.8."""
    return [1e3 * dice.paretovariate(0.8) for _ in range(n)]


def adversarial(n: int, dice: random.Random) -> list[float]:
    """Powers of 1.9 in no order: sums of subsets all differ, so that few labels coincide."""
    sizes = [1e3 * 1.9 ** (j % 20) for j in range(n)]
    dice.shuffle(sizes)
    return sizes


Family = Callable[[int, random.Random], list[float]]
FAMILIES: dict[str, Family] = {
    "resnet": resnet, "random": random_sizes, "equal": equal, "heavy": heavy,
    "adversarial": adversarial,
}  # fmt: skip


def instance(family: str, n: int, slow: float, seed: int) -> tuple[list[float], list[float]]:
    """Ready times, half by count and half by size, and sizes."""
    dice = random.Random(f"{family} {n} {slow} {seed}")
    sizes = FAMILIES[family](n, dice)
    total = sum(sizes)
    gaps = [BACKWARD_SECONDS * (0.5 / n + 0.5 * size / total) for size in sizes]
    return list(accumulate(gaps)), sizes


def options(n: int, slow: float, total: float) -> list[Option]:
    """As it is, or a tenth of it encoded on either lane; the worker is four times as slow."""
    start = min(1e-3, 0.0128 / n)
    per_unit = slow * BACKWARD_SECONDS / total
    return [
        Option("none", send=(start, per_unit)),
        Option("gpu", (2e-4, 0.02 / total), (start, per_unit / 10), (1e-4, 0.01 / total)),
        Option("cpu", (5e-4, 0.08 / total), (start, per_unit / 10), (2e-4, 0.03 / total)),
    ]


def timed(family: str, n: int, slow: float, seeds: Iterable[int]) -> dict[str, Any]:
    """One row: medians over seeds of processor time, the longest selection, the largest gap."""
    found: list[Solution] = []
    taken: list[float] = []
    for seed in seeds:
        ready, sizes = instance(family, n, slow, seed)
        ways = options(n, slow, sum(sizes))
        turns = []
        for _ in range(3):
            began = time.process_time()
            solution = solve(ready, sizes, ways)
            turns.append(time.process_time() - began)
        taken.append(min(turns))
        found.append(solution)
    return {
        "family": family, "tensors": n, "slow": slow, "instances": len(found),
        "median_seconds": statistics.median(taken), "longest_seconds": max(taken),
        "labels": statistics.median(s.labels for s in found),
        "groups": statistics.median(len(s.groups) for s in found),
        "exact": sum(s.is_exact for s in found),
        "median_gap": statistics.median(s.gap for s in found),
        "largest_gap": max(s.gap for s in found),
    }  # fmt: skip


def table(rows: Iterable[dict[str, Any]]) -> str:
    """A line for each number of tensors and family, a column for each speed of the link."""
    lines = [
        "| tensors | sizes | "
        + " | ".join(f"sending / backward {slow:g}" for slow in SLOW)
        + " |",
        "| ---: | --- |" + " ---: |" * len(SLOW),
    ]
    cells: dict[tuple[int, str], list[str]] = {}
    for row in rows:
        cells.setdefault((row["tensors"], row["family"]), []).append(cell(row))
    lines += [f"| {n} | {family} | {' | '.join(own)} |" for (n, family), own in cells.items()]
    return "\n".join(lines)


def cell(row: dict[str, Any]) -> str:
    """Milliseconds, the longest in brackets, and "exact" or the median gap and the largest."""
    median, longest = 1e3 * row["median_seconds"], 1e3 * row["longest_seconds"]
    exact = row["exact"] == row["instances"]
    gap = f"{100 * row['median_gap']:.1f} ({100 * row['largest_gap']:.1f}) %"
    return f"{median:.1f} ({longest:.1f}) ms, {'exact' if exact else gap}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="the document, not the table")
    parser.add_argument("--quick", action="store_true", help="few tensors, nothing written")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"))
    parser.add_argument("--machine", default="", help="in words, without names")
    asked = parser.parse_args()
    rows = [
        timed(family, n, slow, range(1 if asked.quick else asked.seeds))
        for n in (QUICK if asked.quick else TENSORS)
        for family in FAMILIES
        for slow in SLOW
    ]
    document = {
        "date": asked.date, "machine": asked.machine, "torch": torch.__version__,
        "kernels": instruction_set(), "options": 3, "rows": rows,
    }  # fmt: skip
    text = json.dumps(document, indent=1)
    print(text if asked.json else table(rows))
    if not asked.quick:
        RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
