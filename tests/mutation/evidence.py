"""A pytest plugin that writes down what each case costs and which branches it takes.

    python -m pytest --full -p mutation.evidence --evidence build/mutation/evidence

Ranks of tests/distributed are watched, too. Each process writes one file; `Evidence` reads all. A
branch is an arc of coverage.py: from one line to another, of one file of the package. The blocks
of a traced extension (`mutation.trace`) that ran are written down as well.
"""

from __future__ import annotations

import os
import pickle
import time
from array import array
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

import gradwire
from mutation.trace import Trace, lines_of_blocks

PACKAGE = str(Path(gradwire.__file__).parent)
NATIVE = "the extension"
TRACED = "extension.txt"
"""The file of the evidence that holds the path of the traced extension."""
Arcs = dict[str, set[int]]
"""Arcs by file of the package, as coverage.py's C tracer packs them; for NATIVE, blocks."""
Line = tuple[str, int]


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
            arcs.clear()  # in place: running functions keep the set
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
        self._trace: Trace | None = None
        if extension := os.environ.get("GRADWIRE_TEST_NATIVE"):
            self._trace = Trace(extension)
            (directory / TRACED).write_text(extension, encoding="utf-8")
        self._numbers: dict[tuple[str, int], int] = {}
        self._cases: dict[str, tuple[float, array[int]]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._taken()
        began = time.perf_counter()  # wall time, as ranks in other processes compute for it
        yield
        seconds = time.perf_counter() - began
        self._cases[item.nodeid] = seconds, numbered(self._taken(), self._numbers)

    def _taken(self) -> Arcs:
        arcs = self._watch.taken()
        return arcs if self._trace is None else {**arcs, NATIVE: self._trace.taken()}

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


def numbered(arcs: Arcs, numbers: dict[tuple[str, int], int]) -> array[int]:
    """The numbers of the arcs; an arc that has none gets the next."""
    return array(
        "i",
        (numbers.setdefault((file, arc), len(numbers)) for file in arcs for arc in arcs[file]),
    )


# -- ranks -------------------------------------------------------------------------------------


class _Ranks:
    """Makes ranks run every function that they are handed under a watch of their own."""

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
    """Calls function(*args) in a rank, and writes down the branches that it took."""
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
    """The seconds of every case, and the cases that run each line of the package and its core."""

    def __init__(self, directory: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._blocks: dict[int, set[Line]] = {}
        self._runs: list[tuple[list[set[Line]], list[tuple[str, array[int]]]]] = []
        if (traced := directory / TRACED).exists():
            self._blocks = lines_of_blocks(Path(traced.read_text(encoding="utf-8")))
        for path in directory.glob("cases-*.pickle"):
            known, cases = pickle.loads(path.read_bytes())
            self.seconds.update((case, seconds) for case, (seconds, _) in cases.items())
            self._add(known, [(case, numbers) for case, (_, numbers) in cases.items()])
        for path in directory.glob("rank-*.pickle"):
            met: dict[tuple[str, int], int] = {}
            jobs = [(case, numbered(arcs, met)) for case, arcs in _records(path)]
            self._add(list(met), jobs)

    def _add(self, known: list[tuple[str, int]], cases: list[tuple[str, array[int]]]) -> None:
        self._runs.append(([self._lines(*arc) for arc in known], cases))

    def _lines(self, file: str, arc: int) -> set[Line]:
        if file == NATIVE:
            return self._blocks.get(arc, set())
        return {(file, line) for line in lines(arc) if line}

    def reached(self) -> set[Line]:
        """The lines that some case runs."""
        return set().union(*(lines for lines_of, _ in self._runs for lines in lines_of))

    def cases(self, wanted: Collection[Line]) -> dict[Line, set[str]]:
        """The cases that run each of these lines."""
        found: dict[Line, set[str]] = {line: set() for line in wanted}
        for lines_of, cases in self._runs:
            hits = {n: hit for n, lines in enumerate(lines_of) if (hit := lines & found.keys())}
            for case, numbers in cases:
                for number in hits.keys() & set(numbers):
                    for line in hits[number]:
                        found[line].add(case)
        return found


def _records(path: Path) -> Iterator[tuple[str, Arcs]]:
    with open(path, "rb") as file:
        while file.peek(1):
            yield pickle.load(file)
