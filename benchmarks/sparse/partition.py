"""Cutting a stream among owners, compared with one read and one copy of its entries.

    OMP_NUM_THREADS=1 python benchmarks/sparse/partition.py --elements 16777216

All contestants run in turn, so that noise affects them alike; nanoseconds per non-zero: median
(least).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gradwire.kernels import instruction_set, split_stream

DENSITIES = (0.001, 0.01, 0.05, 0.2)
OWNERS = (4, 16, 128)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{arguments.elements} elements, {instruction_set()}, ns per non-zero: median (least)")
    for dtype in (torch.float32, torch.bfloat16):
        for density in DENSITIES:
            row(arguments.elements, density, dtype, arguments.rounds)
    return 0


def row(elements: int, density: float, dtype: torch.dtype, rounds: int) -> None:
    generator = torch.Generator().manual_seed(1)
    places = (torch.rand(elements, generator=generator) < density).nonzero().flatten().int()
    values = torch.randn(places.numel(), generator=generator).to(dtype)
    work = contestants(places, values)
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, act in work.items():
            began = time.perf_counter()
            act()
            seconds[name].append(time.perf_counter() - began)
    unit = 1e9 / max(1, places.numel())
    cells = [
        f"{name} {unit * statistics.median(t[1:]):.2f} ({unit * min(t[1:]):.2f})"
        for name, t in seconds.items()
    ]
    print(f"{density:6.1%} {str(dtype)[6:]:>8}: {', '.join(cells)}", flush=True)


def contestants(places: Tensor, values: Tensor) -> dict[str, Callable[[], object]]:
    out = torch.empty_like(places), torch.empty_like(values)
    words = values.view(torch.int32 if values.dtype == torch.float32 else torch.int16)
    work: dict[str, Callable[[], object]] = {
        "read": lambda: (places.max(), words.max()),
        "copy": lambda: (out[0].copy_(places), out[1].copy_(values)),
    }
    for owners in OWNERS:
        work[f"{owners} owners"] = lambda owners=owners: split_stream(
            places, values, owners, 0, *out
        )
    return work


if __name__ == "__main__":
    raise SystemExit(main())
