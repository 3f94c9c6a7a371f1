"""A recorded run on disk: one file of JSON lines for each rank; its lines, and its writer.

    run/rank-0.jsonl   {"kind": "about", "rank": 0, …}   which rank, host, command: the first line
                       {"kind": "facts", "facts": {…}}   more of them, once they are known
                       {"kind": "plan", "step": 0, …}    in force from this step on
                       {"kind": "step", "step": 7, …}    times of steps: means since the last one
                       {"kind": "spans", "step": 7, …}   one step, span by span
                       {"kind": "log", "step": 7, …}     numbers that the job logged: loss=…
                       {"kind": "event", "step": 9, …}   a step that was not finite, an error

Each line is one write, so that a job that is killed leaves all of its lines. A job that starts
again with the same folder appends: its "about" begins another *life* of the run. Times are seconds
of the rank's own clock since its "about". `gradwire.report.run` reads these files.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.schema import (
    List,
    Map,
    Maybe,
    Number,
    Plain,
    Schema,
    Table,
    Whole,
    broken,
)

FORMAT = 1
EVERY = "steps_to_an_exchange"
"""A fact that runs with local steps have. Their rows count steps, their spans exchanges."""
OVER = "averaged_over"
"""A fact: how many ranks average their gradients, which is fewer than all of a sharded model."""
_SECONDS, _LENGTH = Number(-1e12, 1e12), Number(0, 1e12)
_BYTES = Number(0, 1e18)
_STEP = Whole(0, 1 << 53)


class StepRow(NamedTuple):
    """The times of steps on one rank: means over `steps` of them; `step` is the last one's number.

    at: when the last step's exchange ended, in seconds since the recording began. seconds: of a
    step, from the end of one exchange to the end of the next: compute (data, forward, optimizer),
    then backward from its first gradient on, then wait for the exchange, all in seconds.
    most_seconds: of the longest step. encode, wire, decode: seconds on the lanes, during backward
    or after it. bytes_sent: by this rank; bytes_across: the part that leaves the machine;
    bytes_given: the bytes of its gradients. skipped: how many of the steps were not finite.
    residual_norm: the 2-norm of all residuals; None if it was not computed.
    """

    step: int
    steps: int
    at: float
    seconds: float
    most_seconds: float
    compute: float
    backward: float
    wait: float
    encode: float
    wire: float
    decode: float
    bytes_sent: float
    bytes_across: float
    bytes_given: float
    skipped: int = 0
    residual_norm: float | None = None


class Log(NamedTuple):
    """Numbers that the job logged for a step, by name; at: seconds."""

    step: int
    at: float
    numbers: dict[str, float]


class Event(NamedTuple):
    """Something that deserves attention; what: a sentence. at: seconds."""

    step: int
    at: float
    what: str


class About(NamedTuple):
    """The process that wrote the lines that follow.

    start: a number that all ranks of one start of the job share, and no other start has. step: the
    first that is recorded. unix_seconds, clock_seconds: one moment, as Unix time and on the rank's
    `perf_counter`, which is then ahead_seconds ahead of rank 0's, give or take
    ahead_error_seconds. facts: command, folder and versions, by name.
    """

    rank: int
    world: int
    start: int
    step: int
    host: str
    pid: int
    unix_seconds: float
    clock_seconds: float
    ahead_seconds: float
    ahead_error_seconds: float
    facts: dict[str, Any]


class Facts(NamedTuple):
    """Facts that were not known when the process began: they join those of its `About`."""

    facts: dict[str, Any]


class Planned(NamedTuple):
    """A plan, in force from a step on. document: as `Plan.to_json` writes it. ages: the mean
    number of steps, bucket by bucket, from one time that an element is sent to the next; None if
    that depends on the data, () if an older version wrote it."""

    step: int
    document: dict[str, Any]
    ages: Sequence[float | None] = ()

    @property
    def buckets(self) -> list[dict[str, Any]]:
        """The plan's buckets, with their strategies and parameters."""
        found: list[dict[str, Any]] = self.document["buckets"]
        return found


class _AnyText(Schema):
    """Text, empty or not."""

    def read(self, value: Any) -> str:
        if not isinstance(value, str):
            raise broken("must be text", value)
        return value


class _Format(Schema):
    """The format number of this version."""

    def read(self, value: Any) -> int:
        if type(value) is not int or value != FORMAT:
            raise broken(f"must be {FORMAT} in this version of gradwire", value)
        return value


class _Logged(Schema):
    """A number, or the name of one that JSON cannot write: nan, inf, -inf."""

    def read(self, value: Any) -> float:
        return float(value) if value in ("nan", "inf", "-inf") else Number().read(value)


_PARAMETER = Table({"name": _AnyText(), "shape": List(Whole(0, 1 << 40)), "dtype": _AnyText()})
_BUCKET = Table({"strategy": _AnyText(), "parameters": List(_PARAMETER)})
_TIMES = ("compute", "backward", "wait", "encode", "wire", "decode", "seconds", "most_seconds")

LINES: dict[str, Schema] = {
    "about": Table(
        {
            "format": _Format(),
            "rank": Whole(0, 1 << 24), "world": Whole(1, 1 << 24), "step": _STEP,
            "start": Whole(0, 1 << 63),
            "host": _AnyText(), "pid": Whole(), "unix_seconds": _SECONDS,
            "clock_seconds": _SECONDS, "ahead_seconds": _SECONDS,
            "ahead_error_seconds": _SECONDS, "facts": Map(Plain()),
        },
        make=lambda format, **own: About(**own),
    ),
    "facts": Table({"facts": Map(Plain())}, make=Facts),
    "plan": Table(
        {"step": _STEP, "plan": Plain()},
        {"ages": List(Maybe(Number(0.0)))},  # older versions lack it
        make=lambda step, plan, ages=(): Planned(step, _checked(plan), ages),
    ),
    "step": Table(
        {
            "step": _STEP, "steps": Whole(1, 1 << 53), "at": _SECONDS,
            **dict.fromkeys(_TIMES, _LENGTH),
            **dict.fromkeys(("bytes_sent", "bytes_across", "bytes_given"), _BYTES),
        },
        {"skipped": Whole(0, 1 << 53), "residual_norm": Maybe(Number(0))}, make=StepRow,
    ),
    "log": Table({"step": _STEP, "at": _SECONDS, "numbers": Map(_Logged(), _AnyText())}, make=Log),
    "event": Table({"step": _STEP, "at": _SECONDS, "what": _AnyText()}, make=Event),
}  # fmt: skip
"""The schema of each kind of line, except "spans", which are most of a file: see `spans_of`."""


def _checked(document: Any) -> dict[str, Any]:
    Table({"buckets": List(_BUCKET)}).read(document)
    own: dict[str, Any] = document
    return own


SpanRow = tuple[int, int, int, int, int, int, str]
"""lane, kind, label, start and duration in microseconds, bytes, group; kind and label are indices
into lists of names."""


def spans_of(line: bytes) -> tuple[list[str], list[str], list[SpanRow]]:
    """Returns a line's names of kinds, of labels, and its spans; ValueError if it has none."""
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("spans must be a table")
    kinds, labels, rows = (data.get(name) for name in ("kinds", "labels", "spans"))
    if not (isinstance(kinds, list) and isinstance(labels, list) and isinstance(rows, list)):
        raise ValueError("spans must have the lists kinds, labels and spans")
    if {type(name) for name in (*kinds, *labels)} - {str}:
        raise ValueError("kinds and labels must be text")
    if not all(isinstance(row, list) and len(row) == 7 for row in rows):
        raise ValueError("a span must have seven entries")
    *numbers, groups = zip(*rows) if rows else ((),) * 7
    if not all(Whole(-(1 << 53), 1 << 53).holds(column) for column in numbers):
        raise ValueError("a span's first six entries must be whole numbers")
    if {type(group) for group in groups} - {str}:
        raise ValueError("a span's group must be text")
    for column, names in zip(numbers[1:3], (kinds, labels)):
        if column and not 0 <= min(column) <= max(column) < len(names):
            raise ValueError("a span's kind and label must be indices into kinds and labels")
    if rows and (min(numbers[4]) < 0 or min(numbers[5]) < 0):
        raise ValueError("a span's duration and bytes must be 0 or more")
    return kinds, labels, [tuple(row) for row in rows]


def path_of(folder: Path, rank: int) -> Path:
    """Returns the path of a rank's file."""
    return folder / f"rank-{rank}.jsonl"


def number(value: float) -> float | str:
    """Returns a number as lines write it: inf and NaN as text, which JSON lacks."""
    return value if math.isfinite(value) else str(value)


_OPEN: weakref.WeakSet[RankFile] = weakref.WeakSet()


def _close_copies() -> None:
    """Closes a forked child's copies of files: a child that outlives a killed rank, as a worker of
    its DataLoader does for seconds, would hold the locks, and refuse the rank's next start."""
    for file in list(_OPEN):
        with suppress(OSError):
            file.close()


os.register_at_fork(after_in_child=_close_copies)
_encoded = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class RankFile:
    """The file of one rank, to which lines are appended."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = path_of(folder, rank)
        self._file = self.path.open("ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise OSError(errno.EBUSY, "another process is recording into it") from error
        except OSError:
            pass  # this file system has no locks
        if self._file.tell() and not _ends_whole(self.path):
            self._file.write(b"\n")  # the last writer was killed in the middle of a line
        _OPEN.add(self)

    def add(self, kind: str, **values: Any) -> None:
        """Append a line, unbuffered. Raises OSError if it cannot be written."""
        left = _encoded({"kind": kind, **values}).encode() + b"\n"
        while left:  # a disk that is about full takes a part, and tells why at the next write
            left = left[self._file.write(left) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
