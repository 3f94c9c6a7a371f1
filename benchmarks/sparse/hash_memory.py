"""Zen's hash memory beside split_stream: nanoseconds per non-zero, in turns, one thread.

python benchmarks/sparse/hash_memory.py --date 2026-11-21 --machine "…"
Writes results/hash_memory.json beside this file and prints the tables of HASH.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.bench.machine import native, set_allocator
from gradwire.streams import Chunks, HashedElements, Stream

ELEMENTS, OWNERS = 1 << 24, 16
DENSITIES = (0.01, 0.05, 0.2)
SEEDS = (0x9E3779B9, 0x7F4A7C15, 0xF39CC060, 0x5CEDC834)
COLLISIONS = 60_000
RATIOS, TRIES = (1, 1.5, 2, 3, 4), (1, 2, 3, 4, 5)
RESULTS = Path(__file__).parent / "results" / "hash_memory.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"))
    parser.add_argument("--machine", default="", help="in words, without names")
    asked = parser.parse_args()
    set_allocator()
    native()
    torch.set_num_threads(1)
    result = {
        "date": asked.date, "machine": asked.machine, "torch": torch.__version__,
        "instruction_set": kernels.instruction_set(), "elements": ELEMENTS, "owners": OWNERS,
        "nanoseconds": {str(d): measured(d, asked.repeats) for d in DENSITIES},
        "serial": {str(ratio): collisions(ratio) for ratio in RATIOS},
    }  # fmt: skip
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(speed_table(result["nanoseconds"]))
    print(collision_table(result["serial"]))


def measured(density: float, repeats: int) -> dict[str, list[float]]:
    """Returns nanoseconds per non-zero by contestant and turn, without the first turn."""
    dice = torch.Generator().manual_seed(1)
    dense = torch.randn(ELEMENTS, generator=dice)
    places = (torch.rand(ELEMENTS, generator=dice) < density).nonzero().flatten().int()
    values = dense[places.long()]
    contestants = contestants_on(dense, places, values)
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats + 1):
        for name, work in contestants.items():
            began = time.perf_counter_ns()
            work()
            taken[name].append((time.perf_counter_ns() - began) / places.numel())
    return {name: turns[1:] for name, turns in taken.items()}


def contestants_on(dense: Tensor, places: Tensor, values: Tensor) -> dict[str, Callable[[], None]]:
    device = torch.device("cpu")
    chunks = Chunks(ELEMENTS, OWNERS, 0)
    elements = HashedElements(ELEMENTS, OWNERS, 0, device)
    stream, hashed, gathered = Stream(places, values, ELEMENTS), places.clone(), values.clone()

    def hash_memory() -> None:
        kernels.hash_partition(places, OWNERS, SEEDS, hashed)

    def with_values() -> None:
        hash_memory()
        torch.index_select(dense, 0, hashed, out=gathered)

    return {
        "`split_stream`: places and values, in order": lambda: void(chunks.split(stream)),
        "hash memory: places alone, in no order": hash_memory,
        "hash memory, then values gathered from the tensor": with_values,
        '`zen(variant="paper")`: that, in order, places in the owner\'s': lambda: void(
            elements.split(stream)
        ),
    }


def void(_: object) -> None:
    """Discards the result of a split."""


def collisions(ratio: float) -> list[float]:
    """Returns the share of entries in serial memory, by tries, for one table, filled in random
    order."""
    dice = torch.Generator().manual_seed(2)
    indices = torch.randperm(1 << 26, generator=dice)[:COLLISIONS].int()
    slots, shares = (int(ratio * COLLISIONS), COLLISIONS), []
    for tries in TRIES:
        seeds = torch.randint(0, 2**32, (tries + 1,), generator=dice).tolist()
        found = kernels.hash_partition(indices, 1, seeds, torch.empty_like(indices), slots)
        shares.append(found.serial / COLLISIONS)
    return shares


def speed_table(measured: dict[str, dict[str, list[float]]]) -> str:
    head = "| split among 16 owners | " + " | ".join(f"{float(d):.0%}" for d in measured) + " |"
    lines = [head, "| --- |" + " ---: |" * len(measured)]
    for name in next(iter(measured.values())):
        cells = (turns[name] for turns in measured.values())
        shown = (f"{statistics.median(t):.2f} ({min(t):.2f} – {max(t):.2f})" for t in cells)
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def collision_table(serial: dict[str, list[float]]) -> str:
    head = "| slots per entry | " + " | ".join(f"{tries} tries" for tries in TRIES) + " |"
    lines = [head, "| --- |" + " ---: |" * len(TRIES)]
    for ratio, shares in serial.items():
        lines.append(f"| {ratio} | " + " | ".join(f"{share:.4f}" for share in shares) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
