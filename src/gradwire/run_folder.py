"""A recorded run on disk: one file of JSON lines for each rank.

    run/rank-0.jsonl   {"kind": "about", "rank": 0, …}   which rank, host, command: the first line
                       {"kind": "plan", "step": 0, …}    in force from this step on
                       {"kind": "step", "step": 7, …}    what steps took: means since such a line
                       {"kind": "spans", "step": 7, …}   one step, span by span
                       {"kind": "log", "step": 7, …}     what the job told: loss=…
                       {"kind": "event", "step": 9, …}   a step that was not finite, an error

Each line is one write, so that a job that is killed leaves all of its lines. A job that starts
again with the same folder appends: from its "about" on it is another *life* of the run.

Times of a line are seconds of the rank's own clock since its "about". `Run.trace` puts them on the
clock of rank 0, from the difference that was measured when recording began.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.errors import UsageError
from gradwire.trace import Span, Trace

FORMAT = 1
_FILE = re.compile(r"rank-(\d+)\.jsonl")


class StepRow(NamedTuple):
    """What steps took on one rank: means of `steps` of them, of which the last has this number.

    at: seconds, when the exchange of the last was over. seconds: of a step, from the end of one
    exchange to the end of the next: compute (data, forward, optimizer), then backward from its
    first gradient on, then waiting for the exchange. most_seconds: of the longest. encode, wire,
    decode: seconds of lanes, beside backward or after it. bytes_sent, of which bytes_across leave
    the machine, and bytes_given, of gradient: of this rank. skipped: how many of the steps were
    not finite. residual_norm: of all that waits; None where it was not looked at.
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


def path_of(folder: Path, rank: int) -> Path:
    """The file of a rank."""
    return folder / f"rank-{rank}.jsonl"


def number(value: float) -> float | str:
    """As JSON has it, which knows neither inf nor NaN."""
    return value if math.isfinite(value) else str(value)


class RankFile:
    """The file of one rank, to which lines are appended."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = path_of(folder, rank)
        self._file = self.path.open("ab", buffering=0)
        if self._file.tell() and not _ends_whole(self.path):
            self._file.write(b"\n")  # whoever wrote before was killed amid a line

    def add(self, kind: str, **values: Any) -> None:
        """Append a line, at once. Raises OSError where the disk refuses it."""
        line = json.dumps({"kind": kind, **values}, separators=(",", ":"), allow_nan=False)
        self._file.write(line.encode() + b"\n")

    def close(self) -> None:
        """No more lines."""
        self._file.close()


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


# -- reading -------------------------------------------------------------------------------


class Log(NamedTuple):
    """Numbers that the job told of a step, by name; at: seconds of its clock."""

    step: int
    at: float
    numbers: Mapping[str, float]


class Event(NamedTuple):
    """Something that deserves attention, in a sentence."""

    step: int
    at: float
    what: str


@dataclass
class Life:
    """What one process of a rank recorded, from its start to its end."""

    about: Mapping[str, Any]
    steps: list[StepRow] = field(default_factory=list)
    spans: dict[int, bytes] = field(default_factory=dict)  # by step, not parsed yet
    logs: list[Log] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    plans: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def zero(self) -> float:
        """Seconds of rank 0's clock at which this life's are 0."""
        origin, ahead = self.about["clock_seconds"], self.about["ahead_seconds"]
        return float(origin) - float(ahead)

    def trace_of(self, step: int) -> Iterator[Span]:
        """The spans of a step; times on this rank's clock."""
        line = json.loads(self.spans[step])
        labels, kinds, rank = line["labels"], line["kinds"], int(self.about["rank"])
        for lane, kind, label, start, micros, sent, group in line["spans"]:
            times = start / 1e6, (start + micros) / 1e6
            yield Span(rank, lane, kinds[kind], labels[label], *times, float(sent), group)


@dataclass
class Rank:
    """All lives of one rank, in the order in which they were lived."""

    rank: int
    lives: list[Life]

    @property
    def steps(self) -> list[StepRow]:
        """Of all lives; what an earlier one did beyond where a later one went on was lost."""
        return list(_kept([life.steps for life in self.lives], self._begins))

    @property
    def logs(self) -> list[Log]:
        """Likewise."""
        return list(_kept([life.logs for life in self.lives], self._begins))

    @property
    def events(self) -> list[Event]:
        """Of all lives, whatever became of their steps."""
        return [event for life in self.lives for event in life.events]

    @property
    def _begins(self) -> list[float]:
        return [float(life.about["step"]) for life in self.lives]

    def life_of(self, step: int) -> Life | None:
        """The last one that has the spans of a step."""
        return next((life for life in reversed(self.lives) if step in life.spans), None)


@dataclass
class Run:
    """A run folder, as far as it can be read. problems: what cannot be, in sentences."""

    folder: Path
    world: int
    ranks: dict[int, Rank]
    problems: list[str]

    @staticmethod
    def read(folder: str | Path) -> Run:
        """Read a folder. Files that end amid a line, and ranks without one, are problems.

        Raises:
            UsageError: nothing in it is of a run.
        """
        folder = Path(folder)
        files = sorted((int(m[1]), p) for p in _files(folder) if (m := _FILE.fullmatch(p.name)))
        problems: list[str] = []
        ranks = {rank: Rank(rank, _lives(path, problems)) for rank, path in files}
        ranks = {rank: found for rank, found in ranks.items() if found.lives}
        if not ranks:
            raise UsageError(
                "a run is a folder with rank-0.jsonl and so on, as gradwire.record(handle, "
                f"folder) writes them; '{folder}' has none with a first line. Pass another."
            )
        world = max(int(rank.lives[-1].about["world"]) for rank in ranks.values())
        if missing := [str(rank) for rank in range(world) if rank not in ranks]:
            problems.append(
                f"{len(missing)} of {world} ranks left no file here: {', '.join(missing[:8])}. "
                "Where machines share no disk, copy their files into one folder."
            )
        return Run(folder, world, ranks, problems)

    @property
    def first(self) -> Rank:
        """Rank 0, or the lowest that there is."""
        return self.ranks[min(self.ranks)]

    @property
    def plans(self) -> list[tuple[int, Mapping[str, Any]]]:
        """Plans with the steps from which on they were in force."""
        return [plan for life in self.first.lives for plan in life.plans]

    def steps_with_spans(self) -> list[int]:
        """Those that every rank here has recorded span by span, ascending."""
        each = [{s for life in rank.lives for s in life.spans} for rank in self.ranks.values()]
        return sorted(set.intersection(*each))

    def trace(self, steps: Iterable[int], ranks: Iterable[int] | None = None) -> Trace:
        """These steps, of all ranks that have them or of some, on the clock of rank 0, whose
        "about" is at 0 seconds; `clock_error_seconds` says how far apart ranks may be."""
        trace, begin = Trace(self.world), self.first.lives[-1].zero
        chosen = [self.ranks[rank] for rank in (self.ranks if ranks is None else ranks)]
        for step in steps:
            for rank in chosen:
                if life := rank.life_of(step):
                    by = life.zero - begin
                    for span in life.trace_of(step):
                        start, end = span.start_seconds + by, span.end_seconds + by
                        trace.add(span._replace(start_seconds=start, end_seconds=end))
        return trace

    @property
    def clock_error_seconds(self) -> float:
        """How far a rank's clock may be from where `trace` puts it, when recording began."""
        lives = (rank.lives[-1] for rank in self.ranks.values())
        return max(float(life.about["ahead_error_seconds"]) for life in lives)


def _files(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise UsageError(
            f"a run is a folder that gradwire.record wrote; '{folder}': {error.strerror}. "
            "Pass its path."
        ) from error


_KNOWN = ("about", "plan", "step", "spans", "log", "event")


def _lives(path: Path, problems: list[str]) -> list[Life]:
    """What can be read of a file."""
    lives: list[Life] = []
    for n, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            _take(line, lives)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            problems.append(f"line {n} of {path.name} is not whole ({error}); it is left out.")
    return lives


_SPANS = b'{"kind":"spans","step":'


def _take(line: bytes, lives: list[Life]) -> None:
    if not line:
        return
    if line.startswith(_SPANS):  # most of the file, of which little is looked at
        if not line.endswith(b"}"):
            raise ValueError("it ends amid its spans")
        lives[-1].spans[int(line[len(_SPANS) : line.index(b",", len(_SPANS))])] = line
        return
    data = json.loads(line)
    kind = data.pop("kind")
    if kind == "about":
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, of another version of gradwire")
        lives.append(Life(data))
    elif kind == "step":
        lives[-1].steps.append(StepRow(**data))
    elif kind == "log":
        numbers = {name: float(value) for name, value in data["numbers"].items()}
        lives[-1].logs.append(Log(int(data["step"]), float(data["at"]), numbers))
    elif kind == "event":
        lives[-1].events.append(Event(int(data["step"]), float(data["at"]), str(data["what"])))
    elif kind == "plan":
        lives[-1].plans.append((int(data["step"]), data["plan"]))
    else:
        raise ValueError(f"a line is one of {', '.join(_KNOWN)}, not '{kind}'")


def _kept(lives: Sequence[Sequence[Any]], begins: Sequence[float]) -> Iterator[Any]:
    """Of each life what no later one did again."""
    for i, rows in enumerate(lives):
        until = min(begins[i + 1 :], default=math.inf)
        yield from (row for row in rows if row.step < until)
