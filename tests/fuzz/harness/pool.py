"""Makes calls in other processes, so that a crash or a hang is a finding and not the end.

A process makes a run of calls. It reports in shared memory which call it is at, and by a pipe what
it found. If it dies, another goes on after the call that killed it; if a call takes too long, it
is interrupted as by a user, and killed if it does not react. The limit is in processor time, so
that a busy machine causes no findings; a call that waits, and takes none, has ten times as long.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from harness.calls import ACCEPTED, FOUND, NO_MEMORY, REFUSED, Target, call
from harness.reach import Reached

RUN = 2000
"""The number of calls of one process."""
DEAF_SECONDS = 1.5
MEMORY_BYTES = 2 << 30
"""The address space that a process may use, beyond what it begins with."""
MOST_HANGS = 5
"""The number of hangs after which a target is called no more."""


_MOST_TEXT = 3000
_COLUMN = {ACCEPTED: 0, REFUSED: 1, NO_MEMORY: 1, FOUND: 2}


@dataclass
class Found:
    """How often a finding was made, the keys of the first three, and its text."""

    times: int = 0
    keys: list[str] = field(default_factory=list)
    text: str = ""


@dataclass
class Report:
    """calls: how many of each target were accepted, refused, found. missing: ways not reached."""

    calls: dict[str, list[int]]
    findings: dict[tuple[str, str, str], Found]
    missing: list[str]
    seconds: float = 0.0


@dataclass
class _Worker:
    process: int
    pipe: int
    errors: int
    slot: int
    last: int
    seen: int = -1
    since: tuple[float, float] = (0.0, 0.0)
    interrupted: bool = False
    rest: bytes = b""

    def begin(self) -> None:
        """Starts to count the seconds of a call."""
        self.since = self._clocks()

    def takes(self, seconds: float) -> bool:
        """Whether the call takes more than that many seconds, or waits for ten times as many."""
        used, passed = (now - then for now, then in zip(self._clocks(), self.since))
        return used > seconds or passed > 10 * seconds

    def _clocks(self) -> tuple[float, float]:
        """The seconds of the process's processor time, and of a monotonic clock."""
        stat = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8")
        ticks = stat.rpartition(")")[2].split()[11:13]  # utime and stime
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), time.monotonic()


class Pool:
    """Makes calls 0 to calls - 1 of a seed. limit: the processor seconds that a call may take."""

    def __init__(
        self, targets: Sequence[Target], reached: Reached, *, seed: int = 0, processes: int = 1,
        limit: float = 10.0, prepare: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.targets, self.reached, self.limit = list(targets), reached, limit
        self.seed, self.processes, self.prepare = seed, processes, prepare
        self.order = [i for i, t in enumerate(self.targets) for _ in range(t.weight)]
        random.Random(seed).shuffle(self.order)
        self._size = len(targets) * 4
        words = processes + processes * (self._size + len(reached.counts))
        self._memory = memoryview(mmap.mmap(-1, 8 * words)).cast("q")
        self.findings: dict[tuple[str, str, str], Found] = {}

    def run(self, calls: int, until: float = float("inf")) -> Report:
        begin, self._next, self._calls = time.monotonic(), 0, calls
        workers = [self._start(slot) for slot in range(self.processes)]
        try:
            self._watch(workers, until)
        finally:
            self._stop(workers)
        return self._report(time.monotonic() - begin)

    # -- the parent's side --------------------------------------------------------------------

    def _watch(self, workers: list[_Worker | None], until: float) -> None:
        while any(workers) and time.monotonic() < until:
            pipes = [w.pipe for w in workers if w]
            for pipe in select.select(pipes, [], [], 0.1)[0]:
                self._read(next(w for w in workers if w and w.pipe == pipe))
            for slot, worker in enumerate(workers):
                if worker is not None and self._over(worker):
                    workers[slot] = self._again(worker)

    def _stop(self, workers: list[_Worker | None]) -> None:
        """Kills the workers that still run when time is up or a user interrupts."""
        for worker in filter(None, workers):
            os.kill(worker.process, signal.SIGKILL)
            os.waitpid(worker.process, 0)
            os.close(worker.pipe)
            os.close(worker.errors)

    def _start(self, slot: int, first: int = -1, last: int = -1) -> _Worker | None:
        if first < 0:
            first, last = self._next, min(self._next + RUN, self._calls)
            self._next = max(self._next, last)
        if first >= last:
            return None
        out, into = os.pipe()
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._memory[slot] = first
        process = os.fork()
        if process == 0:
            os.close(out)
            self._work(slot, first, last, into, errors.fileno())
        os.close(into)
        kept = os.dup(errors.fileno())
        errors.close()
        return _Worker(process, out, kept, slot, last)

    def _again(self, worker: _Worker) -> _Worker | None:
        """Starts the slot's next process: for the rest of its run, if any, or a new one."""
        at = self._memory[worker.slot]
        return self._start(worker.slot, at, worker.last) or self._start(worker.slot)

    def _read(self, worker: _Worker) -> None:
        worker.rest += os.read(worker.pipe, 1 << 20)
        *lines, worker.rest = worker.rest.split(b"\n")
        for line in lines:
            key, what, where, text = json.loads(line)
            self._note(key, what, where, text)

    def _note(self, key: str, what: str, where: str, text: str) -> None:
        found = self.findings.setdefault((key.partition(":")[0], what, where), Found())
        found.times += 1
        found.text = found.text or text
        found.keys += [key][: 3 - len(found.keys)]

    def _over(self, worker: _Worker) -> bool:
        """Whether the process has ended. One that hangs is interrupted, and then killed."""
        gone, status = os.waitpid(worker.process, os.WNOHANG)
        if gone:
            self._buried(worker, status)
            return True
        at = self._memory[worker.slot]
        if at != worker.seen:
            worker.seen, worker.interrupted = at, False
            worker.begin()
        elif worker.interrupted and worker.takes(DEAF_SECONDS):
            os.kill(worker.process, signal.SIGKILL)
        elif not worker.interrupted and worker.takes(self.limit):
            os.kill(worker.process, signal.SIGINT)
            worker.interrupted = True
            worker.begin()
        return False

    def _buried(self, worker: _Worker, status: int) -> None:
        while select.select([worker.pipe], [], [], 0)[0]:
            before = len(worker.rest)
            self._read(worker)
            if len(worker.rest) == before:
                break
        os.close(worker.pipe)
        said = os.pread(worker.errors, 1 << 16, 0).decode(errors="replace")
        os.close(worker.errors)
        if status == 0:
            return
        at = self._memory[worker.slot]
        target = self._target(at)
        if worker.interrupted:
            what = "hang, deaf to SIGINT"
            self._memory[self._cell(worker.slot, target) + 3] += 1
        elif os.WIFSIGNALED(status):
            what = signal.Signals(os.WTERMSIG(status)).name
        else:
            what = f"exit {os.waitstatus_to_exitcode(status)}"
        self._memory[self._cell(worker.slot, target) + 2] += 1
        self._note(self.key(at), what, _summary(said), said)
        self._memory[worker.slot] = at + 1

    def _report(self, seconds: float) -> Report:
        words, size = self._memory, self._size
        calls = {t.name: [0, 0, 0] for t in self.targets}
        for slot in range(self.processes):
            for i, target in enumerate(self.targets):
                cell = self._cell(slot, i)
                for kind in range(3):
                    calls[target.name][kind] += words[cell + kind]
            begin = self._cell(slot, 0) + size
            for i in range(len(self.reached.counts)):
                self.reached.counts[i] += words[begin + i]
        return Report(calls, self.findings, self.reached.missing(), seconds)

    # -- both ----------------------------------------------------------------------------------

    def key(self, number: int) -> str:
        return f"{self.targets[self._target(number)].name}:{self.seed}:{number}"

    def _target(self, number: int) -> int:
        return self.order[number % len(self.order)]

    def _cell(self, slot: int, target: int) -> int:
        return self.processes + slot * (self._size + len(self.reached.counts)) + 4 * target

    def _hangs(self, target: int) -> int:
        return sum(self._memory[self._cell(slot, target) + 3] for slot in range(self.processes))

    # -- the child's side --------------------------------------------------------------------

    def _work(self, slot: int, first: int, last: int, into: int, errors: int) -> None:
        """Makes the calls of a child process, and never returns."""
        status = 1
        try:
            os.dup2(errors, 2)
            faulthandler.enable()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            torch.set_num_threads(1)
            _limit_memory()
            begin = self._cell(slot, 0) + self._size
            self.reached.counts = self._memory[begin : begin + len(self.reached.counts)]
            self.prepare()
            for number in range(first, last):
                with contextlib.suppress(
                    KeyboardInterrupt
                ):  # an interrupt that came a moment late
                    self._memory[slot] = number
                    self._call(slot, number, into)
            self._memory[slot] = last
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _call(self, slot: int, number: int, into: int) -> None:
        i = self._target(number)
        cell, key = self._cell(slot, i), self.key(number)
        if self._hangs(i) >= MOST_HANGS:
            return
        try:
            outcome = call(self.targets[i], key)
            kind = _COLUMN[outcome.kind]
            said = outcome[1:]
        except KeyboardInterrupt:
            kind, said = 2, ("slow", "", f"interrupted after {self.limit} s, and it listened")
            self._memory[cell + 3] += 1
        self._memory[cell + kind] += 1
        if kind == 2:
            os.write(
                into, json.dumps([key, *(text[-_MOST_TEXT:] for text in said)]).encode() + b"\n"
            )


def _limit_memory() -> None:
    """Limits memory, but not under sanitizers, whose shadow takes the whole address space."""
    if "asan" in Path("/proc/self/maps").read_text(encoding="utf-8"):
        return
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _summary(said: str) -> str:
    """The line that names a fault: of a sanitizer's report, or of gradwire's code that called."""
    lines = said.splitlines()
    for line in lines:
        if "runtime error:" in line or line.startswith("SUMMARY:"):
            return line.strip()[-120:]
    ours = [line.strip() for line in lines if "/gradwire/" in line and line.strip()[:4] == "File"]
    return ours[0].partition("/gradwire/")[2] if ours else ""
