"""Progress of long work: the work reports how far it is, and a `Progress` shows it.

    for scheme in each(progress, "schemes", schemes): …      reports before each, and at the end
    choose(…, progress=part(progress, "cells", 3, 12))       the fourth of twelve parts of a stage

The work itself knows no clock and no terminal; `Pace` estimates how long it will take.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

T = TypeVar("T")
Clock = Callable[[], float]

PATIENCE_SECONDS = 3.0
"""Work that ends sooner shows no lines."""
EVERY_SECONDS = 10.0
"""The least time between plain lines of one stage."""


class Progress(Protocol):
    """Receives reports of progress. It is called from the thread that works, and must take only
    microseconds."""

    def __call__(self, stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> object:
        """stage: the name of the work at hand; another name begins another stage. done, of: how
        much is done of how much, in any unit; of 0: unknown. now: the present item."""


def silent(stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
    """Shows nothing."""


def each(
    progress: Progress, stage: str, items: Sequence[T], name: Callable[[T], str] = str
) -> Iterator[T]:
    """Yield the items, and report the name of each before it is worked on; all count alike."""
    for number, item in enumerate(items):
        progress(stage, number, len(items), name(item))
        yield item
    progress(stage, len(items), len(items))


def part(progress: Progress, name: str, number: int, count: int, what: str = "") -> Progress:
    """Returns a progress for one of `count` equal parts of the stage of this name, `number` from
    0. what: the item to report; by default what the part reports."""
    return within(progress, name, number, 1, count, what)


def within(
    progress: Progress, name: str, before: float, own: float, whole: float, what: str = ""
) -> Progress:
    """Returns a progress for a part of the stage of this name. In units of the stage: the amount
    before the part, that of the part itself (own), and that of all (whole)."""

    def told(stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
        share = min(done / of, 1.0) if of > 0 else 0.0
        progress(name, before + own * share, whole, what or now or stage)

    return told


class Pace:
    """The last report, and an estimate of how long the stage will still take, at the rate so
    far."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.stage, self.done, self.of, self.now = "", 0.0, 0.0, ""
        self._clock = clock
        self._began = self._at = clock()
        self._first = 0.0

    def __call__(self, stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
        """Record a report."""
        self._at = self._clock()
        if stage != self.stage:
            self._began, self._first = self._at, done
        self.stage, self.done, self.of, self.now = stage, done, of, now

    @property
    def share(self) -> float | None:
        """The fraction of the stage that is done, from 0 to 1; None: unknown."""
        return min(1.0, max(0.0, self.done / self.of)) if self.of > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """The estimated time left; None if it is unknown: before anything was done, and when the
        work takes longer than was estimated."""
        worked = self.done - self._first
        if self.of <= 0 or worked <= 0:
            return None
        whole = (self._at - self._began) * (self.of - self.done) / worked
        left = whole - (self._clock() - self._at)
        return left if left > 0 else None

    def facts(self) -> list[str]:
        """Returns share and time left, as far as they are known: "25 %", "about 20 s left"."""
        share, left = self.share, self.seconds_left
        told = [] if share is None else [f"{100 * share:.0f} %"]
        return told if left is None else [*told, f"about {rounded(left)} left"]

    def __str__(self) -> str:
        """Returns one line: "schemes, 25 %, about 20 s left: ecmp"."""
        told = ", ".join([self.stage, *self.facts()])
        return f"{told}: {self.now}" if self.now else told


def rounded(seconds: float) -> str:
    """Returns an estimated duration, rounded: "4 s", "35 s", "3 min", "2 h"."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    if seconds < 57.5:
        return f"{5 * round(seconds / 5)} s"
    if seconds < 90 * 60:
        return f"{max(1, round(seconds / 60))} min"
    return f"{round(seconds / 3600)} h"


def to_stderr(line: str) -> None:
    """Prints a line to standard error. If nobody reads that any more, or it is full, the work goes
    on: other ranks may wait for this one."""
    if sys.stderr is None:  # closed from the start; print would take standard output
        return
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


class Lines:
    """A `Progress` that writes plain lines: one when a stage begins, then at most one every ten
    seconds; none in the first three seconds of the work.

    say: takes a line, without its end. `look` writes a line if one is due; a thread may call it at
    any time.
    """

    def __init__(self, say: Callable[[str], object], clock: Clock = time.monotonic) -> None:
        self._say, self._clock, self._pace = say, clock, Pace(clock)
        self._begun, self._said_at, self._said_of = clock(), -EVERY_SECONDS, ""

    def __call__(self, stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
        """Record a report, and write a line if one is due."""
        self._pace(stage, done, of, now)
        self.look()

    def look(self) -> None:
        """Write a line if one is due."""
        at, pace = self._clock(), self._pace
        if not pace.stage or at - self._begun < PATIENCE_SECONDS:
            return
        if pace.stage != self._said_of or at - self._said_at >= EVERY_SECONDS:
            self._said_at, self._said_of = at, pace.stage
            self._say(str(pace))
