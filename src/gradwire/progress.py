"""How far long work is: what does the work tells it, another shows it.

    for scheme in each(progress, "schemes", schemes): …      tells before each, and at the end
    choose(…, progress=part(progress, "cells", 3, 12))       the fourth of twelve parts of a stage

Who works knows no clock and no terminal; how long it will take is worked out here, by `Pace`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
Clock = Callable[[], float]

PATIENCE_SECONDS = 3.0
"""Nothing is said of what ends sooner."""
EVERY_SECONDS = 10.0
"""Between plain lines of one stage, at least."""


class Progress(Protocol):
    """Whoever is told how far work is. It is called from the thread that works, and costs it
    microseconds."""

    def __call__(self, stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> object:
        """stage: what is done, as long as it has this name. done, of: how much of it, in any
        unit; of 0: nobody knows. now: what it is at."""


def silent(stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
    """Shows nothing."""


def each(
    progress: Progress, stage: str, items: Sequence[T], name: Callable[[T], str] = str
) -> Iterator[T]:
    """The items, each told by its name before it is worked on; all count alike."""
    for number, item in enumerate(items):
        progress(stage, number, len(items), name(item))
        yield item
    progress(stage, len(items), len(items))


def part(progress: Progress, name: str, number: int, count: int, what: str = "") -> Progress:
    """For work that is one of `count` equal parts of the stage of this name, `number` from 0.
    what: is told of it; by default what it tells itself."""
    return within(progress, name, number, 1, count, what)


def within(
    progress: Progress, name: str, before: float, own: float, whole: float, what: str = ""
) -> Progress:
    """For work that is a part of the stage of this name. In its units: what came before, the part
    itself, and all."""

    def told(stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
        share = min(done / of, 1.0) if of > 0 else 0.0
        progress(name, before + own * share, whole, what or now or stage)

    return told


class Pace:
    """What was told last, and how long the stage will still take: as long as what is left of it
    would take at the rate so far."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.stage, self.done, self.of, self.now = "", 0.0, 0.0, ""
        self._clock = clock
        self._began = self._at = clock()
        self._first = 0.0

    def __call__(self, stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
        """Take it down."""
        self._at = self._clock()
        if stage != self.stage:
            self._began, self._first = self._at, done
        self.stage, self.done, self.of, self.now = stage, done, of, now

    @property
    def share(self) -> float | None:
        """Of the stage, from 0 to 1; None: nobody knows."""
        return min(1.0, max(0.0, self.done / self.of)) if self.of > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """None where nothing is known: before anything was done, and once it has taken longer
        than it should have."""
        worked = self.done - self._first
        if self.of <= 0 or worked <= 0:
            return None
        whole = (self._at - self._began) * (self.of - self.done) / worked
        left = whole - (self._clock() - self._at)
        return left if left > 0 else None

    def facts(self) -> list[str]:
        """How far, and how long, as far as either is known: "25 %", "about 20 s left"."""
        share, left = self.share, self.seconds_left
        told = [] if share is None else [f"{100 * share:.0f} %"]
        return told if left is None else [*told, f"about {rounded(left)} left"]

    def __str__(self) -> str:
        """In a line: "schemes, 25 %, about 20 s left: ecmp"."""
        told = ", ".join([self.stage, *self.facts()])
        return f"{told}: {self.now}" if self.now else told


def rounded(seconds: float) -> str:
    """A duration as exactly as a guess may be said: "4 s", "35 s", "3 min", "2 h"."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    if seconds < 57.5:
        return f"{5 * round(seconds / 5)} s"
    if seconds < 90 * 60:
        return f"{max(1, round(seconds / 60))} min"
    return f"{round(seconds / 3600)} h"


class Lines:
    """Plain lines: one when a stage begins, then every ten seconds at most; none before the work
    has taken three. A `Progress`.

    say: takes a line, without its end. `look` says what is due; who has a thread for it may call
    it at any time.
    """

    def __init__(self, say: Callable[[str], object], clock: Clock = time.monotonic) -> None:
        self._say, self._clock, self._pace = say, clock, Pace(clock)
        self._begun, self._said_at, self._said_of = clock(), -EVERY_SECONDS, ""

    def __call__(self, stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
        """Take it down, and say what is due."""
        self._pace(stage, done, of, now)
        self.look()

    def look(self) -> None:
        """Say what is due."""
        at, pace = self._clock(), self._pace
        if not pace.stage or at - self._begun < PATIENCE_SECONDS:
            return
        if pace.stage != self._said_of or at - self._said_at >= EVERY_SECONDS:
            self._said_at, self._said_of = at, pace.stage
            self._say(str(pace))
