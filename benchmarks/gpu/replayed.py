"""A step, replayed from recorded times on a machine whose parts are shared.

device   ├──── backward ─────────────┤            kernels of a bucket share it with backward
bus           ├down┤              ├up┤            each way has its own; all lanes share them
cores         ├ a lane's work ┤                   backward's thread has one, each lane another
python        ├ part of it ┤                      one at a time
link               ├──── moves ────┤              all lanes share it

A bucket's parts are the moves and the work (by kind, elements and place) for which its strategy's
rounds are priced; their seconds are drawn from recorded calls. No curve is fitted here.
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
    """The parts of a machine that activities share."""

    DEVICE = auto()
    DOWN = auto()
    UP = auto()
    CORES = auto()
    PYTHON = auto()
    LINK = auto()


class Activity(NamedTuple):
    """An activity. on: all parts that it needs at once; its speed is that of the scarcest."""

    on: tuple[Part, ...]
    seconds: float


Stage: TypeAlias = tuple[Activity, ...]
"""Activities that begin together; the stage ends with the last of them."""
Kind: TypeAlias = tuple[str, Stage]
"""The purpose of a stage, "encode", "wire" or "decode", and the stage."""

ISSUE, COPY, START = 8e-6, 10e-6, 200e-6
"""Assumed seconds, not recorded: of the host, to issue one copy (a compiled kernel's launch takes
as long); until a copy begins and has been waited for; until a move starts to transfer."""
RATES = {4: 25e9, 5: 50e9}
"""Assumed bytes per second of a bus of 16 lanes, each way, by its generation."""


@dataclass(frozen=True)
class Machine:
    """A machine. bits: the link's rate per second. bus: its generation. cores: of this rank.
    lanes: of the conductor. world: ranks."""

    times: Times
    bits: float
    bus: int
    cores: int
    lanes: int
    world: int = 8

    def stages(self, bucket: Bucket, strategy: Strategy, dice: Random) -> Iterator[Kind]:
        """Yields a bucket's stages, in order."""
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
        """Returns the seconds of each kind with nothing beside it, as a profile measures them."""
        found = dict.fromkeys(("encode", "wire", "decode"), 0.0)
        for kind, stage in self.stages(bucket, strategy, dice):
            found[kind] += max((own.seconds for own in stage), default=0.0)
        return found

    @cached_property
    def room(self) -> dict[Part, float]:
        return dict.fromkeys(Part, 1.0) | {Part.CORES: float(self.cores)}


def _runs(steps: Sequence[Step]) -> Iterator[tuple[list[Work], PricedMove | None]]:
    """Yields the work up to each move with the move, then the rest."""
    work: list[Work] = []
    for step in steps:
        if isinstance(step, PricedMove):
            yield work, step
            work = []
        else:
            work.append(step)
    yield work, None


NAMES = {"topk": "top-k", "int8": "int8", "none": "none"}
"""The names of compressors in recorded times."""


class Place:
    """One rank's work on a bucket up to a move, and the move."""

    def __init__(
        self, machine: Machine, bucket: Bucket, strategy: Strategy,
        run: tuple[list[Work], PricedMove | None],
    ) -> None:  # fmt: skip
        self.machine, self.bucket, (self.work, self.move) = machine, bucket, run
        self.on_host = strategy.collective.on_host
        self.name = NAMES[strategy.compressor.name]
        self.item = 4 if bucket.dtype == "float32" else 2

    def stages(self, part: str, is_outer: bool, dice: Random) -> Iterator[Stage]:
        """Yields copies down, work, and copies up. is_outer: whether it includes the bucket's own
        Python work."""
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
        if self.name == "none":  # only copied into a message and out of it
            return "none"
        if work.kind == "encode":
            return f"ef, {self.name}"
        return "sum of 8 int8" if self.name == "int8" else "sum of 8 sparse"

    def _share(self, work: Work) -> float:
        """The share of the recorded job's bytes per element: recorded sums were of eight
        payloads."""
        if work.kind == "encode" or self.name != "int8":
            return 1.0
        return (4 + work.contributions) / 12

    def _copied(self, sizes: Sequence[float], way: Part) -> Iterator[Stage]:
        """Yields a stage of one copy for each of these sizes, and one wait."""
        yield (
            Activity((Part.CORES, Part.PYTHON), len(sizes) * ISSUE + COPY),
            Activity((way,), sum(sizes) / RATES[self.machine.bus]),
        )

    def moves(self, dice: Random) -> Iterator[Stage]:
        """Yields the move; a device's message is copied down before it, and what arrives is copied
        up."""
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
    """A lane that runs buckets in turn: each when it is ready, and then its stages."""

    def __init__(self, queue: Sequence[tuple[float, Sequence[Stage]]]) -> None:
        self.queue, self.at = list(queue), 0
        self.left: list[Activity] = []

    @property
    def is_done(self) -> bool:
        return not self.queue and not self.left

    def go_on(self, progress: float) -> None:
        """Begins what can begin, at this progress of backward."""
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
    """Returns seconds from the begin of backward to the end of all. buckets: when each is ready,
    in seconds of backward, and its stages, in order of issue."""
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
        if own:  # a bucket may become ready before
            due = [q[0][0] for q in (lane.queue for lane in lanes if not lane.left) if q]
            step = min([step, *((d - progress) / of(own[0]) for d in due if d > progress)])
            progress += step * of(own[0])
        for lane in lanes:
            after = (Activity(a.on, a.seconds - step * of(a)) for a in lane.left)
            lane.left = [a for a in after if a.seconds > 1e-12]
        now += step
        assert math.isfinite(now)
