"""How much longer a step takes that is written, beside those around it in the same turn.

    step      0   1   2   3   4   5   6   7   8 …      written: every fourth, on all ranks
    written   ▓               ▓               ▓

    python benchmarks/recording/lines.py [--hosts 4] [--rate 1gbit] [--turns 40] [--json FILE]

Whole turns with and without a recording (`main.py`) differ by more than it costs, as the machine
drifts from one to the next. Steps of one turn drift together. What a line adds is then known to a
few hundredths of a percent of 120 steps: added seconds times the number of lines that a new
recording writes in them, which is counted, too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from time import perf_counter

import torch
import torch.distributed as dist
from main import STRATEGIES, job

import gradwire
from gradwire.bench.machine import set_allocator
from gradwire.lab import Cluster
from gradwire.report.run import Run
from gradwire.training.recording import Pace, Recording

EVERY, STEPS, FIRST = 4, 60, 4
"""Lines in every so many steps of a turn of so many, of which the first few are not counted."""
OVER = 120
"""The first steps of a recording, of which the cost is told."""


def main() -> int:
    arguments = _arguments()
    if arguments.worker is not None:
        return worker(arguments.worker, arguments.turns)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, __file__, f"--worker={result}", f"--turns={arguments.turns}"]
        with Cluster(arguments.hosts, arguments.rate) as cluster:
            if code := cluster.run(command):
                return code
        found = json.loads(result.read_text())
    for name, own in found.items():
        added, whole = own["added_seconds"], OVER * own["step_seconds"]
        error = stdev(added) / len(added) ** 0.5
        share = own["lines"] * fmean(added) / whole
        usual = 1e3 * own["step_seconds"]
        print(
            f"{name}: a step with lines takes {1e3 * fmean(added):.2f} ± {1e3 * error:.2f} ms "
            f"more than {usual:.1f} (mean and its standard error, {len(added)} turns); a new "
            f"recording writes {own['lines']} of the first {OVER} steps: "
            f"{100 * share:.2f} ± {100 * own['lines'] * error / whole:.2f} %"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def worker(result: Path, turns: int) -> int:
    """Does one rank's work, for all bucket sizes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {name: measure(size, result.parent, turns) for name, size in STRATEGIES.items()}
    if dist.get_rank() == 0:
        result.write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def measure(bucket_bytes: int, folder: Path, turns: int) -> dict[str, object]:
    """Returns the seconds that lines add to a step, turn by turn, a step's own, and the number of
    a new recording's steps with lines; of times, means over ranks."""
    handle, step = job(bucket_bytes)
    with gradwire.record(handle, folder / f"{bucket_bytes}-usual"):
        for _ in range(OVER):
            step()
    dist.barrier()
    life = Run(folder / f"{bucket_bytes}-usual").ranks[dist.get_rank()].lives[-1]
    lines = len({row.step for row in life.steps} | set(life.spans))
    with gradwire.record(handle, folder / f"{bucket_bytes}-fixed") as recording:
        _fix(recording)
        times = [_turn(handle, step) for _ in range(turns)]
    handle.detach()
    every: list[list[tuple[float, float]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, times)
    added = [fmean(written - other for written, other in ranks) for ranks in zip(*every)]
    return {
        "added_seconds": added, "step_seconds": median(o for own in every for _, o in own),
        "lines": lines,
    }  # fmt: skip


def _turn(handle: gradwire.Handle, step: Callable[[], None]) -> tuple[float, float]:
    """Returns the mean seconds of the turn's steps with lines, and of the others."""
    written: list[float] = []
    others: list[float] = []
    dist.barrier()
    for i in range(STEPS):
        has_lines, began = handle.step % EVERY == 0, perf_counter()
        step()
        if i >= FIRST:
            (written if has_lines else others).append(perf_counter() - began)
    return fmean(written), fmean(others)


def _fix(recording: Recording) -> None:
    """Makes it write every fourth step, row and spans, however long it is."""
    paces: Sequence[Pace] = recording._pace, recording._spans
    for pace in paces:
        pace.every, pace._most, pace._share = EVERY, sys.maxsize, 1.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    set_allocator()
    raise SystemExit(main())
