"""Prints the table of README.md, from each recipe.toml and gradwire.patch, and the results.

python recipes/table.py
"""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CASES = ((2, "1gbit"), (2, "100mbit"), (4, "1gbit"), (4, "100mbit"))
HEAD = (
    "recipe", "commit", "lines", "optimizer", "strategy", "loss with DDP", "with gradwire",
    "2 hosts, 1 Gbit/s", "100 Mbit/s", "4 hosts, 1 Gbit/s", "100 Mbit/s",
)  # fmt: skip


def lines_changed(patch: str) -> int:
    """Returns how many lines a patch adds, changes or removes; a changed line counts once."""
    total = 0
    body = (line for line in patch.splitlines() if not line.startswith(("--- ", "+++ ", "@@")))
    for same, group in groupby(body, key=lambda line: line[:1] in ("", " ")):
        if not same:
            marks = [line[0] for line in group]
            total += max(marks.count("+"), marks.count("-"))
    return total


def rows() -> Iterator[tuple[str, ...]]:
    """Yields the cells of each recipe."""
    for file in sorted(HERE.glob("*/recipe.toml")):
        name, recipe = file.parent.name, tomllib.loads(file.read_text())
        results = HERE / "results" / f"{name}.json"
        runs = json.loads(results.read_text()) if results.exists() else []
        lines = lines_changed((file.parent / "gradwire.patch").read_text())
        strategy = recipe["strategy"].replace("|", "\\|")
        yield (
            f"[{name}]({name}/gradwire.patch)", recipe["commit"][:8], f"{lines}",
            recipe["optimizer"], f"`{strategy}`", *losses(runs),
            *(times(runs, hosts, rate) for hosts, rate in CASES),
        )  # fmt: skip


def losses(runs: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Returns the losses of DDP for each seed, and how much gradwire's are above them."""
    found = {(r["kind"], r["seed"]): r["loss"] for r in runs if r["stop_after"] is None}
    seeds = [seed for kind, seed in found if kind == "ddp" and ("gradwire", seed) in found]
    above = (found["gradwire", seed] / found["ddp", seed] - 1 for seed in seeds)
    return (
        ", ".join(f"{found['ddp', seed]:.4g}" for seed in seeds) or "–",
        ", ".join(f"{part:+.1%}".replace("%", " %") for part in above) or "–",
    )


def times(runs: Sequence[Mapping[str, Any]], hosts: int, rate: str) -> str:
    """Returns the milliseconds of a step with DDP and with gradwire."""
    found = [
        [
            run["seconds"] * 1000
            for run in runs
            if (run["kind"], run["hosts"], run["rate"]) == (kind, hosts, rate)
            and run["stop_after"] is not None
        ]
        for kind in ("ddp", "gradwire")
    ]
    return " → ".join(f"{statistics.median(x):.0f}" for x in found) if all(found) else "–"


def table() -> str:
    """Returns the table, in Markdown."""
    lines = [HEAD, ("---",) * len(HEAD), *rows()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    print(table())
