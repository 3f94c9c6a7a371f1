"""Runs a recipe's script in the lab, as it is with DDP and with the recipe's lines, in turn.

    python recipes/run.py nanogpt --source ~/nanoGPT --losses --times --write nanogpt.json

The source is a checkout of the commit that recipe.toml names. It stays as it is: two copies of it
are patched, both by base.patch, if there is one (a script for GPUs is made to run on CPUs, or one
without DDP gets it), and one of them by gradwire.patch, which is the recipe.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import data

HERE = Path(__file__).resolve().parent
KINDS = ("ddp", "gradwire")
TIMED_STEPS = 30
"""Steps of a run for its times; the second half counts, and warm-ups end in the first."""


@dataclass(frozen=True)
class Prepared:
    """A recipe, with its patched copies and its data in one temporary folder."""

    recipe: Mapping[str, Any]
    folder: Path

    def run(
        self, kind: str, hosts: int, rate: str, seed: int, stop_after: int | None
    ) -> dict[str, float]:
        """Returns the loss and the seconds of a step of one run in the lab. stop_after: end after
        so many steps; None: as the script does."""
        backwards = self.recipe.get("micro_batches", hosts) // hosts  # of a rank, in one step
        notes = self.folder / "notes"
        shutil.rmtree(notes, ignore_errors=True)
        notes.mkdir()
        words = {
            "data": self.folder / "data", "out": self.folder / "out", "seed": seed,
            "hosts": hosts,
        }  # fmt: skip
        arguments = [a.format(**words) for a in self.recipe["arguments"]]
        command = [
            sys.executable, "-m", "gradwire", "lab", "run", "--hosts", f"{hosts}", "--rate", rate,
            "--timeout", "1200",
            "--", sys.executable, f"{HERE / 'start.py'}", f"{notes}", self.recipe["script"],
            *arguments,
        ]  # fmt: skip
        env = os.environ | {k: v.format(**words) for k, v in self.recipe.get("env", {}).items()}
        if stop_after is not None:
            env["STOP_AFTER"] = f"{stop_after * backwards}"
        done = subprocess.run(
            command, cwd=self.folder / kind, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{kind} failed: {done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        ranks = [json.loads(path.read_text()) for path in sorted(notes.iterdir())]
        return measured(ranks, backwards)


def measured(ranks: Sequence[Sequence[tuple[float, float]]], backwards: int) -> dict[str, float]:
    """Returns the mean loss of the last fifth of all steps and ranks, and rank 0's median step of
    the second half.

    ranks: the notes of each rank, a time and a loss for each backward(); backwards: how many
    belong to one step, of which each loss is a part.
    """
    last = max(1, len(ranks[0]) // 5)
    losses = [loss * backwards for notes in ranks for _, loss in notes[-last:]]
    begins = [time for time, _ in ranks[0]][::backwards]
    steps = [after - before for before, after in pairwise(begins)]
    return {
        "steps": len(begins),
        "loss": statistics.fmean(losses),
        "seconds": statistics.median(steps[len(steps) // 2 :]),
    }


def prepare(name: str, source: Path, folder: Path) -> Prepared:
    """Copies and patches the source, and makes the data."""
    recipe = tomllib.loads((HERE / name / "recipe.toml").read_text())
    for kind in KINDS:
        shutil.copytree(source, folder / kind, ignore=shutil.ignore_patterns(".git"))
        patches = ("base.patch",) if kind == "ddp" else ("base.patch", "gradwire.patch")
        for patch in (HERE / name / p for p in patches):
            if patch.exists():
                command = ["patch", "--strip=1", "--silent", f"--input={patch}"]
                subprocess.run(command, cwd=folder / kind, check=True)
    (folder / "data").mkdir()
    if "data" in recipe:
        data.MAKERS[recipe["data"]](folder / "data")
    return Prepared(recipe, folder)


def cases(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields what to run: DDP and gradwire in turn, so that both meet the same machine."""
    found: list[tuple[int, str, int, int | None]] = []
    if arguments.losses:
        found += [(max(arguments.hosts), "1gbit", seed, None) for seed in arguments.seeds]
    if arguments.times:
        found += [
            (hosts, rate, seed, TIMED_STEPS)
            for seed, hosts, rate in product(
                range(arguments.rounds), arguments.hosts, arguments.rates
            )
        ]
    for (hosts, rate, seed, stop_after), kind in product(found, KINDS):
        yield {
            "kind": kind, "hosts": hosts, "rate": rate, "seed": seed, "stop_after": stop_after
        }  # fmt: skip


def main() -> None:
    """Runs one recipe, and writes its losses and times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "recipe", choices=sorted(p.parent.name for p in HERE.glob("*/recipe.toml"))
    )
    parser.add_argument("--source", type=Path, required=True, help="a checkout of the original")
    parser.add_argument("--losses", action="store_true", help="train on the most hosts, each seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--times", action="store_true", help="time steps, in short runs")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"])
    parser.add_argument("--rounds", type=int, default=2, help="timed runs of each case")
    parser.add_argument("--write", type=Path, help="a JSON file, to which runs are added")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(arguments.recipe, arguments.source, Path(folder))
        file = arguments.write
        runs = json.loads(file.read_text()) if file and file.exists() else []
        for case in cases(arguments):
            runs.append(case | prepared.run(**case))
            print(json.dumps(runs[-1]), flush=True)
            if file:
                file.write_text("[\n" + ",\n".join(map(json.dumps, runs)) + "\n]\n")


if __name__ == "__main__":
    main()
