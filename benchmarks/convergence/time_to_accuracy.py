"""How long until a model is as good as dense makes it, on a slow network?

    steps until the metric is dense's   ×   seconds of a step, by density   =   time to accuracy
       (lockstep, paired seeds)              (lab, contestants in turn)

    python benchmarks/convergence/time_to_accuracy.py [--rate 1gbit 100mbit] [--json FILE]

Results that FILE already holds are not measured again; runs are read from the folder. The check is
a whole short run in the lab, beside the sum for a run of its length.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import parity
import torch
from contestants import ALONE, FP16, FP32, ROUNDS, SETTLED, densities, in_lab, stage
from main import FOLDER
from methods import BY_NAME
from tasks import TASKS

from gradwire.bench.machine import set_allocator
from gradwire.report.table import Table
from train import Run, Training, train

LONGER = (1.0, 1.05, 1.1, 1.15, 1.25, 1.5)
"""Lengths of runs, as multiples of dense's steps, tried until one is as good; each with a whole
schedule. Those of --longer instead, where each is hours."""
CHECK = 60
"""The steps of a whole run in the lab."""
Seconds = Mapping[str, float]


def run_seconds(run: Run, of_step: Seconds, begin: int = 0) -> float:
    """Returns the seconds of a run's steps from `begin` on, warm-up included."""
    if run.method == "dense":
        return (run.steps - begin) * of_step[FP32]
    stages = densities(run, begin).items()
    return sum(n * of_step[stage(run, density)] for density, n in stages)


def reached(
    dense: Run, method: str, seeds: int, folder: Path, longer: Sequence[float] = LONGER
) -> tuple[Run, dict[int, float]]:
    """Returns the shortest run of a method that is as good as dense's, and means over seeds by
    steps tried.

    Raises SystemExit if none of these lengths is.
    """
    goal = _mean_metric(dense, seeds, folder)
    tried: dict[int, float] = {}
    for factor in longer:
        run = replace(dense, method=method, steps=round(factor * dense.steps))
        tried[run.steps] = _mean_metric(run, seeds, folder)
        if parity.reaches(TASKS[dense.task].metric.kind, tried[run.steps], goal):
            return run, tried
    texts = (f"{metric:.4f} in {steps:,} steps" for steps, metric in tried.items())
    raise SystemExit(f"{method} did not reach dense's {goal:.4f}: {', '.join(texts)}.")


def _mean_metric(run: Run, seeds: int, folder: Path) -> float:
    return fmean(_metrics(run, seeds, folder))


def _metrics(run: Run, seeds: int, folder: Path) -> list[float]:
    """Returns the metric of every seed."""
    metrics = []
    for one in (replace(run, seed=seed) for seed in range(seeds)):
        metrics.append(train(one, folder)["metric"])
        print(f"{one.name}: {metrics[-1]:.4f}", file=sys.stderr, flush=True)
    return metrics


def check(run: Run, rate: str, of_step: Seconds, folder: Path) -> dict[str, Any]:
    """Measures a whole run in the lab: its seconds beside the sum, its losses beside
    lockstep's."""
    found = in_lab("whole", [run], rate, folder)
    training = Training(run)
    while not training.is_over:
        training.advance()
    apart = max(abs(a - b) for a, b in zip(training.losses, found["losses"], strict=True))
    return {
        "method": run.method, "steps": run.steps - SETTLED, "seconds": found["seconds"][0],
        "expected": run_seconds(run, of_step, SETTLED), "apart": apart,
    }  # fmt: skip


def tables(found: Mapping[str, Any]) -> str:
    """Returns the content of the file, in Markdown."""
    cells, checks = [], []
    for rate, one in found["rates"].items():
        of_step = {name: median(values) for name, values in one["seconds"].items()}
        runs = [Run(**run) for run in found["runs"]]
        dense = runs[0].steps
        plain = {name: dense * of_step[name] for name in (FP32, FP16)}
        rows = [(name, dense, 1e3 * of_step[name], total) for name, total in plain.items()]
        for run in runs[1:]:
            own = of_step[stage(run, run.density)]
            rows.append((run.method, run.steps, 1e3 * own, run_seconds(run, of_step)))
        whole = _by_whole_runs(one["checks"], {name: total for name, _, _, total in rows})
        cells += [
            (rate, name, f"{steps:,}", f"{ms:.0f}", f"{total / 60:.1f}",
             *(f"{base / total:.1f}×" for base in plain.values()),
             f"{whole[FP32] / whole[name]:.1f}×" if name in whole else "")
            for name, steps, ms, total in rows
        ]  # fmt: skip
        cells.append((rate, ALONE, "", f"{1e3 * of_step[ALONE]:.0f}", "", "", "", ""))
        checks += [
            (rate, c["method"], f"{c['steps']}", f"{c['seconds']:.1f}", f"{c['expected']:.1f}",
             f"{100 * (c['seconds'] / c['expected'] - 1):+.0f} %", f"{c['apart']:.1e}")
            for c in one["checks"]
        ]  # fmt: skip
    headers = ("rate", "", "steps", "ms/step", "minutes", f"{FP32} / this", f"{FP16} / this",
               f"{FP32} / this, whole runs")  # fmt: skip
    beside = ("rate", "whole run", "steps", "seconds", "from steps", "off",
              "loss, largest difference from lockstep")  # fmt: skip
    return "\n\n".join(
        Table(names, rows).as_markdown() for names, rows in ((headers, cells), (beside, checks))
    )


def _by_whole_runs(
    checks: Sequence[Mapping[str, Any]], seconds: Mapping[str, float]
) -> dict[str, float]:
    """Returns the seconds if all steps took as long as those of the checks: contestants in turn
    share the caches with each other, and a run has them alone."""
    names = {"dense": FP32}
    return {
        name: seconds[name] * c["seconds"] / c["expected"]
        for c in checks
        if (name := names.get(c["method"], c["method"])) in seconds
    }


def main() -> int:
    arguments = _arguments()
    torch.set_num_threads(1)
    found = json.loads(arguments.json.read_text()) if arguments.json.exists() else {"rates": {}}
    task = TASKS[arguments.task]
    dense = Run(
        task.name, "dense", 0, arguments.hosts, arguments.steps or task.full.steps,
        arguments.density or task.full.density,
    )  # fmt: skip
    _keep(found, dense, arguments.method, arguments.json)
    for rate in arguments.rate:
        if rate not in found["rates"]:
            found["rates"][rate] = in_turn(
                dense, arguments.method, rate, arguments.folder, arguments.rounds
            )
            _save(found, arguments.json)
    runs = [
        reached(dense, name, arguments.seeds, arguments.folder, arguments.longer)
        for name in arguments.method
    ]
    shortest = [dense, *(run for run, _ in runs)]
    found["runs"] = [asdict(run) for run in shortest]
    of_seeds = [_metrics(run, arguments.seeds, arguments.folder) for run in shortest]
    found["seeds"] = {run.method: metrics for run, metrics in zip(shortest, of_seeds)}
    goal = {dense.steps: fmean(of_seeds[0])}
    found["metrics"] = {"dense": goal} | {run.method: tried for run, tried in runs}
    _save(found, arguments.json)
    print(tables(found))
    return 0


def _keep(found: dict[str, Any], dense: Run, methods: Sequence[str], file: Path) -> None:
    """Writes down what is measured. Raises SystemExit if the file holds seconds of other steps."""
    facts = {"task": dense.task, "workers": dense.workers, "density": dense.density}
    runs = found.get("runs", [])  # earlier files have no more
    before = {key: runs[0][key] for key in facts} if runs else facts
    known = found.get("of", {**before, "methods": [r["method"] for r in runs[1:]] or [*methods]})
    own = {**facts, "methods": [*methods]}
    if found["rates"] and known != own:
        raise SystemExit(
            f"{file} holds what was measured of {known}, and not of {own}. Take another --json."
        )
    found["of"] = own


def in_turn(
    dense: Run, methods: Sequence[str], rate: str, folder: Path, rounds: int
) -> dict[str, Any]:  # fmt: skip
    """Measures one rate: seconds of steps, and the checks."""
    runs = [replace(dense, method=name) for name in methods]
    seconds = in_lab("turns", runs, rate, folder, rounds)
    of_step = {name: median(values) for name, values in seconds.items()}
    checks = [
        check(replace(dense, method=name, steps=CHECK), rate, of_step, folder)
        for name in ("dense", *methods)
    ]
    return {"seconds": seconds, "checks": checks}


def _save(found: Mapping[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rate", nargs="+", default=["1gbit", "100mbit"])
    parser.add_argument("--task", choices=TASKS, default="words")
    parser.add_argument("--method", nargs="+", choices=BY_NAME, default=["ef-topk"])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--steps", type=int, help="of dense, instead of the task's")
    parser.add_argument("--density", type=float, help="instead of the task's")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of steps in turn, in the lab")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--longer", nargs="+", type=float, default=LONGER, metavar="FACTOR",
                        help="lengths to try, as multiples of dense's steps")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--json", type=Path, default=FOLDER / "time_to_accuracy.json")
    return parser.parse_args()


if __name__ == "__main__":
    set_allocator()
    raise SystemExit(main())
