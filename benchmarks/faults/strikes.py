"""What goes wrong, done to this process when its job comes to the scenario's point."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scenario import RATE, Scenario
from torch import Tensor

from gradwire.lab.addresses import INTERFACE
from gradwire.lab.network import find_tool
from gradwire.lab.rates import parse_rate, shape_host
from gradwire.testing import Corrupt, Fault

SLOW_SECONDS = 0.1
"""Ten times as long as a step of the job takes."""

CUT_SECONDS = 1.0
"""A link that is cut briefly is down for this long."""


class ToldTo(RuntimeError):
    """What a rank raises that is told to fail."""


@dataclass
class Points:
    """The points of a job on one rank. After `arm`, the scenario's fault strikes at its point.

    folder: where the time of the strike is kept, for whoever judges what followed.
    """

    scenario: Scenario
    rank: int
    folder: Path
    step: int = -1
    armed: bool = False
    struck: bool = False

    def arm(self) -> None:
        """From now on the fault strikes, on the rank that it is for; a switch is everybody's."""
        self.armed = self.rank == self.scenario.rank or self.scenario.kind == "switch cut"

    def at(self, where: str) -> None:
        """Called by the job at each of its points."""
        own = self.scenario
        is_due = where == own.where and (where == "attach" or self.step >= own.step)
        if not (self.armed and is_due) or (self.struck and own.kind != "slow"):
            return
        if not self.struck:
            self.struck = True
            told = {"at": time.monotonic(), "rank": self.rank}
            (self.folder / f"struck-{self.rank}.json").write_text(json.dumps(told))
        if own.kind in STRIKES:  # else the job looks at the kind, or the lane flips a bit
            STRIKES[own.kind](where)

    @property
    def poisons(self) -> bool:
        """Whether this rank's loss is not a number in this step."""
        is_due = self.armed and self.step == self.scenario.step
        return is_due and self.scenario.kind == "not finite"

    @property
    def differs(self) -> bool:
        """Whether this rank attaches something else than the others."""
        return self.armed and self.scenario.kind.startswith("other")

    def in_lanes(self) -> list[Fault]:
        """Returns the faults to inject into the lanes."""
        kind, own = self.scenario.kind, self.scenario
        if not self.armed or own.where != "lane":
            return []
        if kind.startswith("flips"):
            return [_Flips(self, sent=kind == "flips what it sends")]
        return [_AtMoves(self)]


class _AtMoves(Fault):
    """Strikes before moves."""

    def __init__(self, points: Points) -> None:
        self._points = points

    def before(self, number: int, move: Any) -> Any:
        self._points.at("lane")
        return move


class _Flips(Fault):
    """Flips one bit of the first byte string that is sent, or arrives, in the scenario's step."""

    def __init__(self, points: Points, sent: bool) -> None:
        self._points, self._sent = points, sent

    def before(self, number: int, move: Any) -> Any:
        return self._corrupt(number).before(number, move) if self._sent else move

    def after(self, number: int, arrived: Any) -> Any:
        return arrived if self._sent else self._corrupt(number).after(number, arrived)

    def _corrupt(self, number: int) -> Corrupt:
        """Returns the corruption of this move, or of none if it is not the time for it."""
        points = self._points
        is_due = points.step >= points.scenario.step and not points.struck
        return Corrupt(number if is_due else -1, self._flip, self._sent)

    def _flip(self, data: Tensor) -> None:
        if self._points.struck or not data.numel():
            return
        self._points.at("lane")
        own = data.view(-1).view(torch.uint8)
        bit = self._points.scenario.seed * 2_654_435_761 % (8 * own.numel())
        own[bit // 8] ^= 1 << bit % 8


def _kill(where: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(where: str) -> None:
    raise ToldTo("told to")


def _stop(where: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)  # whoever started this process lets it go on


def _no_memory(where: str) -> None:
    """Lets this process have no more memory while it attaches; in a lane it would be another
    move's memory that is missing."""
    if where != "attach":
        raise MemoryError("told that there is none")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (1 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _no_disk(where: str) -> None:
    """Lets no file grow; Python ignores the signal, and raises OSError."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))


def give_back() -> None:
    """Lifts the limits of memory and files."""
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _set_clock_back(where: str) -> None:
    real = time.time
    time.time = lambda: real() - 3600.0


def _link_is_up(up: bool) -> None:
    """Sets this host's link up or down."""
    _tool("ip", "link", "set", INTERFACE, "up" if up else "down")


def _link_sends(bits_per_second: int) -> None:
    """Lets this host's link send so much from now on."""
    words = shape_host(bits_per_second).arguments().split()
    _tool("tc", "qdisc", "replace", "dev", INTERFACE, "root", *words)


def mend_link() -> None:
    """Sets this host's link up, with its full rate."""
    _link_is_up(True)
    _link_sends(parse_rate(RATE))


def _tool(name: str, *words: str) -> None:
    subprocess.run([find_tool(name), *words], check=True)


def _cut(where: str) -> None:
    _link_is_up(False)


def _cut_briefly(where: str) -> None:
    _link_is_up(False)
    threading.Timer(CUT_SECONDS, _link_is_up, (True,)).start()


def _slow_down_link(where: str) -> None:
    _link_sends(parse_rate(RATE) // 100)


def _late(where: str) -> None:
    time.sleep(3.0)


def _slow(where: str) -> None:
    time.sleep(SLOW_SECONDS)


STRIKES: dict[str, Callable[[str], None]] = {
    "killed": _kill,
    "raises": _raise,
    "misses a backward": _raise,
    "never attaches": _raise,
    "stopped briefly": _stop,
    "stopped for long": _stop,
    "slow": _slow,
    "late": _late,
    "link cut": _cut,
    "link cut briefly": _cut_briefly,
    "link slow": _slow_down_link,
    "switch cut": _cut,
    "no memory": _no_memory,
    "clock set back": _set_clock_back,
    "disk full": _no_disk,
}
