"""The cost of recording: steps with and without it, in turn, on the same job.

    turn      0        1        2        3   …        a turn: so many steps of all ranks
    recorded  no yes   yes no   no yes   yes no

    python benchmarks/recording/main.py [--hosts 4] [--rate 1gbit] [--pairs 40] [--json FILE]

The job is the demo's language model in the lab. Each recording writes to a folder of its own, so
that each begins with a line for every step, as recordings do. In turns without one it is opened
and closed before the first step, so that nothing but the lines differs.

Turns differ by more than a recording costs. So its own time is measured, too: the seconds in
which any rank is inside `Recording.step_over`, of a turn's seconds. At all other times the ranks
do what they would do without a recording, so this bounds what the lines can add to a step.
`lines.py` compares the steps of one turn.

    rank 0   ──▓▓──────────▓▓▓───
    rank 1   ───▓▓▓────────▓▓────
    counted    ├──┤        ├─┤
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
import torch.distributed as dist

import gradwire
from gradwire.bench.machine import set_allocator
from gradwire.demo.model import LanguageModel
from gradwire.lab import Cluster
from gradwire.training.attach import Handle
from gradwire.training.recording import Recording

STRATEGIES = {"few buckets": 25 << 20, "a bucket for each tensor": 1}
STRATEGY = "topk(0.01)+ef | allgather"


def main() -> int:
    arguments = _arguments()
    if arguments.worker is not None:
        return worker(arguments.worker, arguments.pairs, arguments.steps)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        own = [f"--pairs={arguments.pairs}", f"--steps={arguments.steps}"]
        command = [sys.executable, __file__, f"--worker={result}", *own]
        with Cluster(arguments.hosts, arguments.rate) as cluster:
            if code := cluster.run(command):
                return code
        found = json.loads(result.read_text())
    for name, pairs in found.items():
        seconds, processor, inside = (_told(column) for column in zip(*pairs, strict=True))
        print(
            f"{name}: a recorded step takes {seconds} times as long, and {processor} times the "
            f"processor's time; of a turn, some rank is inside for {inside}; {len(pairs)} pairs"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _told(ratios: Iterable[float]) -> str:
    ordered = sorted(ratios)
    quarter = len(ordered) // 4
    return f"{median(ordered):.4f} (quartiles {ordered[quarter]:.4f} to {ordered[~quarter]:.4f})"


def worker(result: Path, pairs: int, steps: int) -> int:
    """Does one rank's work: ratios, pair by pair, for all bucket sizes."""
    torch.set_num_threads(1)
    Recording.step_over = _timed(Recording.step_over)  # type: ignore[method-assign]
    dist.init_process_group("gloo")
    found = {name: measure(size, result.parent, pairs, steps) for name, size in STRATEGIES.items()}
    if dist.get_rank() == 0:
        result.write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def measure(bucket_bytes: int, folder: Path, pairs: int, steps: int) -> list[list[float]]:
    """Returns, for each pair, the ratio of seconds, that of all ranks' CPU time, and the part of
    the recorded turn in which any rank is inside the recording."""
    handle, step = job(bucket_bytes)

    def turn(name: str, is_recorded: bool) -> tuple[float, ...]:
        recording = gradwire.record(handle, folder / name)
        if not is_recorded:
            recording.close()
        _INSIDE.clear()
        dist.barrier()
        began, worked = perf_counter(), process_time()
        for _ in range(steps):
            step()
        own = process_time() - worked
        dist.barrier()
        took = torch.tensor([perf_counter() - began, own], dtype=torch.float64)
        recording.close()
        dist.all_reduce(took)
        inside: list[list[tuple[float, float]]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(inside, _INSIDE)
        return *took.tolist(), _union(span for own in inside for span in own)

    turn(f"{bucket_bytes}-first", False)
    found = []
    for pair in range(pairs):
        order = (False, True) if pair % 2 else (True, False)
        took = {is_on: turn(f"{bucket_bytes}-{pair}-{is_on}", is_on) for is_on in order}
        seconds, processor, inside = took[True]
        other_seconds, other_processor, _ = took[False]
        bound = inside / (seconds / dist.get_world_size())  # each rank took the turn's seconds
        found.append([seconds / other_seconds, processor / other_processor, bound])
    handle.detach()
    return found


def job(bucket_bytes: int) -> tuple[Handle, Callable[[], None]]:
    """Returns the handle of the job, attached with buckets of this size, and a training step."""
    torch.manual_seed(0)
    model = LanguageModel(vocabulary=2000, hidden=160)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    handle = gradwire.attach(model, STRATEGY, bucket_bytes=bucket_bytes)
    words = torch.randint(2000, (17, 4))

    def step() -> None:
        optimizer.zero_grad()
        model(words[:-1], words[1:])[0].backward()
        optimizer.step()

    return handle, step


_INSIDE: list[tuple[float, float]] = []
"""The beginning and the end of each call of `Recording.step_over` in this turn, by the machine's
clock, which is that of all ranks."""


def _timed(step_over: Callable[..., None]) -> Callable[..., None]:
    def timed(*args: object) -> None:
        began = perf_counter()
        step_over(*args)
        _INSIDE.append((began, perf_counter()))

    return timed


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the seconds that are in at least one span."""
    seconds, until = 0.0, 0.0
    for began, ended in sorted(spans):
        seconds += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return seconds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    set_allocator()
    raise SystemExit(main())
