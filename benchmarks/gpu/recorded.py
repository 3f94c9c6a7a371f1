"""Recorded times: of a device (results/h200.json, by main.py; and the spread of whole steps, by
jobs.py), and of a CPU (results/host.json, which `measure` writes).

    times = Times.load()
    times.on_host("ef, top-k", 4096, dice)     as long as one of the measured calls took

A size between two recorded ones is interpolated between a randomly drawn call of each: repeated
draws differ as repeated calls did.
"""

from __future__ import annotations

import json
import platform
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import torch

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.kernels import formats
from gradwire.kernels.rooms import room_of
from gradwire.kernels.segments import SumCoded, SumCodes, UpdateCodes, UpdateTopk
from gradwire.kernels.status import new_status
from gradwire.kernels.values import Hint, Noise
from gradwire.runtime.contexts import make_context
from gradwire.runtime.lockstep import drive
from gradwire.strategy import Rounds, StepInfo
from gradwire.trace import Trace

RESULTS = Path(__file__).with_name("results")
SIZES = 256, 4096, 65_536, 1_048_576, 4_194_304
RANKS, DENSITY, CALLS, MANY = 8, 0.001, 15, 32
STRATEGIES = {
    "top-k": "topk(0.001)+ef | allgather",
    "int8": "int8+ef | alltoall",
    "none": "none | allreduce",
}
Points: TypeAlias = Mapping[int, Sequence[float]]
"""For each size, the seconds of repeated calls."""


@dataclass(frozen=True)
class Times:
    """Recorded times. device, launches: seconds of work on the device, and of its launches on the
    host. host: of the same work on a CPU. python: for buckets of 1 and of MANY parameters with
    hardly an element, the host's work around kernels before the first move and after it. further:
    seconds of launches for each further parameter. spread: of steps, each over their median."""

    device: Mapping[str, Points]
    launches: Mapping[str, float]
    host: Mapping[str, Points]
    python: Mapping[str, Mapping[str, Points]]
    further: float
    spread: Sequence[float]

    @staticmethod
    def load() -> Times:
        """Reads the files in results."""
        kernels = json.loads((RESULTS / "h200.json").read_text())["speed"]
        device: dict[str, dict[int, list[float]]] = {}
        launches: dict[str, float] = {}
        for row in kernels["jobs"]:
            device.setdefault(row["job"], {})[row["elements"]] = [row["device seconds"]]
            launches.setdefault(row["job"], row["seconds"])  # of the smaller size: host-bound
        steps = json.loads((RESULTS / "h200_jobs.json").read_text())
        seconds = next(r["seconds"][2:] for r in steps if r["how"].startswith("dgc"))
        host = json.loads((RESULTS / "host.json").read_text())
        further = (kernels["300 small parameters seconds"] - launches["dgc, top-k"]) / 299
        launches["none"], copied = further, kernels["copied bytes_per_second"]
        device["none"] = {n: [8 * n / copied] for n in (1, 10**8)}
        return Times(
            device, launches, {job: _points(own) for job, own in host["jobs"].items()},
            {
                name: {part: _points(own) for part, own in parts.items()}
                for name, parts in host["python"].items()
            },
            further, [x / median(seconds) for x in seconds],
        )  # fmt: skip

    def on_device(self, job: str, elements: float, dice: Random) -> float:
        """Draws seconds on the device."""
        return drawn(self.device[job], elements, dice) * dice.choice(self.spread)

    def launched(self, job: str, parameters: int, dice: Random) -> float:
        """Draws the host's seconds to launch work on this many parameters."""
        own = self.launches[job] + (parameters - 1) * self.further
        return own * dice.choice(self.spread)

    def on_host(self, job: str, elements: float, dice: Random) -> float:
        """Draws seconds on one CPU core."""
        return drawn(self.host[job], elements, dice)

    def around(self, strategy: str, part: str, parameters: int, dice: Random) -> float:
        """Draws the interpreter's seconds for a bucket of this many parameters."""
        return drawn(self.python[strategy][part], parameters, dice)


def drawn(points: Points, size: float, dice: Random) -> float:
    """Interpolates linearly between a drawn call of each of the nearest sizes, or extrapolates
    from the last two."""
    sizes = sorted(points)
    at = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
    a, b = sizes[at - 1 : at + 1]
    x, y = (dice.choice(points[near]) for near in (a, b))
    if size < a:  # no less than a part of the start-up cost
        return max(x + (y - x) * (size - a) / (b - a), 0.02 * x)
    return max(x + max(y - x, 0.0) * (size - a) / (b - a), 0.0)


def _points(own: Mapping[str, Sequence[float]]) -> Points:
    return {int(size): seconds for size, seconds in own.items()}


# -- the processor's ---------------------------------------------------------------------------


def measure(sizes: Sequence[int] = SIZES, calls: int = CALLS) -> dict[str, Any]:
    """Measures the host's part of `Times`. Takes a minute."""
    jobs: dict[str, dict[int, list[float]]] = {}
    for n in sizes:
        for name, work in host_jobs(n).items():
            jobs.setdefault(name, {})[n] = _calls(work, calls)
    python = {}
    for name, text in STRATEGIES.items():
        laps = {parameters: _laps(text, parameters, calls) for parameters in (1, MANY)}
        python[name] = {
            part: {parameters: own[i] for parameters, own in laps.items()}
            for i, part in enumerate(("encode", "decode"))
        }
    machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return {"machine": machine, "jobs": jobs, "python": python}


def host_jobs(n: int) -> dict[str, Callable[[], object]]:
    """Returns the jobs of main.py that the strategies here consist of, by the C++ kernels."""
    room, status, k = room_of(), new_status(), max(1, int(DENSITY * n))
    draws, v, turn = [torch.randn(n) for _ in range(3)], torch.zeros(n), [0]
    places, values = torch.zeros(k, dtype=torch.int32), torch.zeros(k)
    hint: list[Hint] = [0.0]
    codes, scales = _coded(n)

    def gradient() -> torch.Tensor:
        turn[0] += 1
        return draws[turn[0] % 3]

    def select() -> None:
        one = UpdateTopk(gradient(), None, v, k, places, values, None, None, hint=hint[0])
        (hint[0],) = room.update_topk([one], status)

    def code() -> None:
        one = UpdateCodes(formats.INT8, gradient(), None, v, codes, scales, Noise.of("x"), None)
        room.update_codes([one], status)

    out, dense = torch.empty(n), [_coded(n) for _ in range(RANKS)]
    lists = [torch.randperm(n)[:k].sort().values.int() for _ in range(RANKS)]
    sparse = SumCoded(out, ["int32"] * RANKS, lists, [torch.randn(k)] * RANKS, 8.0)
    whole = SumCodes(formats.INT8, out, dense, 8.0)
    return {
        "ef, top-k": select, "ef, int8": code,
        "sum of 8 int8": lambda: room.accumulate_codes([whole]),
        "sum of 8 sparse": lambda: room.accumulate_coded([sparse]),
    }  # fmt: skip


def _coded(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.zeros(formats.INT8.code_bytes(n), dtype=torch.uint8)
    return codes, torch.ones(formats.INT8.scales(n))


def _calls(work: Callable[[], object], calls: int) -> list[float]:
    """Returns the seconds of each call, after some that settle."""
    found = []
    for call in range(calls + 5):
        began = perf_counter()
        work()
        if call >= 5:
            found.append(perf_counter() - began)
    return found


def _laps(text: str, parameters: int, calls: int) -> tuple[list[float], list[float]]:
    """Returns one rank's seconds to encode and decode, for a bucket of this many small
    parameters."""
    bucket = Bucket(tuple(Parameter(f"p{i}", (16, 8)) for i in range(parameters)))
    contexts = [
        make_context(Strategy.parse(text), bucket, rank, 2, {}, device=torch.device("cpu"))
        for rank in range(2)
    ]
    encode, decode = [], []
    for step in range(calls + 5):
        for context in contexts:
            given = [torch.randn(128) for _ in range(parameters)]
            context.begin(given, given, StepInfo(step))
        laps: list[float] = []
        drive([_timed(contexts[0].rounds(), laps), contexts[1].rounds()], Trace(2))
        for context in contexts:
            context.end(False)
        if step >= 5:
            encode.append(laps[0])
            decode.append(sum(laps[1:]))
    return encode, decode


def _timed(rounds: Rounds[None], laps: list[float]) -> Rounds[None]:
    """Yields the same moves, and records the seconds of local work between them."""
    arrived: Any = None
    while True:
        began = perf_counter()
        try:
            move = rounds.send(arrived)
        except StopIteration:
            return
        finally:
            laps.append(perf_counter() - began)
        arrived = yield move
