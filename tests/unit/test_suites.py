"""The fast suite: few cases in which any two values still meet."""

from __future__ import annotations

from itertools import combinations, product

import hypothesis
import pytest

from suites import covering

SIZES = ((3, 4), (5, 5, 2), (2, 2, 2, 2))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_any_two_values_meet_in_few_cases(sizes: tuple[int, ...]) -> None:
    cases = list(product(*map(range, sizes)))
    goals = [frozenset(combinations(enumerate(case), 2)) for case in cases]
    chosen = covering(goals)
    assert frozenset.union(*(goals[i] for i in chosen)) == frozenset.union(*goals)
    assert len(chosen) <= 2 * max(a * b for a, b in combinations(sizes, 2))
    assert chosen == sorted(set(chosen))


def test_of_equals_the_first_and_nothing_of_nothing() -> None:
    assert covering([frozenset("a"), frozenset("ab"), frozenset("ba"), frozenset()]) == [1]
    assert covering([]) == []


TREE = """
import pytest
one, other = range(6), range(7)

def test_alone(): pass

@pytest.mark.parametrize("a", one)
@pytest.mark.parametrize("b", other)
@pytest.mark.parametrize("c", [0, 1])
def test_pairs(a, b, c): pass

@pytest.mark.every
@pytest.mark.parametrize("a", one)
@pytest.mark.parametrize("b", other)
@pytest.mark.parametrize("c", [0, 1])
def test_every(a, b, c): pass

@pytest.mark.once
@pytest.mark.parametrize("a", one)
@pytest.mark.parametrize("b", other)
def test_once(a, b): pass

@pytest.mark.full
def test_full(): pass

@pytest.mark.parametrize("a", [0, pytest.param(1, marks=pytest.mark.full)])
def test_some(a): pass
"""


class Profile:
    """A plugin that checks hypothesis' profile."""

    def __init__(self, name: str) -> None:
        self._name = name

    def pytest_runtest_call(self) -> None:
        assert hypothesis.settings.get_current_profile_name() == self._name


@pytest.mark.parametrize(
    ("options", "passed"),
    [
        ([], 1 + 42 + 84 + 7 + 1),
        (["--full"], 1 + 84 + 84 + 42 + 1 + 2),
        (["::test_pairs"], 84),
    ],
)
def test_marks_and_what_hypothesis_draws(
    pytester: pytest.Pytester, options: list[str], passed: int
) -> None:
    path = pytester.makepyfile(TREE)
    pytester.makeini("[pytest]\nmarkers =\n  full\n  every\n  once\n")
    named = [f"{path}{o}" for o in options if o.startswith("::")] or [str(path), *options]
    before = hypothesis.settings.get_current_profile_name()
    drawn = "full" if "--full" in options else "fast"
    run = pytester.inline_run("-p", "suites", *named, plugins=[Profile(drawn)])
    run.assertoutcome(passed=passed)
    assert hypothesis.settings.get_current_profile_name() == before
