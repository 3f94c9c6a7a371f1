"""A pytest plugin that writes down what each case costs and which branches it takes.

    python -m pytest --full -p mutation.evidence --evidence build/mutation

Ranks of tests/distributed are watched, too. One file per process; `Evidence` reads them all. A
branch is an arc of coverage.py: from one line to another, of one file of the package.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

import gradwire

PACKAGE = str(Path(gradwire.__file__).parent)
Arcs = dict[str, set[int]]
"""By file of the package: arcs as coverage.py's C tracer packs them."""


class Watch:
    """The branches that this process takes, from one `taken` to the next."""

    def __init__(self) -> None:
        self._coverage = coverage.Coverage(
            data_file=None, branch=True, source=[PACKAGE], config_file=False
        )
        self._coverage.start()
        self._data: Arcs = self._coverage._collector.data  # type: ignore[attr-defined]

    def taken(self) -> Arcs:
        found = {
            file.removeprefix(f"{PACKAGE}/"): set(arcs)
            for file, arcs in self._data.items() if arcs
        }  # fmt: skip
        for arcs in self._data.values():
            arcs.clear()  # in place: functions that run hold on to the set
        return found


def lines(arc: int) -> tuple[int, int]:
    """The two lines of an arc; 0 for a function's entry or exit."""
    ends = arc & (1 << 28) - 1, arc >> 28 & (1 << 28) - 1
    return (0 if arc >> 56 & 1 else ends[0]), (0 if arc >> 57 & 1 else ends[1])


# -- the process that runs the tests -----------------------------------------------------------


class Recorder:
    """Costs and arcs of the cases of one pytest process, written when it ends."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._watch = directory, Watch()
        self._numbers: dict[tuple[str, int], int] = {}
        self._cases: dict[str, tuple[float, list[int]]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._watch.taken()
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        seconds = max(time.process_time() - cpu, 0.0)
        if "distributed" in item.nodeid:  # others compute and wait for it
            seconds = time.perf_counter() - wall
        self._cases[item.nodeid] = seconds, self._numbered(self._watch.taken())

    def _numbered(self, arcs: Arcs) -> list[int]:
        numbers = self._numbers
        return [
            numbers.setdefault((file, arc), len(numbers)) for file in arcs for arc in arcs[file]
        ]

    def pytest_unconfigure(self) -> None:
        with open(self._directory / f"cases-{os.getpid()}.pickle", "wb") as file:
            pickle.dump((list(self._numbers), self._cases), file)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--evidence", metavar="FOLDER", help="what each case costs and runs")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--evidence") and (
        config.getoption("numprocesses", None) in (None, 0) or hasattr(config, "workerinput")
    ):
        directory = Path(config.getoption("--evidence")).resolve()
        config.pluginmanager.register(Recorder(directory))
        os.environ["GRADWIRE_EVIDENCE"] = str(directory)
        config.pluginmanager.register(_Ranks())


# -- ranks -------------------------------------------------------------------------------------


class _Ranks:
    """Has every function that ranks are handed run under a watch of its own."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        try:
            import ranks
        except ImportError:
            return
        plain = ranks.Ranks.outcomes

        def outcomes(self: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            case = os.environ["PYTEST_CURRENT_TEST"].rsplit(" ", 1)[0]
            return plain(
                self, watched, os.environ["GRADWIRE_EVIDENCE"], case, function, *args, **options
            )

        ranks.Ranks.outcomes = outcomes  # type: ignore[method-assign]


_WATCH: list[Watch] = []


def watched(directory: str, case: str, function: Callable[..., Any], *args: Any) -> Any:
    """function(*args) in a rank; what it took is written down."""
    if not _WATCH:
        _WATCH.append(Watch())
    _WATCH[0].taken()
    try:
        return function(*args)
    finally:
        with open(Path(directory) / f"rank-{os.getpid()}.pickle", "ab") as file:
            pickle.dump((case, _WATCH[0].taken()), file)


# -- reading it --------------------------------------------------------------------------------


class Evidence:
    """Of every case its seconds; of every line of the package the cases that run it."""

    def __init__(self, directory: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.arcs: dict[str, set[tuple[str, int]]] = {}
        for path in directory.glob("cases-*.pickle"):
            known, cases = pickle.loads(path.read_bytes())
            for case, (seconds, numbers) in cases.items():
                self.seconds[case] = seconds
                self.arcs[case] = {known[number] for number in numbers}
        for path in directory.glob("rank-*.pickle"):
            for case, arcs in _records(path):
                self.arcs.setdefault(case, set()).update((f, a) for f in arcs for a in arcs[f])

    def by_line(self) -> dict[tuple[str, int], set[str]]:
        found: dict[tuple[str, int], set[str]] = defaultdict(set)
        for case, arcs in self.arcs.items():
            for file, arc in arcs:
                for line in lines(arc):
                    if line:
                        found[file, line].add(case)
        return found


def _records(path: Path) -> Iterator[tuple[str, Arcs]]:
    with open(path, "rb") as file:
        while file.peek(1):
            yield pickle.load(file)
