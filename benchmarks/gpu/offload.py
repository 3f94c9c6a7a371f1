"""Where a bucket is worked on: does the planner name the faster of `outer` and `offload(outer)`?
A minute; it needs no GPU.

    python benchmarks/gpu/offload.py -o benchmarks/gpu/results/offload.json
    python benchmarks/gpu/offload.py --measure     this machine's processor, into results/host.json

In each of 20 cells the planner has what a profile of that machine would hold: both strategies' own
curves, fitted through buckets that ran alone. It makes a plan of each, and names the one whose
step is shorter. Both plans are then replayed from recorded times (replayed.py), with all at once:
kernels beside backward on one device, copies of all lanes on one bus, lanes and backward's thread
on few cores and one interpreter. None of that is in the planner's curves, so it can be wrong.

What this shows is that fits, groups and the planner's timeline do not turn the winner around.
It does not show that a GPU and its host take what is replayed: kernels' times were recorded on an
H200, without a copy beside them; processors' times on another machine; how fast a bus copies, and
how long a copy and a move take to begin, is assumed (replayed.py names it); backward's length is
assumed but for the GPT's, which is two thirds of a recorded step. Only a device can say that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any, NamedTuple

import torch
from recorded import RESULTS, Times, measure
from replayed import Machine, replay

from gradwire.buckets import Bucket, Parameter
from gradwire.plan import Plan
from gradwire.planner.candidates import FP32, Maker
from gradwire.planner.fit import fit
from gradwire.planner.profile import Profile, Ready, StrategyCost
from gradwire.strategy import Strategy
from gradwire.tuning.probe import LARGEST, SIZES

STEPS, BLOCKS, RUNS = 20, 10, 10
PAIRS = {
    "top-k": ("topk(0.001)+ef | allgather", "topk(0.001)+ef | offload"),
    "int8": ("int8+ef | alltoall", 'int8+ef | offload(outer="alltoall")'),
}
"""Each kind's strategy on the device, and in the host's memory. With either, vectors travel dense,
from the device."""
NEAR = 0.01
"""A plan that is behind by at most this part of a step counts as no worse."""


class Model(NamedTuple):
    """A model. shapes: of parameters, as they are registered. backward: seconds on the device."""

    shapes: tuple[tuple[int, ...], ...]
    backward: float


def _layers(*sizes: int) -> Iterator[tuple[int, ...]]:
    for given, made in pairwise(sizes):
        yield from ((made, given), (made,))


def _blocks(width: int, count: int) -> Iterator[tuple[int, ...]]:
    for _ in range(count):
        yield from ((width,),) * 4
        for made, given in ((3, 1), (1, 1), (4, 1), (1, 4)):
            yield from ((made * width, given * width), (made * width,))


def _convolutions() -> Iterator[tuple[int, ...]]:
    last = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 5)):
        for _ in range(count):
            yield from ((width, last, 3, 3), (width,), (width,))
            last = width
    yield from _layers(8192, 1536, 100)


MODELS = {
    "perceptron": Model(tuple(_layers(128, 256, 256, 10)), 0.6e-3),
    "six large": Model(((1024, 1024),) * 6, 1.5e-3),
    "transformer": Model(((1000, 128), *_blocks(128, 4), (128,), (128,)), 4e-3),
    "convnet": Model(tuple(_convolutions()), 15e-3),
    "gpt": Model(((50_304, 768), (512, 768), *_blocks(768, 12), (768,), (768,)), 23e-3),
}
"""The two models of job.py, and three small ones."""


@dataclass(frozen=True)
class Cell:
    """A cell. gbit: of the link. bus: its generation. cores: of a rank."""

    model: str
    kind: str
    gbit: float
    bus: int
    cores: int
    lanes: int


CELLS = [
    Cell(model, *how)
    for model in MODELS
    for how in (
        ("top-k", 1, 4, 2, 1), ("top-k", 10, 5, 8, 2), ("int8", 10, 4, 2, 1), ("int8", 25, 5, 8, 2)
    )
]  # fmt: skip


def ready_of(model: Model) -> tuple[Ready, ...]:
    """Returns when gradients are ready: the last parameter comes first, each when its share of the
    elements is done."""
    sizes = [Parameter(f"p{i}", shape) for i, shape in enumerate(model.shapes)][::-1]
    whole, done, found = sum(p.elements for p in sizes), 0, []
    for parameter in sizes:
        done += parameter.elements
        found.append(Ready(parameter, model.backward * done / whole))
    return tuple(found)


def cost_of(machine: Machine, text: str, largest: int, dice: Random) -> StrategyCost:
    """Returns what a profile would measure: as `tuning.probe` does, of buckets that run alone."""
    sizes = [n for n in SIZES if n < largest] + [min(largest, LARGEST)]
    strategy = Strategy.parse(text)

    def runs(shapes: Sequence[tuple[int, ...]]) -> list[Mapping[str, float]]:
        bucket = Bucket(tuple(Parameter(f"p{i}", shape) for i, shape in enumerate(shapes)))
        blocks: list[Mapping[str, float]] = []
        for _ in range(BLOCKS):
            own = [machine.alone(bucket, strategy, dice) for _ in range(RUNS)]
            blocks.append({part: mean(one[part] for one in own) for part in own[0]})
        return blocks

    found = {n: runs([(n,)]) for n in sorted(set(sizes))}
    one, many = runs([(32 * 2048,)]), runs([(2048,)] * 32)
    local = [mean(own["encode"] + own["decode"] for own in of) for of in (one, many)]
    fits = {
        part: fit([(n, [max(one[part], 1e-9) for one in own]) for n, own in found.items()])
        for part in ("encode", "wire", "decode")
    }
    return StrategyCost(
        fits["encode"], fits["wire"], fits["decode"], fit([(1.0, [1.0])]),
        latency_seconds=fits["wire"].curve(0.0),
        per_parameter_seconds=max(0.0, (local[1] - local[0]) / 31),
    )  # fmt: skip


def profile_of(machine: Machine, model: Model, texts: Sequence[str], dice: Random) -> Profile:
    """Returns the profile of the model on that machine."""
    ready = ready_of(model)
    largest = sum(own.parameter.elements for own in ready)
    return Profile(
        ready,
        model.backward,
        0.0,
        tuple(f"host{i}" for i in range(machine.world)),
        "cuda",
        strategies={text: cost_of(machine, text, largest, dice) for text in texts},
    )


def replayed(machine: Machine, model: Model, plan: Plan, dice: Random, steps: int) -> float:
    """Returns the mean step of the plan, replayed."""
    ready = {own.parameter.name: own.seconds for own in ready_of(model)}
    seconds = []
    for _ in range(steps):
        buckets = [
            (
                max(ready[name] for name in bucket.names),
                [stage for _, stage in machine.stages(bucket, strategy, dice)],
            )
            for bucket, strategy in zip(plan.buckets, plan.strategies)
        ]
        seconds.append(replay(machine, buckets, model.backward))
    return round(mean(seconds), 9)


def look_at(cell: Cell, times: Times, steps: int = STEPS) -> dict[str, Any]:
    """Returns both plans of a cell: seconds of their steps, as planned and as replayed."""
    dice, model = Random(f"{cell}"), MODELS[cell.model]
    machine = Machine(times, cell.gbit * 1e9, cell.bus, cell.cores, cell.lanes)
    profile = profile_of(machine, model, (FP32, *PAIRS[cell.kind]), dice)
    maker, planned, seen, counts = Maker(profile, (cell.lanes,)), [], [], []
    for text in PAIRS[cell.kind]:
        best = min(maker.plans([text]), key=lambda own: own.seconds)
        planned.append(round(best.seconds, 9))
        counts.append(len(best.plan.buckets))
        seen.append(replayed(machine, model, best.plan, dice, steps))
    named = planned.index(min(planned))
    return {
        **asdict(cell), "planned": planned, "replayed": seen, "buckets": counts,
        "named": ("device", "host")[named], "faster": ("device", "host")[seen.index(min(seen))],
        "behind": round(seen[named] / min(seen) - 1, 4),
    }  # fmt: skip


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table with a row for each cell: milliseconds of a step on the device and in the
    host's memory."""
    lines = [
        "| model | | Gbit/s | bus | cores, lanes | planned: device, host | replayed | named |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in found:
        planned, seen = (
            ", ".join(f"{1e3 * x:.2f}" for x in row[key]) for key in ("planned", "replayed")
        )
        right = "" if row["named"] == row["faster"] else f", **{row['behind']:.1%} behind**"
        lines.append(
            f"| {row['model']} | {row['kind']} | {row['gbit']:g} | {row['bus']} | {row['cores']}, "
            f"{row['lanes']} | {planned} | {seen} | {row['named']}{right} |"
        )
    right = sum(row["named"] == row["faster"] for row in found)
    near = sum(row["behind"] <= NEAR for row in found)
    lines.append(f"\n{right} of {len(found)} as named; {near} no more than 1 % behind")
    return "\n".join(lines)


def main() -> None:
    """Prints the table and writes its data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="this machine's processor first")
    parser.add_argument("-o", "--output", type=Path, help="a JSON file")
    given = parser.parse_args()
    if given.measure:
        (RESULTS / "host.json").write_text(json.dumps(measure(), indent=1) + "\n")
    times = Times.load()
    found = [look_at(cell, times) for cell in CELLS]
    print(table(found))
    if given.output:
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
