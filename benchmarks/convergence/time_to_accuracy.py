"""How long until a model is as good as dense makes it, on a slow network?

    steps until the metric is dense's   ×   seconds of a step, by density   =   time to accuracy
       (lockstep, paired seeds)              (lab, contestants in turn)

    python benchmarks/convergence/time_to_accuracy.py [--rate 1gbit 100mbit] [--json FILE]

What FILE holds already is not measured again; runs are read from the folder. A whole short run in
the lab, beside the sum for one of its length, is the check.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import parity
import torch
import torch.distributed as dist
from main import FOLDER
from methods import BY_NAME
from processes import Rank, leave
from tasks import TASKS
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire.bench.machine import set_allocator
from gradwire.lab import Cluster
from gradwire.report.table import Table
from train import Run, Training, train

FP32, FP16, ALONE = "DDP fp32", "DDP fp16", "no synchronization"
LONGER = (1.0, 1.05, 1.1, 1.15, 1.25, 1.5)
"""Runs of so many times dense's steps, tried until one is as good; each with a whole schedule."""
ROUNDS, TURN = 4, 12
CHECK, SETTLED = 60, 5
"""Steps of a whole run, and of these the first, which connect and allocate: not timed."""
Seconds = Mapping[str, float]


# -- in the lab ----------------------------------------------------------------------------


class Ddp(Rank):
    """The same training, synchronized by PyTorch alone."""

    hook: Any = None

    def synchronize(self, density: float | None) -> None:
        self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        if self.hook is not None:
            self.model.register_comm_hook(None, self.hook)


class HalfDdp(Ddp):
    hook = staticmethod(fp16_compress_hook)


class Alone(Rank):
    """What the processors take."""

    def synchronize(self, density: float | None) -> None:
        pass


PLAIN: dict[str, type[Rank]] = {ALONE: Alone, FP32: Ddp, FP16: HalfDdp}


def contestants(runs: Sequence[Run]) -> dict[str, Rank]:
    """Of the lab: a step of each density that these runs have, beside PyTorch's own."""
    dense = replace(runs[0], method="dense")
    found = {name: kind(dense) for name, kind in PLAIN.items()}
    for run in runs:
        found |= {name: Rank(run, density) for name, density in _stages(run).items()}
    return found


def _stages(run: Run) -> dict[str, float]:
    return {_stage(run, density): density for density in densities(run)}


def _stage(run: Run, density: float) -> str:
    return f"{run.method} at {density:g}"


def densities(run: Run, begin: int = 0) -> Counter[float]:
    """Of a run's steps from one on: the warm-up's, then its own."""
    warmup = BY_NAME[run.method].warmup(TASKS[run.task].settings, run.steps)
    at = [warmup.density(step) if warmup else None for step in range(begin, run.steps)]
    return Counter(run.density if density is None else density for density in at)


def take_turns(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Seconds of a step until all ranks are done, by contestant, in each round. Collective."""
    seconds: dict[str, list[float]] = {}
    ranks = contestants(runs)
    for turn in range(ROUNDS + 1):
        first = turn * (TURN + 1)
        for name, rank in ranks.items():
            rank.advance(first)
            dist.barrier()
            began = time.perf_counter()
            for step in range(TURN):
                rank.advance(first + 1 + step)
            dist.barrier()
            if turn > 0:  # the first finds caches and connections cold
                seconds.setdefault(name, []).append((time.perf_counter() - began) / TURN)
    return seconds


def whole_run(runs: Sequence[Run]) -> dict[str, list[float]]:
    """The first: seconds of its steps once it has settled, and all mean losses. Collective."""
    run = runs[0]
    rank = Ddp(run) if run.method == "dense" else Rank(run)
    losses = [rank.advance(step) for step in range(SETTLED)]
    dist.barrier()
    began = time.perf_counter()
    losses += [rank.advance(step) for step in range(SETTLED, run.steps)]
    dist.barrier()
    total = torch.tensor([*losses, time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(total)
    *losses, seconds = (total / dist.get_world_size()).tolist()
    return {"seconds": [seconds], "losses": losses}


JOBS = {"turns": take_turns, "whole": whole_run}


def work(job: str, runs: Sequence[Run], out: Path) -> None:
    """One rank of a job."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = JOBS[job](runs)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    leave()


def in_lab(job: str, runs: Sequence[Run], rate: str, folder: Path) -> dict[str, list[float]]:
    """What rank 0 of a job found."""
    out = (folder / f"{job},{rate}").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with Cluster(runs[0].workers, rate) as cluster:
        code = cluster.run(
            [sys.executable, __file__, job, json.dumps(list(map(asdict, runs))), str(out)],
            env={"GRADWIRE_TIME_TO_ACCURACY": "1"},
        )
    if code:
        raise SystemExit(f"the job in the lab ended with {code}; its words are above.")
    found: dict[str, list[float]] = json.loads(out.read_text())
    out.unlink()
    return found


# -- together ------------------------------------------------------------------------------


def run_seconds(run: Run, of_step: Seconds, begin: int = 0) -> float:
    """Of its steps from one on, warm-up and all."""
    if run.method == "dense":
        return (run.steps - begin) * of_step[FP32]
    stages = densities(run, begin).items()
    return sum(n * of_step[_stage(run, density)] for density, n in stages)


def reached(dense: Run, method: str, seeds: int, folder: Path) -> tuple[Run, dict[int, float]]:
    """The shortest run of a method that is as good as dense's; means of seeds by steps tried.

    Raises SystemExit if none of LONGER is.
    """
    goal = _mean_metric(dense, seeds, folder)
    tried: dict[int, float] = {}
    for factor in LONGER:
        run = replace(dense, method=method, steps=round(factor * dense.steps))
        tried[run.steps] = _mean_metric(run, seeds, folder)
        if parity.reaches(TASKS[dense.task].metric.kind, tried[run.steps], goal):
            return run, tried
    texts = (f"{metric:.4f} in {steps:,} steps" for steps, metric in tried.items())
    raise SystemExit(f"{method} did not reach dense's {goal:.4f}: {', '.join(texts)}.")


def _mean_metric(run: Run, seeds: int, folder: Path) -> float:
    metrics = []
    for one in (replace(run, seed=seed) for seed in range(seeds)):
        metrics.append(train(one, folder)["metric"])
        print(f"{one.name}: {metrics[-1]:.4f}", file=sys.stderr, flush=True)
    return fmean(metrics)


def check(run: Run, rate: str, of_step: Seconds, folder: Path) -> dict[str, Any]:
    """A whole run in the lab: its seconds beside the sum, its losses beside lockstep's."""
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
    """What is in the file, in markdown."""
    cells, checks = [], []
    for rate, one in found["rates"].items():
        of_step = {name: median(values) for name, values in one["seconds"].items()}
        runs = [Run(**run) for run in found["runs"]]
        dense = runs[0].steps
        plain = {name: dense * of_step[name] for name in (FP32, FP16)}
        rows = [(name, dense, 1e3 * of_step[name], total) for name, total in plain.items()]
        for run in runs[1:]:
            own = of_step[_stage(run, run.density)]
            rows.append((run.method, run.steps, 1e3 * own, run_seconds(run, of_step)))
        cells += [
            (rate, name, f"{steps:,}", f"{ms:.0f}", f"{total / 60:.1f}",
             *(f"{base / total:.1f}×" for base in plain.values()))
            for name, steps, ms, total in rows
        ]  # fmt: skip
        cells.append((rate, ALONE, "", f"{1e3 * of_step[ALONE]:.0f}", "", "", ""))
        checks += [
            (rate, c["method"], f"{c['steps']}", f"{c['seconds']:.1f}", f"{c['expected']:.1f}",
             f"{100 * (c['seconds'] / c['expected'] - 1):+.0f} %", f"{c['apart']:.1e}")
            for c in one["checks"]
        ]  # fmt: skip
    headers = ("rate", "", "steps", "ms/step", "minutes", f"{FP32} / this", f"{FP16} / this")
    beside = ("rate", "whole run", "steps", "seconds", "from steps", "off",
              "loss, largest difference from lockstep")  # fmt: skip
    return "\n\n".join(
        Table(names, rows).as_markdown() for names, rows in ((headers, cells), (beside, checks))
    )


def main() -> int:
    arguments = _arguments()
    torch.set_num_threads(1)
    found = json.loads(arguments.json.read_text()) if arguments.json.exists() else {"rates": {}}
    task = TASKS[arguments.task]
    dense = Run(
        task.name, "dense", 0, arguments.hosts, arguments.steps or task.full.steps,
        task.full.density,
    )  # fmt: skip
    for rate in arguments.rate:
        if rate not in found["rates"]:
            found["rates"][rate] = in_turn(dense, arguments.method, rate, arguments.folder)
            _save(found, arguments.json)
    runs = [reached(dense, name, arguments.seeds, arguments.folder) for name in arguments.method]
    found["runs"] = [asdict(run) for run in (dense, *(run for run, _ in runs))]
    goal = {dense.steps: _mean_metric(dense, arguments.seeds, arguments.folder)}
    found["metrics"] = {"dense": goal} | {run.method: tried for run, tried in runs}
    _save(found, arguments.json)
    print(tables(found))
    return 0


def in_turn(dense: Run, methods: Sequence[str], rate: str, folder: Path) -> dict[str, Any]:
    """One rate: seconds of steps, and the checks."""
    seconds = in_lab("turns", [replace(dense, method=name) for name in methods], rate, folder)
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
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--json", type=Path, default=FOLDER / "time_to_accuracy.json")
    return parser.parse_args()


if __name__ == "__main__":
    set_allocator()
    if "GRADWIRE_TIME_TO_ACCURACY" in os.environ:
        work(sys.argv[1], [Run(**run) for run in json.loads(sys.argv[2])], Path(sys.argv[3]))
    raise SystemExit(main())
