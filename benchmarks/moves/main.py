"""Gloo's collectives beside each other on an emulated network.

python benchmarks/moves/main.py --hosts 4 --rate 1gbit
python benchmarks/moves/main.py --hosts 8 --exchange     # to everybody, at once or paced
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from gradwire.lab import Cluster
from gradwire.moves import Exchange
from gradwire.runtime import torch_dist
from gradwire.runtime.torch_dist import Performer, all_gather

SIZES_BYTES = (4096, 32_768, 81_920, 170_000, 400_000, 1_000_000, 4_000_000)
EACH_BYTES = (1024, 8192, 32_768, 65_536, 131_072, 600_000, 2_000_000)
PACES = {"at once": 1 << 60, "paced": 0, "one message to all": 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--delay", default="0s", help="between any two hosts, one way")
    parser.add_argument("--exchange", action="store_true")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        repeats = 20 if arguments.delay == "0s" else 3
        exchanges() if arguments.exchange else collectives(repeats)
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # torch 2.13 sometimes aborts while it shuts down Gloo's threads
    with Cluster(arguments.hosts, arguments.rate, delay=arguments.delay) as cluster:
        return cluster.run([sys.executable, *sys.argv])


def collectives(repeats: int) -> None:
    """Prints the times of sums and gathers, each made in several ways: medians. repeats: of small
    ones, for one time."""
    assert dist.group.WORLD is not None
    performer = Performer(dist.group.WORLD)
    world, between_all, around = performer.world, performer._between_all, performer._around
    for size in SIZES_BYTES:
        x, out = torch.ones(size // 4), torch.empty(world, size // 4)
        moves = {
            "all_reduce": lambda x=x: dist.all_reduce(x),
            "by owners": lambda x=x: performer._by_owners(x),
            "all_gather": lambda x=x, out=out: all_gather(out.view(-1), x),
            "pairs": lambda x=x, out=out: between_all([x] * world, list(out), x.nbytes),
            "around": lambda x=x, out=out: around(
                x.view(torch.uint8), {r: row.view(torch.uint8) for r, row in enumerate(out)}
            ),
        }
        times: dict[str, list[float]] = {name: [] for name in moves}
        for number in range(7):
            for name in random.Random(number).sample(list(moves), len(moves)):
                times[name].append(
                    seconds(moves[name], repeats if size < 10**6 else min(repeats, 3))
                )
        if performer.rank == 0:
            row = "  ".join(f"{n} {1e3 * statistics.median(t):8.2f}" for n, t in times.items())
            print(f"{size:>9} bytes, ms: {row}")


def exchanges() -> None:
    """Prints the slowest rank's time of one exchange: medians."""
    assert dist.group.WORLD is not None
    performer = Performer(dist.group.WORLD)
    others = [r for r in range(performer.world) if r != performer.rank]
    for size in EACH_BYTES:
        message, sizes = torch.ones(size, dtype=torch.uint8), dict.fromkeys(others, size)
        each = Exchange(dict.fromkeys(others, message), sizes)
        one = Exchange.to_all(message, sizes)
        times: dict[str, list[float]] = {name: [] for name in PACES}
        for number in range(15):
            for name in random.Random(number).sample(list(PACES), len(PACES)):
                torch_dist.PACED_BYTES = PACES[name]
                move = one if name == "one message to all" else each
                took = torch.tensor([seconds(partial(performer.perform, move, ""), 1)])
                dist.all_reduce(took, dist.ReduceOp.MAX)
                times[name].append(float(took))
        if performer.rank == 0:
            row = "  ".join(f"{n} {1e3 * statistics.median(t):8.2f}" for n, t in times.items())
            print(f"{size:>9} bytes to each, ms: {row}")


def seconds(move: Callable[[], object], repeats: int) -> float:
    dist.barrier()
    began = time.perf_counter()
    for _ in range(repeats):
        move()
    return (time.perf_counter() - began) / repeats


if __name__ == "__main__":
    sys.exit(main())
