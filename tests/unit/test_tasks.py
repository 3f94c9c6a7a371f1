"""Paths through the decision tree: their number, their text, and refusals."""

from __future__ import annotations

from collections import Counter

import pytest

from gradwire.errors import StrategyError
from gradwire.tasks import Path, Task, paths

ALL = paths()
ON_ONE = paths(devices=("gpu",))


def test_as_many_as_published() -> None:
    """Wang et al. 2023, section 4.2, have 4,341 options, of which 174 are on the GPU alone."""
    assert (len(ALL), len(ON_ONE)) == (4341, 174)
    assert len(set(map(str, ALL))) == 4341


def test_flat_and_hierarchical() -> None:
    for options, flat, hierarchical in ((ALL, 63, 4278), (ON_ONE, 12, 162)):
        assert Counter(path.knows_machines for path in options) == {
            False: flat, True: hierarchical,
        }  # fmt: skip


def test_by_number_of_compressions() -> None:
    histogram = {0: 9, 1: 236, 2: 1152, 3: 1920, 4: 1024}
    assert Counter(path.compressions for path in ALL) == histogram
    assert Counter(path.compressions for path in ON_ONE) == {0: 9, 1: 59, 2: 72, 3: 30, 4: 4}
    devices = [{task.at for task in path.tasks if task.is_local} for path in ALL]
    assert sum(len(own) < 2 for own in devices) == 339


def test_sizes_of_sub_trees() -> None:
    """T1 to T5 of the grammar: what may follow a beginning, by what is still to come."""
    begins = {
        "T1": "reduce_scatter", "T2": "compress@gpu, all_to_all",
        "T3": "reduce_scatter@node", "T4": "reduce_scatter@node, compress@gpu",
        "T5": "reduce_scatter@node, reduce_scatter@cross",
    }  # fmt: skip

    def following(options: tuple[Path, ...], begin: str) -> int:
        tasks = tuple(Task(*word.strip().split("@")) for word in begin.split(","))
        return sum(path.tasks[: len(tasks)] == tasks for path in options)

    counts = {name: following(ALL, begin) for name, begin in begins.items()}
    # After reduce_scatter@node there is T3, and each compression followed by T4.
    assert counts == {"T1": 5, "T2": 12, "T3": 63 + 2 * 152, "T4": 152, "T5": 29}
    counts = {name: following(ON_ONE, begin) for name, begin in begins.items()}
    assert counts == {"T1": 2, "T2": 3, "T3": 12 + 19, "T4": 19, "T5": 5}


def test_every_path_prints_and_parses() -> None:
    for path in ALL:
        assert Path.parse(str(path)) == path
    assert Path.parse(" reduce_scatter ,all_gather ") == Path.parse("reduce_scatter, all_gather")


def test_the_order_is_the_same_every_time() -> None:
    assert paths() == ALL
    assert str(ALL[0]) == "all_reduce"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("compress@gpu, all_reduce", "'all_reduce' stands after 'compress@gpu'.*'all_gather'"),
        ("reduce_scatter", "the end stands after 'reduce_scatter'.*'all_gather'"),
        ("reduce, all_gather", "'all_gather' stands after 'reduce'.*'broadcast'"),
        ("all_reduce@node, all_reduce@cross", "'all_reduce@node' stands at the beginning"),
        ("compress@tpu, all_gather, decompress@gpu", "'compress@tpu'.*'compress@gpu'"),
        ("compress@gpu, compress@gpu", "'compress@gpu' stands after 'compress@gpu'"),
        ("all_reduce, all_reduce", "after 'all_reduce'. Put one of these there: the end"),
        ("", "in '', '' stands at the beginning"),
    ],
)
def test_what_cannot_follow_is_refused(text: str, says: str) -> None:
    with pytest.raises(StrategyError, match=says):
        Path.parse(text)
