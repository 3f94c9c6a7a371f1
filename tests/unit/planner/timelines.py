"""Short names for stages, and random instances."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from gradwire.planner.search import Alternatives
from gradwire.planner.timeline import Executor, Job, Kind, Resource, Stage


def encode(seconds: float, lane: Resource = Resource.COMPUTE) -> Stage:
    return Stage(lane, seconds, "encode")


def decode(seconds: float, lane: Resource = Resource.COMPUTE) -> Stage:
    return Stage(lane, seconds, "decode")


def wire(seconds: float, lane: Resource = Resource.CROSS) -> Stage:
    return Stage(lane, seconds, "wire")


def wait(seconds: float) -> Stage:
    return Stage(Resource.LATENCY, seconds, "wire")


def job(ready_seconds: float, *stages: Stage) -> Job:
    return Job(ready_seconds, stages)


def stage(rng: random.Random) -> Stage:
    """A random stage; some take no time, and some the same time as others."""
    lane = rng.choice(list(Resource))
    kinds: tuple[Kind, ...] = ("encode", "wire", "decode")
    return Stage(lane, rng.choice((0.0, 0.5, 1.0, 2.0 * rng.random())), rng.choice(kinds))


def stages(rng: random.Random) -> tuple[Stage, ...]:
    return tuple(stage(rng) for _ in range(rng.randrange(6)))


def ready_times(rng: random.Random, count: int) -> list[float]:
    return sorted(
        rng.choice((float(rng.randrange(count)), count * rng.random())) for _ in range(count)
    )


def executor(rng: random.Random) -> Executor:
    return Executor(
        lanes=rng.randrange(1, 4),
        cores=rng.choice((1.0, 2.0, 3.0, math.inf)),
        wire_demand=rng.choice((0.0, 0.3, 1.0)),
        workers=rng.choice((1.0, 2.0, math.inf)),
        around_seconds=2.0 * rng.random(),
        backward_seconds=8.0 * rng.random(),
        start_slowdown=rng.choice((1.0, 1.5, 4.0)),
        start_sharing=rng.choice((0.0, 0.6)),
        start_demand=rng.choice((0.0, 0.3)),
    )


def jobs(rng: random.Random, most: int = 8) -> list[Job]:
    return [Job(ready, stages(rng)) for ready in ready_times(rng, rng.randrange(1, most + 1))]


def alternatives(rng: random.Random, most: int = 6, options: int = 4) -> list[Alternatives]:
    """Jobs with one to four options of any stages."""
    return [
        Alternatives(ready, tuple(stages(rng) for _ in range(rng.randrange(1, options + 1))))
        for ready in ready_times(rng, rng.randrange(1, most + 1))
    ]


def plausible(rng: random.Random, ready_seconds: float) -> Alternatives:
    """A bucket on two levels: plain; compressed before the move between machines or before all, on
    the compute lane or by workers; compressed twice."""
    size, ratio = rng.uniform(0.2, 4.0), rng.uniform(0.02, 0.4)
    start, effort = rng.uniform(0.0, 0.2), rng.uniform(0.05, 0.6)
    inside = rng.uniform(0.05, 0.5)

    def move(share: float, lane: Resource) -> Iterator[Stage]:
        yield wait(start)
        yield wire(share * size * (inside if lane == Resource.NODE else 1.0), lane)

    def code(share: float, lane: Resource, back: bool = False) -> Stage:
        slower = 3.0 if lane == Resource.WORKERS else 1.0
        seconds = 0.05 + share * size * effort * slower
        return decode(0.3 * seconds, lane) if back else encode(seconds, lane)

    def late(lane: Resource) -> tuple[Stage, ...]:
        return (
            *move(0.5, Resource.NODE), code(0.5, lane), *move(0.5 * ratio, Resource.CROSS),
            code(0.5, lane, back=True), *move(0.5, Resource.NODE),
        )  # fmt: skip

    def early(lane: Resource) -> tuple[Stage, ...]:
        return (
            code(1.0, lane), *move(ratio, Resource.NODE), *move(ratio, Resource.CROSS),
            *move(ratio, Resource.NODE), code(1.0, lane, back=True),
        )  # fmt: skip

    plain = (*move(0.5, Resource.NODE), *move(0.5, Resource.CROSS), *move(0.5, Resource.NODE))
    lanes = (Resource.COMPUTE, Resource.WORKERS)
    return Alternatives(
        ready_seconds, (plain, *(way(lane) for way in (late, early) for lane in lanes))
    )


def two_levels(rng: random.Random, most: int = 6) -> list[Alternatives]:
    return [plausible(rng, ready) for ready in ready_times(rng, rng.randrange(2, most + 1))]
