"""A step, replayed from recorded times on a machine whose parts are shared.

device   ├──── backward ─────────────┤            kernels of a bucket share it with backward
bus           ├down┤              ├up┤            each way has its own; all lanes share them
cores         ├ a lane's work ┤                   backward's thread has one, each lane another
python        ├ part of it ┤                      one at a time
link               ├──── moves ────┤              all lanes share it

A bucket's parts come from what its strategy's own rounds are priced at (moves, and work by kind,
elements and place); their seconds are drawn from recorded calls. No curve is fitted here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from random import Random
from typing import NamedTuple, TypeAlias

from recorded import Times

from gradwire.buckets import Bucket
from gradwire.planner.priced import PricedMove, Step, Work
from gradwire.planner.pricing import price
from gradwire.strategy import Strategy


class Part(Enum):
    """Of a machine: what activities share."""

    DEVICE = auto()
    DOWN = auto()
    UP = auto()
    CORES = auto()
    PYTHON = auto()
    LINK = auto()


class Activity(NamedTuple):
    """on: all that it needs at once; its speed is that of the scarcest."""

    on: tuple[Part, ...]
    seconds: float


Stage: TypeAlias = tuple[Activity, ...]
"""Activities that begin together; the stage is over with the last of them."""
Kind: TypeAlias = tuple[str, Stage]
"""What a stage is for, "encode", "wire" or "decode", and the stage."""

ISSUE, COPY, START = 8e-6, 10e-6, 200e-6
"""Seconds. Not recorded, but taken to be: of the host, to ask for one copy (a compiled kernel's
launch takes as long); until a copy begins and is waited for; of a move, until it moves."""
RATES = {4: 25e9, 5: 50e9}
"""Bytes a second of a bus of 16 lanes, each way, by its generation: taken to be."""


@dataclass(frozen=True)
class Machine:
    """bits: a second, of the link. bus: its generation. cores: of this rank. lanes: of the
    conductor. world: ranks."""

    times: Times
    bits: float
    bus: int
    cores: int
    lanes: int
    world: int = 8

    def stages(self, bucket: Bucket, strategy: Strategy, dice: Random) -> Iterator[Kind]:
        """A bucket's, in order."""
        steps = price(strategy, bucket.parameters, self.world).steps
        places = [Place(self, bucket, strategy, own) for own in _runs(steps)]
        last = len(places) - 1
        for i, place in enumerate(places):
            kind = "encode" if i == 0 else "decode"
            for stage in place.stages(kind, i in (0, last), dice):
                yield kind, stage
            if place.move is not None:
                for stage in place.moves(dice):
                    yield "wire", stage

    def alone(self, bucket: Bucket, strategy: Strategy, dice: Random) -> dict[str, float]:
        """Seconds of each kind with nothing beside it: what a profile measures."""
        found = dict.fromkeys(("encode", "wire", "decode"), 0.0)
        for kind, stage in self.stages(bucket, strategy, dice):
            found[kind] += max((own.seconds for own in stage), default=0.0)
        return found

    @cached_property
    def room(self) -> dict[Part, float]:
        return dict.fromkeys(Part, 1.0) | {Part.CORES: float(self.cores)}


def _runs(steps: Sequence[Step]) -> Iterator[tuple[list[Work], PricedMove | None]]:
    """Work up to each move, and the rest."""
    work: list[Work] = []
    for step in steps:
        if isinstance(step, PricedMove):
            yield work, step
            work = []
        else:
            work.append(step)
    yield work, None


NAMES = {"topk": "top-k", "int8": "int8", "none": "none"}
"""Compressors, as recorded times name them."""


class Place:
    """What one rank does on a bucket up to a move, and the move."""

    def __init__(
        self, machine: Machine, bucket: Bucket, strategy: Strategy,
        run: tuple[list[Work], PricedMove | None],
    ) -> None:  # fmt: skip
        self.machine, self.bucket, (self.work, self.move) = machine, bucket, run
        self.on_host = strategy.collective.on_host
        self.name = NAMES[strategy.compressor.name]
        self.item = 4 if bucket.dtype == "float32" else 2

    def stages(self, part: str, is_outer: bool, dice: Random) -> Iterator[Stage]:
        """Copies down; work; copies up. is_outer: it has the bucket's own Python, too."""
        copies = [work.elements * self.item for work in self.work if work.kind == "copy"]
        if copies and part == "encode":
            yield from self._copied(copies, Part.DOWN)
        if is_outer:
            count = len(self.bucket.parameters)
            seconds = self.machine.times.around(self.name, part, count, dice)
            yield (Activity((Part.CORES, Part.PYTHON), seconds),)
        for kind in ("encode", "accumulate", "decode"):
            work = [own for own in self.work if own.kind == kind]
            if work:
                yield self._worked(work, dice)
        if copies and part == "decode":
            yield from self._copied(copies, Part.UP)

    def _worked(self, work: Sequence[Work], dice: Random) -> Stage:
        times = self.machine.times
        jobs = [(self._job(own), own.elements * self._share(own)) for own in work]
        if self.on_host:
            seconds = sum(times.on_host(job, elements, dice) for job, elements in jobs)
            return (Activity((Part.CORES,), seconds),)
        (job, _), elements = jobs[0], sum(elements for _, elements in jobs)
        launches = times.launched(job, len(work), dice)
        return (
            Activity((Part.CORES, Part.PYTHON), launches),
            Activity((Part.DEVICE,), times.on_device(job, elements, dice)),
        )

    def _job(self, work: Work) -> str:
        if self.name == "none":  # is copied into a message, and out of it
            return "none"
        if work.kind == "encode":
            return f"ef, {self.name}"
        return "sum of 8 int8" if self.name == "int8" else "sum of 8 sparse"

    def _share(self, work: Work) -> float:
        """Of the recorded job's bytes for each element: sums were of eight payloads."""
        if work.kind == "encode" or self.name != "int8":
            return 1.0
        return (4 + work.contributions) / 12

    def _copied(self, sizes: Sequence[float], way: Part) -> Iterator[Stage]:
        """One copy for each of these bytes, and one wait."""
        yield (
            Activity((Part.CORES, Part.PYTHON), len(sizes) * ISSUE + COPY),
            Activity((way,), sum(sizes) / RATES[self.machine.bus]),
        )

    def moves(self, dice: Random) -> Iterator[Stage]:
        """The move; a device's message goes down before, and what arrives goes up."""
        move = self.move
        assert move is not None
        if not self.on_host:
            yield from self._copied([move.bytes], Part.DOWN)
        start = START * dice.lognormvariate(0.0, 0.3)
        yield (Activity((), start),)
        yield (Activity((Part.LINK,), 8 * move.busiest / self.machine.bits),)
        if not self.on_host:
            yield from self._copied([move.received], Part.UP)


class Lane:
    """Buckets in turn: each when it is ready, and then its stages."""

    def __init__(self, queue: Sequence[tuple[float, Sequence[Stage]]]) -> None:
        self.queue, self.at = list(queue), 0
        self.left: list[Activity] = []

    @property
    def is_done(self) -> bool:
        return not self.queue and not self.left

    def go_on(self, progress: float) -> None:
        """Begin what can begin, when so much of backward is done."""
        while not self.left and self.queue and self.queue[0][0] <= progress + 1e-12:
            stages = self.queue[0][1]
            if self.at == len(stages):
                self.queue.pop(0)
                self.at = 0
            else:
                self.left = [own for own in stages[self.at] if own.seconds > 0]
                self.at += 1


def replay(
    machine: Machine, buckets: Sequence[tuple[float, Sequence[Stage]]], backward: float
) -> float:
    """Seconds from the begin of backward to the end of all. buckets: when each is ready, in
    seconds of backward, and its stages, in order of issue."""
    lanes = [Lane(buckets[i :: machine.lanes]) for i in range(machine.lanes)]
    progress, now = 0.0, 0.0
    while True:
        for lane in lanes:
            lane.go_on(progress)
        own = [Activity((Part.DEVICE, Part.CORES), backward - progress)]
        own = own if progress < backward - 1e-12 else []
        running = own + [a for lane in lanes for a in lane.left]
        if not running:
            return now
        used = {part: sum(part in a.on for a in running) for part in Part}
        speed = {part: min(1.0, machine.room[part] / max(1, used[part])) for part in Part}

        def of(a: Activity, speed: dict[Part, float] = speed) -> float:
            return min((speed[part] for part in a.on), default=1.0)

        step = min(a.seconds / of(a) for a in running)
        if own:  # a bucket may be ready before
            due = [q[0][0] for q in (lane.queue for lane in lanes if not lane.left) if q]
            step = min([step, *((d - progress) / of(own[0]) for d in due if d > progress)])
            progress += step * of(own[0])
        for lane in lanes:
            after = (Activity(a.on, a.seconds - step * of(a)) for a in lane.left)
            lane.left = [a for a in after if a.seconds > 1e-12]
        now += step
        assert math.isfinite(now)
