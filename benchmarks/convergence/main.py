"""Does compression cost accuracy? Every method against dense, N workers in lockstep, paired seeds.

python benchmarks/convergence/main.py --small | --full [--jobs 2] [--folder FOLDER]
python benchmarks/convergence/main.py --full --task language --method dense dgc --workers 4 16
python benchmarks/convergence/main.py --processes [--workers 2] [--steps 300]
python benchmarks/convergence/main.py --read FOLDER_OR_FILE … [--json FILE] [--plot FILE]

The folder has one file for each run: finished runs are read, unfinished ones are resumed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import parity
import report
import torch
from controls import CONTROLS, Control
from methods import BY_NAME, DENSE_LOCAL, METHODS
from oracles import TOLERANCE
from processes import compare
from task import Length, Task
from tasks import TASKS

from gradwire.bench.machine import set_allocator
from gradwire.report.table import Table
from train import Run, train

FOLDER = Path("build/convergence")
WITH_ADAM = (
    "dense", "ef-topk-warm", "topk-adam", "onebit", "onebit-adam", "ef-sign", "sign", "qsgd",
    "powersgd",
)  # fmt: skip
FULL_TASKS = ("glyphs", "language", "gpt", "speech", "digits")
SMALL_TASKS = ("digits-mlp",)


def main() -> int:
    arguments = _arguments()
    if arguments.processes:
        print(processes(arguments))
        return 0
    if arguments.read:
        records = report.read(arguments.read)
    else:
        torch.set_num_threads(1)
        arguments.folder.mkdir(parents=True, exist_ok=True)
        records = list(perform(planned(arguments), arguments))
    print(report.tables(records))
    if arguments.small:
        print(f"\n{controls(records, arguments.folder)}")
    if arguments.json:
        arguments.json.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    if arguments.plot:
        report.plot(records, arguments.plot)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--small", action="store_true", help="minutes: density 1 %%")
    form.add_argument("--full", action="store_true", help="hours: the two cheapest at 0.1 %%")
    form.add_argument("--processes", action="store_true", help="lockstep beside real processes")
    form.add_argument("--read", type=Path, nargs="+", help="tables of what was run, and no more")
    parser.add_argument("--task", nargs="+", choices=TASKS, metavar="TASK", help=", ".join(TASKS))
    parser.add_argument(
        "--method", nargs="+", choices=BY_NAME, metavar="METHOD", help=", ".join(BY_NAME)
    )
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--workers", type=int, nargs="+", default=[4])
    parser.add_argument("--steps", type=int, help="another number than the form's")
    parser.add_argument("--density", type=float, help="another than the form's")
    parser.add_argument(
        "--rate", type=float, nargs="+", default=[1.0], help="times the task's learning rate"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--device", default="cpu", help="of models and strategies: cuda, cuda:1")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--json", type=Path, help="all records in one file")
    parser.add_argument("--plot", type=Path, help="a PNG of the curves")
    return parser.parse_args()


def planned(arguments: argparse.Namespace) -> list[Run]:
    """Returns the runs: the first seed of everything first, and dense before what is compared with
    it."""
    names = arguments.task or (SMALL_TASKS if arguments.small else FULL_TASKS)
    runs = []
    for seed in range(arguments.seeds or (5 if arguments.small else 3)):
        for task in map(TASKS.__getitem__, names):
            length: Length = task.small if arguments.small else task.full
            steps, density = arguments.steps or length.steps, arguments.density or length.density
            runs += [
                Run(task.name, method, seed, workers, steps, density, rate)
                for workers in arguments.workers
                for method in arguments.method or _methods(task, arguments.small)
                for rate in arguments.rate
            ]
    return runs


def _methods(task: Task, small: bool) -> Iterable[str]:
    names = (
        list(WITH_ADAM)
        if task.settings.optimizer != "sgd"
        else [method.name for method in METHODS]
    )
    if task.settings.clip is not None:
        names.append(DENSE_LOCAL.name)
    return [name for name in names if name != "gtopk-published"] if small else names


def perform(runs: list[Run], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the records of the runs, in order."""
    began = time.monotonic()
    for run, record in zip(runs, _records(runs, arguments)):
        shown = f"{record['metric']:.3f}, training loss {record['training_loss']:.4f}"
        seconds = f"{record['ms_per_step']:.1f} ms/step, {time.monotonic() - began:.0f} s so far"
        print(f"{run.name}: {shown}, {seconds}", file=sys.stderr, flush=True)
        yield record


def _records(runs: list[Run], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    each = partial(train, folder=arguments.folder, device=arguments.device)
    if arguments.jobs == 1:
        yield from map(each, runs)
        return
    # Spawned, because torch's threads do not survive a fork.
    spawn = get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, spawn, torch.set_num_threads, (1,)) as pool:
        yield from pool.map(each, runs)


def controls(records: list[dict[str, Any]], folder: Path) -> str:
    """Returns a table of the mistakes and what sees each: its state's gate, and parity of the runs
    above."""
    dense = [r for r in records if r["method"] == "dense"][:1]
    cells = []
    for control in CONTROLS:
        right, wrong = control.gate(control.right), control.gate(control.wrong)
        accuracy = ""
        if control.in_accuracy and dense:
            accuracy = _in_accuracy(control, dense[0], folder)
        cells.append((
            control.name, control.gate.__name__, f"{right:.1e}", f"{wrong:.1e}",
            "yes" if right < TOLERANCE <= wrong else "**no**", accuracy,
        ))  # fmt: skip
    headers = ("negative control", "gate", "right", "wrong", "seen", "seen by parity")
    return Table(headers, cells).as_markdown()


def _in_accuracy(control: Control, dense: dict[str, Any], folder: Path) -> str:
    """Returns the verdict on one run with the same seed as dense's."""
    same = {key: dense[key] for key in ("task", "seed", "workers", "steps", "density")}
    record = train(Run(method=control.wrong.name, **same), folder)
    kind = TASKS[dense["task"]].metric.kind
    verdict = parity.metric(kind, [dense["metric"]], [record["metric"]])
    sign = "<" if kind == "accuracy" else ">"
    return f"{verdict.found:.1f} {sign} {verdict.limit:.1f}" if not verdict.passed else "**no**"


def processes(arguments: argparse.Namespace) -> str:
    """Runs a sample by torchrun and returns a table of whether its losses are lockstep's."""
    cells = []
    for task in arguments.task or ("digits-mlp",):
        for method in arguments.method or ("dense", "dgc"):
            steps, density = arguments.steps or 300, arguments.density or 0.01
            workers = arguments.workers[0]
            found = compare(Run(task, method, 0, workers, steps, density))
            cells.append((
                task, method, f"{workers}", f"{steps}", f"{found.same}",
                f"{found.apart:.1e}",
            ))  # fmt: skip
    headers = ("task", "method", "processes", "steps", "the same bits", "largest difference")
    return Table(headers, cells).as_markdown()


if __name__ == "__main__":
    set_allocator()
    raise SystemExit(main())
