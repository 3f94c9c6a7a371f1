"""Two suites out of one tree: `pytest` runs the fast one, `pytest --full` every case.

The fast suite runs only as many cases of a test with several parameters as it takes for any two
values to meet in one. The values of a strategy are its compressor, feedback and collective, by
name; each member with its own parameters occurs at least once. A parameter called "seed" keeps its
first 12 values, hypothesis its first 25 of 200 examples.
Three marks say where that is not right; docs/design/tests.md has the evidence:

    @pytest.mark.full     in the full suite only: others find what it finds, or it takes long
    @pytest.mark.every    all cases in the fast suite, too
    @pytest.mark.once     each value in one case, not each pair

`first(values)` marks all values but the first "full": the fast suite runs one part of a long list
that is cut into parts. Cases that are named one by one (`pytest FILE::TEST`) are all run.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import hypothesis
import pytest

SEEDS = 12
EXAMPLES = {"fast": 25, "full": 200}
"""Hypothesis' profiles, and how many examples a test has in each."""
for _name, _count in EXAMPLES.items():
    # The same on every machine and run: a failure in CI is the failure at home.
    hypothesis.settings.register_profile(
        _name, max_examples=_count, deadline=None, derandomize=True, database=None
    )


def first(values: Iterable[Any], count: int = 1) -> list[Any]:
    """The values for `parametrize`; those after the first `count` are in the full suite only.

    A tuple has a value for each of several parameters.
    """
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    marks = [() if i < count else (pytest.mark.full,) for i in range(len(rows))]
    return [pytest.param(*row, marks=mark) for row, mark in zip(rows, marks)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="every case, not the fast suite alone")


def pytest_configure(config: pytest.Config) -> None:
    settings, whole = hypothesis.settings, "full" if config.getoption("--full") else "fast"
    config.add_cleanup(partial(settings.load_profile, settings.get_current_profile_name()))
    settings.load_profile(config.getoption("--hypothesis-profile") or whole)


def _is_whole(config: pytest.Config) -> bool:
    return bool(config.getoption("--full")) or any("::" in argument for argument in config.args)


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Keeps only the fast suite's cases of those that `parametrize` made. To make tests of all,
    and then leave four of five out, took half of the time of collecting."""
    yield
    calls = getattr(metafunc, "_calls", [])
    if len(calls) < 2 or _is_whole(metafunc.config):
        return
    marks = [mark.name for mark in metafunc.definition.iter_markers()]
    if "full" in marks or "every" in marks:
        return
    cases = [Case(call, marks) for call in calls]
    kept = set(map(id, fast(cases)))
    calls[:] = [case.callspec for case in cases if id(case) in kept]


class Case:
    """Stands for a test that is not made yet: it has all that the rule looks at."""

    nodeid = ""

    def __init__(self, callspec: Any, marks: Sequence[str]) -> None:
        self.callspec = callspec
        self._marks = {*marks, *(mark.name for mark in callspec.marks)}

    def get_closest_marker(self, name: str) -> bool:
        return name in self._marks


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hides what is collected and imported from the garbage collector: it stays to the end anyway.

    Going over half a million objects again and again took a tenth of the time of all tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_whole(config):
        return
    kept = set(fast(items))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def fast(items: Iterable[Any]) -> Iterator[Any]:
    families: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("full"):
            continue
        if item.get_closest_marker("every") or not hasattr(item, "callspec"):
            yield item
        else:
            families.setdefault(item.nodeid.split("[")[0], []).append(item)
    for family in map(_of_few_seeds, families.values()):
        yield from (family[i] for i in covering([_goals(item) for item in family]))


def _of_few_seeds(family: list[Any]) -> list[Any]:
    seeds = dict.fromkeys(item.callspec.params.get("seed") for item in family)
    few = list(seeds)[:SEEDS]
    return [item for item in family if item.callspec.params.get("seed") in few]


def covering(goals: Sequence[frozenset[Hashable]]) -> list[int]:
    """The indices, in order, of few of these sets that together have every element of all.

    The set with the most new elements is taken first, among equals the earlier one, so every
    worker chooses the same.
    """
    missing = set().union(*goals)
    heap = [(-len(goal), i) for i, goal in enumerate(goals)]
    heapq.heapify(heap)
    chosen = []
    while missing:
        _, i = heapq.heappop(heap)
        new = len(goals[i] & missing)
        if heap and -new > heap[0][0]:  # sets chosen since have some of its elements
            heapq.heappush(heap, (-new, i))
            continue
        chosen.append(i)
        missing -= goals[i]
    return sorted(chosen)


def _goals(item: Any) -> frozenset[Hashable]:
    """What one case covers: each value as it is, and pairs of values."""
    spec = item.callspec
    rough: list[Hashable] = []
    exact: list[Hashable] = []
    for name, value in spec.params.items():
        parts = _parts(name, value) or [((name, id(value)), (name, id(value)))]
        rough += (one for one, _ in parts)
        exact += (one for _, one in parts)
    if item.get_closest_marker("once"):
        return frozenset(exact)
    return frozenset(exact).union(combinations(rough, 2))


def _parts(name: str, value: Any) -> list[tuple[Hashable, Hashable]]:
    """The values of a strategy or a member: its name, and its name with its parameters."""
    whole = hasattr(value, "compressor") and hasattr(value, "collective")
    members = (value.compressor, value.feedback, value.collective) if whole else (value,)
    if not whole and not isinstance(getattr(value, "name", None), str):
        return []
    return [
        ((name, i, getattr(member, "name", None)), (name, i, str(member)))
        for i, member in enumerate(members)
    ]
