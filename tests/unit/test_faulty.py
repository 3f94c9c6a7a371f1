"""Faults on purpose: each happens at its move, rank and lane, and nowhere else."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.errors import UsageError
from gradwire.moves import AllReduce, Exchange
from gradwire.runtime.conductor import Conductor
from gradwire.testing import Corrupt, Die, Fail, Fault, FaultyPerformer, Jitter, Stall, inject


@dataclass
class Echo:
    """A performer whose moves return what they send."""

    rank: int = 0
    world: int = 2
    is_closed: bool = False

    def perform(self, move: Any, label: str) -> Any:
        return dict(move.sends) if isinstance(move, Exchange) else move.data

    def bytes_sent(self, move: Any) -> float:
        return 4.0 * move.data.numel()

    def close(self) -> None:
        self.is_closed = True


def faulty(*faults: Fault) -> Any:
    return FaultyPerformer(Echo(), faults)  # type: ignore[arg-type]


def performed(performer: Any, moves: int = 4) -> list[list[float]]:
    """The results of all-reduces of ones, move by move."""
    return [performer.perform(AllReduce(torch.ones(2)), "x").tolist() for _ in range(moves)]


@pytest.mark.parametrize("sent", [True, False])
def test_one_move_is_spoilt(sent: bool) -> None:
    found = performed(faulty(Corrupt(2, Tensor.zero_, sent)))
    assert found == [[1, 1], [1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize("sent", [True, False])
def test_all_that_an_exchange_moves_is_spoilt(sent: bool) -> None:
    move = Exchange({1: torch.ones(2), 2: torch.ones(3)}, {})
    found = faulty(Corrupt(0, Tensor.zero_, sent)).perform(move, "x")
    assert [x.tolist() for x in found.values()] == [[0, 0], [0, 0, 0]]
    assert sent == bool(move.sends[1].all()), "what arrives is changed in place, what is sent not"


def test_an_error_of_its_own() -> None:
    performer = faulty(Fail(1, ValueError("told to")))
    performed(performer, 1)
    with pytest.raises(ValueError, match="told to"):
        performed(performer, 1)
    assert performed(performer, 1) == [[1, 1]]


def test_it_sleeps_where_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    performed(faulty(Stall(3, 7.0)))
    assert slept == [7.0]
    performed(faulty(Jitter(0.5, 0.5, seed=1)), 100)
    assert 30 < len(slept) < 70
    assert max(slept[1:]) < 0.5


def test_a_rank_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *words: told.append(words))
    performed(faulty(Die(1)))
    assert told == [(os.getpid(), signal.SIGKILL)]


def test_all_else_is_the_inner_performer_s() -> None:
    performer = faulty()
    assert (performer.rank, performer.world) == (0, 2)
    assert performer.bytes_sent(AllReduce(torch.ones(2))) == 8.0
    performer.close()
    assert performer._inner.is_closed


@pytest.mark.parametrize(
    ("asked", "struck"),
    [({}, [True, True]), ({"lane": 1}, [False, True]), ({"rank": 1}, [False, False])],
)
def test_faults_are_of_a_rank_and_a_lane(asked: dict[str, int], struck: list[bool]) -> None:
    conductor = Conductor.__new__(Conductor)
    performers: list[Any] = [Echo() for _ in range(2)]
    conductor._lanes = [SimpleNamespace(performer=x) for x in performers]  # type: ignore[misc]
    conductor.performers = list(performers)
    session = SimpleNamespace(conductor=conductor, performers=performers, circle=performers[0])
    handle: Any = SimpleNamespace(_session=session)
    for attached in (conductor, handle):
        inject(attached, Fault(), **asked)
    assert [isinstance(x.performer, FaultyPerformer) for x in conductor._lanes] == struck


def test_faults_need_a_handle() -> None:
    with pytest.raises(UsageError, match=r"what gradwire\.attach returned.*; got Linear"):
        inject(torch.nn.Linear(2, 2), Fault())  # type: ignore[arg-type]


def test_moves_of_the_host_s_memory_are_counted_with_the_others() -> None:
    class Twofold(Echo):
        def at(self, device: torch.device) -> Echo:
            return Echo(rank=7) if device.type == "meta" else self

    faulty = FaultyPerformer(Twofold(), [Corrupt(1, Tensor.zero_)])  # type: ignore[arg-type]
    found = []
    for device in ("cpu", "meta", "cpu"):
        assert faulty.at(torch.device(device)) is faulty, "what is at the host is faulty, too"
        found += performed(faulty, 1)
    assert found == [[1, 1], [0, 0], [1, 1]]
