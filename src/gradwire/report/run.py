"""Reads run folders: whatever can be read of them, while they are written or after."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

from gradwire.errors import UsageError
from gradwire.progress import Progress, each, silent
from gradwire.report.clocks import aligned
from gradwire.run_folder import (
    EVERY,
    LINES,
    OVER,
    About,
    Event,
    Facts,
    Log,
    Planned,
    StepRow,
    spans_of,
)
from gradwire.schema import Broken
from gradwire.trace import Span, Trace

_FILE = re.compile(r"rank-(\d+)\.jsonl")


@dataclass
class Life:
    """What one process of a rank recorded, from its start to its end."""

    about: About
    steps: list[StepRow] = field(default_factory=list)
    spans: dict[int, bytes] = field(default_factory=dict)  # by step, not parsed yet
    logs: list[Log] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    plans: list[Planned] = field(default_factory=list)

    @property
    def zero(self) -> float:
        """The time on rank 0's clock, in seconds, at which this life's times are 0."""
        return self.about.clock_seconds - self.about.ahead_seconds

    @property
    def lasted(self) -> float:
        """Seconds from its start until its last step was over."""
        return self.steps[-1].at if self.steps else 0.0

    def trace_of(self, step: int, by_seconds: float = 0.0) -> list[Span]:
        """Returns a step's spans on this rank's clock, `by_seconds` later. Raises ValueError if
        they are damaged."""
        kinds, labels, rows = spans_of(self.spans[step])
        rank = self.about.rank
        return [
            Span(
                rank, lane, kinds[kind], labels[label], start / 1e6 + by_seconds,
                (start + micros) / 1e6 + by_seconds, float(sent), group,
            )
            for lane, kind, label, start, micros, sent, group in rows
        ]  # fmt: skip


@dataclass
class Rank:
    """All lives of one rank, the oldest first, as they were when this object was made."""

    rank: int
    lives: list[Life]

    @cached_property
    def steps(self) -> list[StepRow]:
        """The steps of all lives. What an earlier life did beyond the step where a later one went
        on was lost, and is left out."""
        return [row for _, rows in self._kept(lambda life: life.steps) for row in rows]

    @cached_property
    def logs(self) -> list[tuple[float, Log]]:
        """The logs of all lives, likewise, each with the seconds since the first life began; a
        life's times go on where the life before has left off."""
        begun = accumulate((life.lasted for life in self.lives), initial=0.0)
        since = {id(life): seconds for life, seconds in zip(self.lives, begun)}
        kept = self._kept(lambda life: life.logs)
        return [(since[id(life)] + log.at, log) for life, logs in kept for log in logs]

    @property
    def plans(self) -> list[Planned]:
        """The plans of all lives, likewise, but for lives that ended before their first step."""
        kept = self._kept(lambda life: life.plans)
        return [plan for life, plans in kept if life.steps for plan in plans]

    def _kept(self, of: Callable[[Life], Sequence[Any]]) -> Iterator[tuple[Life, list[Any]]]:
        """Yields each life with its rows from before the first step of any later life."""
        for life, until in self._until():
            yield life, [row for row in of(life) if row.step < until]

    def _until(self) -> Iterator[tuple[Life, float]]:
        """Yields each life with the first step of any later life, beyond which it was lost."""
        for i, life in enumerate(self.lives):
            later = (own.about.step for own in self.lives[i + 1 :] if own.steps)
            yield life, min(later, default=math.inf)

    @property
    def first_step(self) -> int:
        """The first step of all lives, likewise."""
        begun = (life.about.step for life in self.lives if life.steps)
        return min(begun, default=self.lives[0].about.step)

    @property
    def count(self) -> int:
        """The number of steps of all lives, likewise; those between two lives are of neither."""
        return sum(
            max(0, int(min(until, life.steps[-1].step + 1)) - life.about.step)
            for life, until in self._until() if life.steps
        )  # fmt: skip

    @property
    def done_again(self) -> Life | None:
        """The longest life of which nothing is kept, as a later one began no later; None if there
        is none."""
        kept = dict(enumerate(rows for _, rows in self._kept(lambda life: life.steps)))
        gone = [life for i, life in enumerate(self.lives) if life.steps and not kept[i]]
        return max(gone, key=lambda life: life.steps[-1].step, default=None)

    @property
    def events(self) -> list[Event]:
        """The events of all lives, also of steps that were lost."""
        return [event for life in self.lives for event in life.events]

    @property
    def last(self) -> Life:
        """The last life that has steps; if none has, the last."""
        return next((life for life in reversed(self.lives) if life.steps), self.lives[-1])

    @property
    def about(self) -> About:
        """The `About` of `last`."""
        return self.last.about

    @cached_property
    def seen(self) -> dict[int, Life]:
        """The steps recorded span by span, likewise, each with its life."""
        return {step: life for life, until in self._until() for step in life.spans if step < until}


class Run:
    """A run folder. problems: what cannot be read of it, or is missing, in sentences."""

    def __init__(self, folder: str | Path, progress: Progress = silent) -> None:
        """Reads all files of the folder.

        Raises:
            UsageError: no file in the folder is of a run.
        """
        self.folder = Path(folder)
        self.name = self.folder.resolve().name or str(folder)
        """The name that pages and messages use for this run; see `tell_apart`."""
        self._files: dict[int, _File] = {}
        self._apart = 0.0, 0  # of ranks' clocks in a step: seconds, at least, and the step
        self.look(progress)

    def look(self, progress: Progress = silent) -> None:
        """Reads the lines that were written since the last call. Raises UsageError as `Run`
        does."""
        there = {
            int(found[1]): path for path in _paths(self.folder)
            if (found := _FILE.fullmatch(path.name))
        }  # fmt: skip
        if there:  # a folder that was cleared shows what it held until there is something new
            self._files = {n: self._files.get(n) or _File(path) for n, path in there.items()}
        files = list(self._files.values())
        for file in each(progress, "files", files, lambda file: file.name):
            file.look()
        self.ranks = self._of_the_last_start()
        if not self.ranks:
            why = [problem for file in self._files.values() for problem in file.problems[:1]]
            raise UsageError(
                "a run must be a folder with rank-0.jsonl and so on, as gradwire.record(handle, "
                f"folder) writes them; '{self.folder}' has none with a readable first line. "
                f"{' '.join([*why[:2], 'Pass another.'])}"
            )

    def _of_the_last_start(self) -> dict[int, Rank]:
        """The ranks that have left something, by ascending number. Ranks that only an earlier
        start of the job had, with more ranks, are left out."""
        there = {n: Rank(n, list(file.lives)) for n, file in sorted(self._files.items())
                 if file.lives}  # fmt: skip
        last = max((rank.about.start for rank in there.values()), default=0)
        self._gone = [n for n, rank in there.items() if rank.about.start != last]
        return {n: rank for n, rank in there.items() if n not in self._gone}

    def unwritten_seconds(self, rank: int) -> float:
        """Returns how long ago a rank's file was last written, by this machine's clock."""
        return self._files[rank].unwritten_seconds

    @property
    def world(self) -> int:
        """The number of ranks in the job."""
        return self.first.about.world

    @property
    def problems(self) -> list[str]:
        """What cannot be read, and which ranks are missing or end early, in sentences."""
        files = sorted(self._files.items())
        found = [problem for _, file in files for problem in file.problems]
        if missing := [rank for rank in range(self.world) if rank not in self._files]:
            found.append(
                f"{len(missing)} of {self.world} ranks left no file here: {_some(missing)}. Where "
                "machines share no disk, copy their files into one folder."
            )
        if unread := [file.name for _, file in files if not file.lives]:
            found.append(f"left out, without a readable first line: {_some(unread)}.")
        if self._gone:
            found.append(
                "the report shows the last start of the job, in which "
                f"rank{'s' * (len(self._gone) > 1)} {_some(self._gone)} recorded nothing: what is "
                "here is of an earlier start, or of another run."
            )
        if self._apart[0]:
            found.append(
                f"ranks' clocks are {self._apart[0]:,.3f} s apart in step {self._apart[1]:,}, or "
                "more: by them some end an exchange before others begin it. They are shown as if "
                "exchanges ended at the same time on all ranks."
            )
        found += _ending_early(list(self.ranks.values()))
        if again := self.first.done_again:
            found.append(
                f"an earlier start of the job recorded steps {again.steps[0].step} to "
                f"{again.steps[-1].step}; a later one began at the same step or before, so these "
                "are left out. Record starts that do not continue each other into folders of "
                "their own."
            )
        return found

    @property
    def first(self) -> Rank:
        """Rank 0; if it left no file, the lowest rank that did."""
        return next(iter(self.ranks.values()))

    @property
    def plans(self) -> list[Planned]:
        """The plans of `first`, in the order in which they were in force."""
        return self.first.plans

    @property
    def in_force(self) -> tuple[int, Planned | None]:
        """The first step of the plan in force at the last step (0 if since the start), and that
        plan; (0, None) if it is not known."""
        plans, steps = self.plans, self.first.steps
        last = steps[-1].step if steps else math.inf
        while len(plans) > 1 and plans[-1].step > last:
            plans.pop()
        if not plans:
            return 0, None
        alike = takewhile(lambda plan: plan.document == plans[-1].document, reversed(plans))
        since = list(alike)[-1].step
        return since if since > self.first.first_step else 0, plans[-1]

    @property
    def every(self) -> float:
        """The number of steps per exchange: 1, except with local steps."""
        found = self.first.about.facts.get(EVERY, 1)
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        return float(found) if is_number and 1 <= found < math.inf else 1.0

    @property
    def averaged_over(self) -> int | None:
        """The number of ranks that average their gradients; None: older recordings do not say."""
        found = self.first.about.facts.get(OVER)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def steps_with_spans(self) -> list[int]:
        """Returns the steps that every rank here has recorded span by span in the same start of
        the job, ascending."""
        each = [
            {(life.about.start, step) for step, life in rank.seen.items()}
            for rank in self.ranks.values()
        ]
        return sorted(step for _, step in set.intersection(*each))

    def trace(self, steps: Iterable[int], ranks: Iterable[int] | None = None) -> Trace:
        """Returns the spans of these steps, of all ranks that have them or of some, on the clock
        of rank 0: its first "about" is at 0 seconds, each later one at the end of the life before.
        `clock_error_seconds` says how far apart ranks may be; ranks that are further apart are
        put side by side (`clocks`), and `problems` tells of it."""
        trace, there = Trace(self.world), self.ranks
        chosen = [there[rank] for rank in (there if ranks is None else ranks)]
        for step in steps:
            found: list[Span] = []
            for rank in chosen:
                life = rank.seen.get(step)
                if life is not None and (begin := self.begin_of(life.about.start)) is not None:
                    found += self._spans(rank.rank, life, step, life.zero - begin)
            found, apart = aligned(found, self.clock_error_seconds)
            if apart > self._apart[0]:
                self._apart = apart, step
            trace.spans += found
        return trace

    def begin_of(self, start: int) -> float | None:
        """Returns the time on rank 0's clock that is 0 in `trace`, for that start of the job; None
        if rank 0 recorded nothing of it."""
        before = 0.0
        for life in self.first.lives:
            if life.about.start == start:
                return life.zero - before
            before += life.lasted
        return None

    def _spans(self, rank: int, life: Life, step: int, by_seconds: float) -> list[Span]:
        try:
            return life.trace_of(step, by_seconds)
        except (ValueError, RecursionError) as error:
            del life.spans[step]
            self.ranks[rank].seen.pop(step, None)
            self._files[rank].leave_out(f"spans of step {step}", error)
            return []

    @property
    def clock_error_seconds(self) -> float:
        """How far a rank's clock may be from where `trace` puts it, in seconds, when recording
        began."""
        return max(rank.about.ahead_error_seconds for rank in self.ranks.values())


def _some(ranks: Sequence[object]) -> str:
    """Names the first of some ranks, or files."""
    return ", ".join(map(str, ranks[:8])) + (", …" if ranks[8:] else "")


def _ending_early(ranks: Sequence[Rank]) -> Iterator[str]:
    """Tells of ranks that have recorded less than others, beyond what ranks that write their rows
    at different paces differ by."""
    last = max((rank.steps[-1].step for rank in ranks if rank.steps), default=-1)
    ends = [(rank.rank, rank.steps[-1]) for rank in ranks if rank.steps]
    early = [(rank, row.step) for rank, row in ends if last - row.step > _PACES * row.steps]
    if early:
        named = _some([f"rank {rank} at step {step:,}" for rank, step in early])
        yield (
            f"some files end before step {last:,}, the last of others: {named}. A rank was "
            "killed, or its file was cut."
        )


def tell_apart(runs: Sequence[Run]) -> None:
    """Gives each run a name of its own: its path, where several folders have the same name."""
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = str(run.folder)


def _paths(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise UsageError(
            f"a run must be a folder that gradwire.record wrote; '{folder}': {error.strerror}. "
            "Pass its path."
        ) from error


_PACES = 4  # rows of one rank, in which another that is not late has written one
_SPANS = b'{"kind":"spans","step":'
_HEAD_BYTES = 4096  # identify a file: its first line says when it was begun
_DAMAGE = (ValueError, KeyError, TypeError, IndexError, RecursionError, Broken)


class _File:
    """The file of one rank, as far as it was read."""

    def __init__(self, path: Path) -> None:
        self.lives: list[Life] = []
        self.problems: list[str] = []
        self._path, self._read, self._line, self._head = path, 0, 0, b""
        self.name = path.name

    def look(self) -> None:
        """Reads the lines written since; the last may still be incomplete. A file that was
        replaced is read from its start, once it has a whole line."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                is_new = size < self._read or file.read(len(self._head)) != self._head
                file.seek(0 if is_new else self._read)
                data = file.read()
        except OSError as error:
            self.problems = [f"{self._path.name} cannot be read: {error.strerror}."]
            return
        whole = data.rfind(b"\n") + 1
        if whole and (is_new or not self._read):
            self._forget(data[: min(whole, _HEAD_BYTES)])
        self._read += whole
        for line in data[:whole].splitlines():
            self._line += 1
            self._take(line)

    @property
    def unwritten_seconds(self) -> float:
        """Seconds since it was last written; 0 if that is not known."""
        try:
            return max(0.0, time.time() - self._path.stat().st_mtime)
        except OSError:
            return 0.0

    def _forget(self, head: bytes) -> None:
        """Starts over with a new file, which begins with `head`."""
        self.lives, self.problems, self._read, self._line = [], [], 0, 0
        self._head = head

    def _take(self, line: bytes) -> None:
        try:
            self._take_whole(line)
        except _DAMAGE as error:
            self.leave_out(f"line {self._line}", error)

    def leave_out(self, what: str, error: Exception) -> None:
        """Adds a problem; of each file, only the first four are kept."""
        if len(self.problems) < 4:
            self.problems.append(f"{self._path.name}, {what} is left out: {error!s:.120}.")

    def _take_whole(self, line: bytes) -> None:
        if line.startswith(_SPANS):  # most of the file; parsed only if it is needed
            step = int(line[len(_SPANS) : line.index(b",", len(_SPANS))])
            self.lives[-1].spans[step] = line
        elif line:
            self._take_parsed(json.loads(line))

    def _take_parsed(self, data: Any) -> None:
        schema = LINES[data["kind"]]
        found = schema.read(data)
        if isinstance(found, About):
            self.lives.append(Life(found))
            return
        life = self.lives[-1]
        if isinstance(found, Facts):
            life.about = life.about._replace(facts=life.about.facts | found.facts)
            return
        kinds: dict[type, list[Any]] = {
            StepRow: life.steps, Log: life.logs, Event: life.events, Planned: life.plans,
        }  # fmt: skip
        kinds[type(found)].append(found)
