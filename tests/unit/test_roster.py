"""The list of processes that train together: who is in it after some are lost, and others come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from gradwire.errors import PeerError
from gradwire.runtime import roster
from gradwire.runtime.roster import Roster, joined


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(roster, "SILENT_SECONDS", 0.3)


@pytest.fixture
def four() -> Iterator[list[Roster]]:
    """Four processes of one store, all of which answer."""
    store = dist.HashStore()
    made = [joined(store, rank, 4, 5.0) for rank in range(4)]
    for own in made:
        own.watch(lambda: True)
    yield made
    for own in made:
        own.close()


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returns, or the error that it raises, from a thread each."""
    found: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        try:
            found[i] = calls[i]()
        except PeerError as error:
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_begin_in_one_list(four: list[Roster]) -> None:
    assert [own.processes for own in four] == [[0, 1, 2, 3]] * 4
    assert [own.rank for own in four] == [0, 1, 2, 3]


def test_those_that_are_left_go_on(four: list[Roster]) -> None:
    four[2].close()
    left = [four[0], four[1], four[3]]
    together(*(lambda own=own: own.without_lost(7, 5.0) for own in left))
    assert [own.processes for own in left] == [[0, 1, 3]] * 3
    assert [own.rank for own in left] == [0, 1, 2]
    assert {own.epoch for own in left} == {1}


def test_whose_optimizer_has_taken_most_steps_comes_first(four: list[Roster]) -> None:
    four[0].close()
    steps = {1: 7, 2: 8, 3: 8}
    together(*(lambda p=p: four[p].without_lost(steps[p], 5.0) for p in steps))
    assert four[1].processes == [2, 3, 1]


def test_who_computes_for_long_is_waited_for(four: list[Roster]) -> None:
    """It answers all the while, and comes later."""
    four[3].close()

    def late() -> None:
        time.sleep(1.0)
        four[2].without_lost(1, 5.0)

    together(late, *(lambda p=p: four[p].without_lost(1, 5.0) for p in (0, 1)))
    assert four[0].processes == [0, 1, 2]


def test_who_answers_and_never_comes_is_an_error(four: list[Roster]) -> None:
    (error,) = together(lambda: four[0].without_lost(1, 0.6))
    assert isinstance(error, PeerError)
    assert "process 1, 2, 3 still answers" in str(error)


def test_who_was_silent_is_told_that_the_others_went_on(four: list[Roster]) -> None:
    four[1].close()
    together(*(lambda p=p: four[p].without_lost(1, 5.0) for p in (0, 2, 3)))
    (error,) = together(lambda: four[1].without_lost(1, 5.0))
    assert "went on without this one" in str(error)
    assert "Start this process again" in str(error)


def test_ranks_are_lost_again_and_again(four: list[Roster]) -> None:
    for lost, left in ((3, (0, 1, 2)), (0, (1, 2)), (2, (1,))):
        four[lost].close()
        together(*(lambda p=p: four[p].without_lost(1, 5.0) for p in left))
        assert all(four[p].processes == list(left) for p in left)


def test_who_is_started_again_is_taken_up(four: list[Roster]) -> None:
    four[1].close()
    left = [four[0], four[2], four[3]]
    together(*(lambda own=own: own.without_lost(1, 5.0) for own in left))
    store = four[0].store

    def take_up() -> list[int]:
        while not (asking := four[0].asking()):
            time.sleep(0.03)
        for own in left:
            own.with_asking(asking)
        return asking

    asking, again = together(take_up, lambda: joined(store, 1, 4, 5.0))
    assert asking == [4]
    assert again.processes == [0, 2, 3, 4]
    assert again.rank == 3
    assert again.epoch == left[0].epoch == 2
    assert left[1].processes == again.processes
    assert four[0].asking() == [], "it is in the list"


def test_who_has_asked_and_died_is_not_taken_up(four: list[Roster]) -> None:
    (error,) = together(lambda: joined(four[0].store, 2, 4, 0.1))
    assert "none took it up" in str(error)
    four[0].asking()
    assert four[0].asking() == []


def test_who_dies_as_it_is_taken_up_is_lost(four: list[Roster]) -> None:
    for own in four:
        own.with_asking([4])
    together(*(lambda own=own: own.without_lost(1, 5.0) for own in four))
    assert all(own.processes == [0, 1, 2, 3] for own in four)
    assert four[0].epoch == 2
