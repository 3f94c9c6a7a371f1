"""A pytest plugin that tries mutants: does the fast suite see what the full one sees?

    python -m pytest --full -p mutation.run --evidence-of build/mutation/evidence --mutants 300 \
        --results build/mutation/python.json
    … --native --mutants 40 --results build/mutation/native.json    # of the C++ core

Tests are collected once. Each mutant is a fork in which one function has other code, or another
extension is loaded. It runs the cases that reach the changed line, the cheapest first: those of
the fast suite, and only if none fails the others, for a bounded time; `--processes` work at once.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Protocol

import pytest

from mutation import native
from mutation.evidence import PACKAGE, Evidence, Line
from mutation.imports import Finder, module_of
from mutation.operators import Site, mutated, sites

CORE = ("compressors", "feedback", "collectives", "layout", "runtime", "kernels", "planner",
        "network", "training", "optim", "tuning", "buckets.py", "plan.py", "registry.py",
        "strategy.py", "topology.py", "moves.py", "notation.py")  # fmt: skip
FUZZER = "tests/fuzz/test_fuzz.py::test_a_short_run_finds_nothing"
FUZZED = ("kernels/", "network/", "planner/", "csrc/")
HERE = Path(__file__).parent
CASE_SECONDS = 150.0
"""Seconds without a word from a mutant after which it counts as hanging."""
MEMORY_BYTES = 8 << 30
"""The address space that a mutant may use, beyond what it begins with."""


class Mutant(Protocol):
    """A small change. key: tells other processes which one; if "", they run without it."""

    @property
    def key(self) -> str: ...

    @property
    def line(self) -> Line: ...

    def prepare(self) -> bool:
        """Whether the mutant can be tried; called before the fork, one at a time."""

    def put_in(self) -> None: ...


@dataclass(frozen=True)
class PythonMutant:
    """The n-th site of a file of the package."""

    file: str
    number: int
    site: Site

    def __str__(self) -> str:
        return f"{self.file}:{self.site.line} {self.site.function}: {self.site.change}"

    @property
    def key(self) -> str:
        return f"{self.number} {self.file}"

    @property
    def line(self) -> Line:
        return self.file, self.site.line

    def prepare(self) -> bool:
        return True

    def put_in(self) -> None:
        """Gives every function of that name and place the other code, and clears caches."""
        if module_of(self.file) not in sys.modules:
            sys.meta_path.insert(0, Finder(self.file, self.number))  # type: ignore[arg-type]
            return
        path = f"{PACKAGE}/{self.file}"
        source = Path(path).read_text(encoding="utf-8")
        before = compile(source, path, "exec")
        after, site = mutated(source, path, self.number)
        new = dict(_codes(after, ""))
        changed = sum(
            exchange(old, new[name]) for name, old in _codes(before, "") if name == site.function
        )
        if not changed:
            raise RuntimeError("nobody has the function that was to be changed")


def python_mutants() -> Iterator[PythonMutant]:
    """Yields all mutants of the core's Python."""
    for name in CORE:
        for path in sorted(Path(PACKAGE, name).glob("**/*.py")) or [Path(PACKAGE, name)]:
            file = str(path.relative_to(PACKAGE))
            for number, site in enumerate(sites(path.read_text(encoding="utf-8"))):
                yield PythonMutant(file, number, site)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--evidence-of", metavar="FOLDER", type=Path)
    parser.addoption("--native", action="store_true", help="mutants of the C++ core")
    parser.addoption("--mutants", type=int, default=300)
    parser.addoption("--seed", type=int, default=0)
    parser.addoption("--processes", type=int, default=2)
    parser.addoption("--results", metavar="FILE", type=Path)
    parser.addoption("--full-seconds", type=float, default=240.0, help="of full cases a mutant")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.getoption
    if not option("--evidence-of"):
        return None
    evidence, count = Evidence(option("--evidence-of")), option("--mutants")
    reached = evidence.reached()
    every: Iterable[Mutant] = native.mutants() if option("--native") else python_mutants()
    found = [mutant for mutant in every if mutant.line in reached]
    random.Random(option("--seed")).shuffle(found)
    drawn = found[: 2 * count]  # more than are tried: some cannot be built
    campaign = Campaign(session, evidence.seconds, evidence.cases({m.line for m in drawn}))
    del evidence
    campaign.run(drawn, count)
    return True


class Campaign:
    """All mutants over the collected cases."""

    def __init__(
        self, session: pytest.Session, seconds: dict[str, float], by_line: dict[Line, set[str]]
    ) -> None:
        import suites  # a plugin itself, which pytest must import first

        self.session, self._seconds, self._by_line = session, seconds, by_line
        self.items = {item.nodeid: item for item in session.items}
        self.fast = {item.nodeid for item in suites.fast(session.items)}
        self._option = session.config.getoption
        self._rows: list[dict[str, Any]] = []

    def run(self, mutants: Iterable[Mutant], count: int) -> None:
        """Tries `count` of the mutants that can be prepared."""
        waiting = (mutant for mutant in mutants if mutant.prepare())
        running: dict[int, Child] = {}
        tried = 0
        while True:
            while tried < count and len(running) < self._option("--processes"):
                if (mutant := next(waiting, None)) is None:
                    count = tried
                    break
                child = self._fork(mutant)
                running[child.pipe] = child
                tried += 1
            if not running:
                return
            for pipe in select.select(list(running), [], [], 5.0)[0]:
                if running[pipe].read():
                    self._add(running.pop(pipe))
            for pipe, child in list(running.items()):
                if child.is_late():
                    self._add(running.pop(pipe))

    def _add(self, child: Child) -> None:
        self._rows.append(child.row())
        print(json.dumps(self._rows[-1]), flush=True)
        if path := self._option("--results"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self._rows, indent=1) + "\n", encoding="utf-8")

    def _fork(self, mutant: Mutant) -> Child:
        plan = self._plan(mutant)
        ours, theirs = os.pipe()
        pid = os.fork()
        if not pid:
            os.setsid()
            os.close(ours)
            try:
                self._try(mutant, plan, theirs)
            except BaseException as error:  # a mutant, or we
                os.write(theirs, f"error {error!r}\n".encode())
            finally:
                os._exit(0)
        os.close(theirs)
        return Child(mutant, pid, ours)

    def _plan(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """The cases that reach the line, the cheapest first: of the fast suite, and the others.
        The fuzzer is last: there is no evidence of its calls, which other processes make."""
        reaching = self._by_line[mutant.line] & self.items.keys()
        cheapest = sorted(reaching, key=lambda case: (self._seconds.get(case, 0.0), case))
        if mutant.line[0].startswith(FUZZED):
            cheapest += [case for case in self.items if case == FUZZER]
        return [c for c in cheapest if c in self.fast], [c for c in cheapest if c not in self.fast]

    def _try(self, mutant: Mutant, plan: tuple[list[str], list[str]], pipe: int) -> None:
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(silence, stream)
        limit_memory()
        os.environ["GRADWIRE_MUTANT"] = mutant.key
        os.environ["PYTHONPATH"] = f"{HERE.parent}:{HERE}/start"
        mutant.put_in()
        failed = Failed()
        self.session.config.pluginmanager.register(failed)
        for suite, cases, seconds in (
            ("fast", plan[0], 3600.0), ("full", plan[1], self._option("--full-seconds"))
        ):  # fmt: skip
            os.write(pipe, f"suite {suite}\n".encode())
            deadline, left = time.monotonic() + seconds, list(cases)
            while left and time.monotonic() < deadline:
                item = self.items[left.pop(0)]
                os.write(pipe, f"at {item.nodeid}\n".encode())
                following = self.items[left[0]] if left else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if failed.case:
                    os.write(pipe, f"killed {failed.case}\n".encode())
                    return
            os.write(pipe, f"left {len(left)} of {len(cases)}\n".encode())


def limit_memory() -> None:
    """Limits memory: a mutant that requests all of it gets an error, not the machine."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


class Failed:
    """The first case that failed."""

    case = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.case:
            self.case = report.nodeid


class Child:
    """A forked mutant, as its parent sees it."""

    def __init__(self, mutant: Mutant, pid: int, pipe: int) -> None:
        self.mutant, self.pipe, self._pid, self._text = mutant, pipe, pid, ""
        self._began = self._heard = time.monotonic()

    def read(self) -> bool:
        """Reads what the child reports. Returns whether it has ended."""
        data = os.read(self.pipe, 65536)
        self._text += data.decode()
        self._heard = time.monotonic()
        return not data

    def is_late(self) -> bool:
        return time.monotonic() - self._heard > CASE_SECONDS

    def row(self) -> dict[str, Any]:
        """Kills the child if it still runs, and returns what became of it."""
        with contextlib.suppress(OSError):
            os.killpg(self._pid, signal.SIGKILL)
        os.close(self.pipe)
        os.waitpid(self._pid, 0)
        lines = self._text.splitlines()
        said = dict(line.split(" ", 1) for line in lines)
        left = [line.removeprefix("left ") for line in lines if line.startswith("left ")]
        killed = said.get("killed", "")
        if not killed and len(left) < 2:  # it did not finish its cases
            killed = f"{said.get('error', 'death or hang')} in {said.get('at', 'no case')}"
        return {
            "mutant": str(self.mutant),
            "killed_by": killed,
            "suite": said.get("suite", "fast") if killed else "",
            "left": left,
            "seconds": round(time.monotonic() - self._began, 1),
        }


# -- other code for one function ---------------------------------------------------------------


def exchange(old: CodeType, new: CodeType) -> int:
    """Gives the new code to every function that has the old. Returns to how many."""
    count = 0
    for thing in gc.get_objects():
        if type(thing) is FunctionType:  # isinstance would ask the thing
            code = thing.__code__
            same = code.co_filename == old.co_filename and code.co_name == old.co_name
            if same and code.co_firstlineno == old.co_firstlineno:
                thing.__code__ = new
                count += 1
        elif type(thing) is functools._lru_cache_wrapper:
            thing.cache_clear()
    return count


def _codes(code: CodeType, prefix: str) -> Iterator[tuple[str, CodeType]]:
    """Yields the functions at the top of a module and in its classes."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if (
                constant.co_flags & 0x2
            ):  # a function; a class body is not "new locals" and optimized
                yield prefix + constant.co_name, constant
            if not constant.co_flags & 0x1:
                yield from _codes(constant, f"{prefix}{constant.co_name}.")
