"""The cost of recording: steps with and without it, in turn, on the same job.

    turn      0        1        2        3   …        a turn: so many steps of all ranks
    recorded  no yes   yes no   no yes   yes no

    python benchmarks/recording/main.py [--hosts 4] [--rate 1gbit] [--pairs 40] [--json FILE]

The job is the demo's language model in the lab. Each recording writes to a folder of its own, so
that each begins with a line for every step, as recordings do. In turns without one it is opened
and closed before the first step, so that nothing but the lines differs.

Turns differ by more than a recording costs. So its own time is measured, too: the seconds of all
ranks inside `Recording.step_over`, of a turn's seconds. As no rank waits longer for the others
than they were inside it, this bounds what the lines can add to a step.
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
            f"processor's time; of a turn, all ranks' time inside is {inside}; {len(pairs)} pairs"
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
    """Returns, for each pair, the ratio of seconds, that of all ranks' CPU time, and all ranks'
    seconds inside the recording over the seconds of its turn."""
    torch.manual_seed(0)
    model = LanguageModel(vocabulary=2000, hidden=160)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    handle = gradwire.attach(model, STRATEGY, bucket_bytes=bucket_bytes)
    words = torch.randint(2000, (17, 4))

    def turn(name: str, is_recorded: bool) -> torch.Tensor:
        recording = gradwire.record(handle, folder / name)
        if not is_recorded:
            recording.close()
        _INSIDE.clear()
        dist.barrier()
        began, worked = perf_counter(), process_time()
        for _ in range(steps):
            optimizer.zero_grad()
            model(words[:-1], words[1:])[0].backward()
            optimizer.step()
        own = process_time() - worked
        dist.barrier()
        took = torch.tensor([perf_counter() - began, own, sum(_INSIDE)], dtype=torch.float64)
        recording.close()
        dist.all_reduce(took)
        return took

    turn(f"{bucket_bytes}-first", False)
    found = []
    for pair in range(pairs):
        order = (False, True) if pair % 2 else (True, False)
        took = {is_on: turn(f"{bucket_bytes}-{pair}-{is_on}", is_on) for is_on in order}
        seconds, processor, inside = took[True].tolist()
        other_seconds, other_processor, _ = took[False].tolist()
        # Both are sums over ranks, and each rank took the turn's seconds.
        bound = inside / (seconds / dist.get_world_size())
        found.append([seconds / other_seconds, processor / other_processor, bound])
    handle.detach()
    return found


_INSIDE: list[float] = []
"""The seconds of each call of `Recording.step_over` in this turn."""


def _timed(step_over: Callable[..., None]) -> Callable[..., None]:
    def timed(*args: object) -> None:
        began = perf_counter()
        step_over(*args)
        _INSIDE.append(perf_counter() - began)

    return timed


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
