"""A pytest plugin that tries mutants: does the fast suite see what the full one sees?

    python -m pytest --full -p mutation.run --evidence-of build/mutation --mutants 240 \
        --results build/mutants.json

Tests are collected once. Each mutant is a fork in which one function has other code; it runs the
cases that reach the changed line, the cheapest first: those of the fast suite, and only if none
fails the others, for a bounded time. `--processes` forks work at once.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import random
import select
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from mutation.evidence import PACKAGE, Evidence
from mutation.operators import Site, mutated, sites

CORE = ("compressors", "feedback", "collectives", "layout", "runtime", "kernels", "planner",
        "network", "training", "optim", "tuning", "buckets.py", "plan.py", "registry.py",
        "strategy.py", "topology.py", "moves.py", "notation.py")  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """The n-th site of a file."""

    file: str
    number: int
    site: Site

    def __str__(self) -> str:
        return f"{self.file}:{self.site.line} {self.site.function}: {self.site.change}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--evidence-of", metavar="FOLDER", type=Path)
    parser.addoption("--mutants", type=int, default=240)
    parser.addoption("--seed", type=int, default=0)
    parser.addoption("--processes", type=int, default=2)
    parser.addoption("--results", metavar="FILE", type=Path)
    parser.addoption("--full-seconds", type=float, default=240.0, help="of full cases a mutant")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.getoption
    if not option("--evidence-of"):
        return None
    campaign = Campaign(session, Evidence(option("--evidence-of")))
    campaign.run(drawn(campaign.by_line, option("--mutants"), option("--seed")))
    return True


def test_of(case: str) -> str:
    """Without the parameters."""
    return case.partition("[")[0]


def drawn(reached: dict[tuple[str, int], Any], count: int, seed: int) -> list[Mutant]:
    """Mutants on lines that some case reaches, from all over the core."""
    paths = [p for name in CORE for p in sorted(Path(PACKAGE, name).glob("**/*.py"))
             or [Path(PACKAGE, name)]]  # fmt: skip
    found = [
        Mutant(str(path.relative_to(PACKAGE)), number, site)
        for path in paths if path.suffix == ".py" and path.exists()
        for number, site in enumerate(sites(path.read_text(encoding="utf-8")))
        if (str(path.relative_to(PACKAGE)), site.line) in reached
    ]  # fmt: skip
    return random.Random(seed).sample(found, min(count, len(found)))


class Campaign:
    """All mutants over the collected cases."""

    def __init__(self, session: pytest.Session, evidence: Evidence) -> None:
        import suites  # a plugin itself, which pytest wants to import first

        self.session, self.evidence = session, evidence
        self.items = {item.nodeid: item for item in session.items}
        self.fast = {item.nodeid for item in suites.fast(session.items)}
        self.by_line = evidence.by_line()
        self.known = {test_of(case) for case in evidence.arcs}
        self._option = session.config.getoption
        self._rows: list[dict[str, Any]] = []

    def run(self, mutants: Sequence[Mutant]) -> None:
        waiting, running = list(mutants), {}
        while waiting or running:
            while waiting and len(running) < self._option("--processes"):
                mutant = waiting.pop(0)
                child = self._fork(mutant)
                running[child.pipe] = child
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
        """The cases of the fast suite that reach the line, the cheapest first; and others of the
        same tests, and tests that the evidence knows nothing of, in a fixed random order."""
        reaching = self.by_line[mutant.file, mutant.site.line] & self.items.keys()
        fast = sorted(reaching & self.fast, key=lambda c: (self.evidence.seconds.get(c, 0.0), c))
        tests = {test_of(case) for case in reaching}
        others = [
            case for case in self.items
            if case not in self.fast
            and (case in reaching or test_of(case) in tests or test_of(case) not in self.known)
        ]  # fmt: skip
        random.Random(0).shuffle(others)
        return fast, others

    def _try(self, mutant: Mutant, plan: tuple[list[str], list[str]], pipe: int) -> None:
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(silence, stream)
        os.environ["GRADWIRE_MUTANT"] = f"{mutant.number} {mutant.file}"
        put_in(mutant)
        self._tell_ranks()
        failed = Failed()
        self.session.config.pluginmanager.register(failed)
        for suite, cases, seconds in (
            ("fast", plan[0], 3600.0), ("full", plan[1], self._option("--full-seconds"))
        ):  # fmt: skip
            os.write(pipe, f"suite {suite}\n".encode())
            deadline, left = time.monotonic() + seconds, list(cases)
            while left and time.monotonic() < deadline:
                item = self.items[left.pop(0)]
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                if failed.case:
                    os.write(pipe, f"killed {failed.case}\n".encode())
                    return
            os.write(pipe, f"left {len(left)} of {len(cases)}\n".encode())

    @staticmethod
    def _tell_ranks() -> None:
        try:
            import ranks
        except ImportError:
            return
        context = ranks._CONTEXT
        context.set_forkserver_preload([*ranks.PRELOADED, "mutation.inject"])


class Failed:
    """The first case that failed."""

    case = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.case:
            self.case = report.nodeid


class Child:
    """A mutant at work, as its parent sees it."""

    def __init__(self, mutant: Mutant, pid: int, pipe: int) -> None:
        self.mutant, self.pipe, self._pid, self._text = mutant, pipe, pid, ""
        self._began = self._heard = time.monotonic()

    def read(self) -> bool:
        """Whether it has ended."""
        data = os.read(self.pipe, 65536)
        self._text += data.decode()
        self._heard = time.monotonic()
        return not data

    def is_late(self, limit_seconds: float = 900.0) -> bool:
        return time.monotonic() - self._heard > limit_seconds

    def row(self) -> dict[str, Any]:
        with contextlib.suppress(OSError):
            os.killpg(self._pid, signal.SIGKILL)
        os.close(self.pipe)
        os.waitpid(self._pid, 0)
        said = dict(line.split(" ", 1) for line in self._text.splitlines())
        suites_run = [s for s in ("fast", "full") if f"suite {s}" in self._text]
        # Neither killed nor through: it died or hung.
        through = self._text.count("left ") == 2
        return {
            "mutant": str(self.mutant),
            "killed_by": said.get("killed") or ("" if through else "death or hang"),
            "suite": "" if through and "killed" not in said else "".join(suites_run[-1:]),
            "error": said.get("error", ""),
            "left": said.get("left", ""),
            "seconds": round(time.monotonic() - self._began, 1),
        }


# -- other code for one function ---------------------------------------------------------------


def put_in(mutant: Mutant) -> None:
    """Give every function of that name and place the mutant's code, and forget what is cached."""
    path = f"{PACKAGE}/{mutant.file}"
    source = Path(path).read_text(encoding="utf-8")
    before = compile(source, path, "exec")
    after, site = mutated(source, path, mutant.number)
    new = dict(_codes(after, ""))
    for name, old in _codes(before, ""):
        if name == site.function:
            exchange(old, new[name])


def exchange(old: CodeType, new: CodeType) -> None:
    for thing in gc.get_objects():
        if type(thing) is FunctionType:  # isinstance would ask the thing
            code = thing.__code__
            same = code.co_filename == old.co_filename and code.co_name == old.co_name
            if same and code.co_firstlineno == old.co_firstlineno:
                thing.__code__ = new
        elif type(thing) is functools._lru_cache_wrapper:
            thing.cache_clear()


def _codes(code: CodeType, prefix: str) -> Iterator[tuple[str, CodeType]]:
    """The functions at the top of a module and in its classes."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if (
                constant.co_flags & 0x2
            ):  # a function; a class body is not "new locals" and optimized
                yield prefix + constant.co_name, constant
            if not constant.co_flags & 0x1:
                yield from _codes(constant, f"{prefix}{constant.co_name}.")
