"""What runs on a GPU, as anyone who has one can find out.

1. bits   every operation of the CUDA room against its twin on the CPU, and whole strategies, with
          a step that is spoiled, against the same there (lockstep.py)
2. speed  fused operations against a copy of as many bytes on this device, and against torch

Needs torch with CUDA and Triton; neither the C++ extension nor pytest: PYTHONPATH=src is enough.
Ten minutes at most, most of it to compile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import lockstep
import torch
from lockstep import STRATEGIES
from torch import Tensor
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from gradwire.bench.rooms import Case, cases, difference, room_of_cuda
from gradwire.kernels import formats
from gradwire.kernels.segments import (
    AdamCodes,
    EncodeCodes,
    SumCoded,
    SumCodes,
    UpdateCodes,
    UpdateTopk,
)
from gradwire.kernels.status import new_status
from gradwire.kernels.values import SILENCE, AdamStep, Noise

TRIED = 5000, 70_001
"""Elements of the tensors that compare bits."""
SIZES = 25_500_000, 100_000_000
"""Elements of the tensors that measure speed."""
DENSITY, RANKS, RUNS = 0.001, 8, 20
SETTLED = 30
"""Steps until a selection's threshold follows the residual."""
HOW = AdamStep.of(3, 0.9, 0.99, 1e-8)
DEVICE = torch.device("cuda", 0)


def bits() -> dict[str, Any]:
    """Returns how many operations and strategies were tried, and what differs. Processes compile
    in parallel, and a failure in one does not affect others."""
    began = perf_counter()
    groups = sorted({group_of(case) for case in cases(600)})
    with ProcessPoolExecutor(min(12, os.cpu_count() or 1), get_context("spawn")) as pool:
        found = list(pool.map(bits_of, groups))
        whole = list(pool.map(lockstep.difference, STRATEGIES, [DEVICE] * len(STRATEGIES)))
    return {
        "operations": sum(tried for tried, _ in found),
        "operations that differ": [said for _, told in found for said in told],
        "strategies": len(whole), "strategies that differ": [said for said in whole if said],
        "seconds": round(perf_counter() - began, 1),
    }  # fmt: skip


def group_of(case: Case) -> tuple[str, str]:
    """The group of a case, one operation and dtype; a group shares most of its kernels."""
    return case.operation, case.name.split()[-1]


def bits_of(group: tuple[str, str]) -> tuple[int, list[str]]:
    """Compares one group, on tensors of two sizes."""
    room, told, tried = room_of_cuda(), [], 0
    for case in (case for n in TRIED for case in cases(n) if group_of(case) == group):
        tried += 1
        try:
            said = difference(case, room, DEVICE)
        except Exception as error:  # also report a kernel that does not compile or run
            said = f"{case.name}: {type(error).__name__}: {str(error)[:300]}"
        told += [said] if said else []
    return tried, told


def device_seconds_of(work: Callable[[], object]) -> float:
    """The seconds that the work's kernels and copies take on the device, without the gaps between
    them."""
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(RUNS):
            work()
        torch.cuda.synchronize()
    spent = sum(e.device_time for e in seen.events() if e.device_type == DeviceType.CUDA)
    return float(spent) / RUNS / 1e6


def seconds_of(work: Callable[[], object], warm: int = 3) -> float:
    """Median seconds from the begin of the first kernel to the end of the last; includes gaps if
    the host is slower than the device."""
    for _ in range(warm):
        work()
    times = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return median(times)


def copied_bytes_per_second() -> float:
    """The bytes per second of a copy of 1 GiB, read and written."""
    x = torch.zeros(2**28, device=DEVICE)
    y = torch.empty_like(x)
    return 2 * x.nbytes / seconds_of(lambda: y.copy_(x))


def numbers(n: int) -> Tensor:
    return torch.randn(n, device=DEVICE)


def coded(form: formats.Format, n: int) -> tuple[Tensor, Tensor]:
    room = room_of_cuda()
    codes = torch.zeros(form.code_bytes(n), dtype=torch.uint8, device=DEVICE)
    scales = torch.zeros(form.scales(n), device=DEVICE)
    room.encode_codes(form, numbers(n), codes, scales, new_status(DEVICE), Noise.of("x"), None)
    return codes, scales


def jobs(n: int) -> dict[str, tuple[Callable[[], object], float]]:
    """Returns the work of each job, and the bytes per element that it needs at least."""
    room, status, k = room_of_cuda(), new_status(DEVICE), int(DENSITY * n)
    g, u, v = numbers(n), numbers(n) * 0.1, numbers(n) * 0.1
    draws = cycle([g, *(numbers(n) for _ in range(3))])
    places = torch.zeros(k, dtype=torch.int32, device=DEVICE)
    values, velocities = torch.zeros((2, k), device=DEVICE)
    hints: dict[str, Any] = {"dgc": 0.0, "ef": 0.0}

    def update(name: str) -> None:
        own = (u, velocities, 0.9) if name == "dgc" else (None, None, None)
        one = UpdateTopk(
            next(draws), own[0], v, k, places, values, own[1], own[2], hint=hints[name]
        )
        (hints[name],) = room.update_topk([one], status)

    def codes_of(form: formats.Format) -> Callable[[], None]:
        written = coded(form, n)
        one = UpdateCodes(form, g, None, v, *written, Noise.of("x"), None)
        return lambda: room.update_codes([one], status)

    def adam_of(form: formats.Format) -> Callable[[], None]:
        moments = numbers(n) * 0.1, numbers(n).square()
        one = AdamCodes(form, g, moments, v, HOW, *coded(form, n), Noise.of("x"))
        return lambda: room.adam_codes([one], status)

    out = torch.empty(n, device=DEVICE)
    dense = [coded(formats.INT8, n) for _ in range(RANKS)]
    lists = [torch.randperm(n, device=DEVICE)[:k].sort().values.int() for _ in range(RANKS)]
    sparse = SumCoded(out, ["int32"] * RANKS, lists, [numbers(k) for _ in range(RANKS)], 8.0)
    signs = EncodeCodes(formats.SIGNS1, g, *coded(formats.SIGNS1, n), SILENCE)
    coded_sum = SumCodes(formats.INT8, out, dense, 8.0)
    return {
        "dgc, top-k": (lambda: update("dgc"), 20.25),
        "ef, top-k": (lambda: update("ef"), 12.25),
        "ef, int8": (codes_of(formats.INT8), 13.0),
        "ef, qsgd(4)": (codes_of(formats.LEVELS4), 12.5),
        "adam, lloyd(1)": (adam_of(formats.LLOYD1), 28.1),
        "sum of 8 int8": (lambda: room.accumulate_codes([coded_sum]), 12.0),
        "sum of 8 sparse": (lambda: room.accumulate_coded([sparse]), 4.1),
        "signs": (lambda: room.encode_many_codes([signs], status), 4.1),
    }  # fmt: skip


def rival(n: int) -> float:
    """The seconds of dgc with an exact top-k by torch's operations."""
    g, u, v, k = numbers(n), numbers(n) * 0.1, numbers(n) * 0.1, int(DENSITY * n)

    def work() -> None:
        u.mul_(0.9).add_(g)
        v.add_(u)
        places = torch.topk(v.abs(), k, sorted=False).indices
        v.index_select(0, places)
        v.index_fill_(0, places, 0.0)
        u.index_fill_(0, places, 0.0)

    return seconds_of(work)


def small(parameters: int = 300, n: int = 2000) -> float:
    """The seconds of dgc with top-k of many small parameters, in one call."""
    room, status, k = room_of_cuda(), new_status(DEVICE), 20
    made = []
    for _ in range(parameters):
        places = torch.zeros(k, dtype=torch.int32, device=DEVICE)
        values, velocities = torch.zeros((2, k), device=DEVICE)
        g, u, v = numbers(n), numbers(n), numbers(n)
        made.append(UpdateTopk(g, u, v, k, places, values, velocities, 0.9, hint=1.5))
    return seconds_of(lambda: room.update_topk(made, status))


def speed() -> dict[str, Any]:
    """Measures each job's seconds, and their ratio to a copy of its bytes."""
    copied = copied_bytes_per_second()
    rows = []
    for n in SIZES:
        for name, (work, each) in jobs(n).items():
            whole, seconds = seconds_of(work, SETTLED), device_seconds_of(work)
            rows.append({
                "job": name, "elements": n, "seconds": whole, "device seconds": seconds,
                "over copy": seconds / (each * n / copied),
            })  # fmt: skip
            print(f"{name:>18} {n:>11,} {whole * 1e6:>7.0f} µs, on the device "
                  f"{seconds * 1e6:>7.0f}, {rows[-1]['over copy']:.2f} x a copy",
                  flush=True)  # fmt: skip
        torch.cuda.empty_cache()
    return {
        "copied bytes_per_second": copied, "jobs": rows,
        "torch's dgc seconds": {n: rival(n) for n in SIZES},
        "300 small parameters seconds": small(),
    }  # fmt: skip


def main() -> int:
    """Prints a table and writes all to a file; returns 1 if some bits differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="a JSON file")
    given = parser.parse_args()
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": __import__("triton").__version__,
    }  # fmt: skip
    for name, part in (("bits", bits), ("speed", speed)):
        found[name] = part()
        if name == "bits":
            print(json.dumps(found, indent=1), flush=True)
        if given.output:
            given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(found["bits"][name] for name in found["bits"] if name.endswith("differ")))


if __name__ == "__main__":
    sys.exit(main())
