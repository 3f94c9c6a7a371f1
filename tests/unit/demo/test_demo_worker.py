"""When a row ends, and what its optimizer keeps. Several ranks: tests/distributed/test_demo.py."""

import dataclasses

import pytest

from gradwire.demo import worker
from gradwire.demo.model import LanguageModel
from gradwire.demo.task import Point, Task

TASK = Task("ddp", "", "text.pt", "result.json", steps=10, steps_per_evaluation=5)


@pytest.mark.parametrize(
    ("target", "now", "ends"),
    [
        (None, Point(5, 99.0, 6.0), False),
        (None, Point(10, 1.0, 6.0), False),  # its least seconds are not over
        (None, Point(10, 3.0, 6.0), True),
        (5.0, Point(10, 3.0, 5.0), True),
        (5.0, Point(10, 3.0, 5.1), False),
        (5.0, Point(15, 20.0, 5.1), True),
    ],
)
def test_when_a_row_ends(target: float | None, now: Point, ends: bool) -> None:
    task = dataclasses.replace(TASK, least_seconds=2.0, target_loss=target, most_seconds=20.0)
    assert worker.finished(task, now) is ends


@pytest.mark.parametrize(("interface", "sent"), [("lo", 2000.0), ("eth0", 8000.0)])
def test_bytes_are_a_host_s_own(
    monkeypatch: pytest.MonkeyPatch, interface: str, sent: float
) -> None:
    """On loopback, all hosts share an interface and its counter."""
    counter, own = iter([500, 8500]), worker.Run.__new__(worker.Run)
    own._seconds, own._sent = [], []
    monkeypatch.setattr(own, "_step", lambda: None, raising=False)
    monkeypatch.setattr(worker, "bytes_sent", lambda: next(counter))
    monkeypatch.setattr(worker.dist, "barrier", lambda: None)
    monkeypatch.setenv("GRADWIRE_LAB_INTERFACE", interface)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "4")
    own._train(3)
    assert own._sent == [(3, sent)]


def test_alone_nothing_is_attached() -> None:
    model = LanguageModel(vocabulary=20, hidden=4)
    trained, momentum = worker.synchronized(model, dataclasses.replace(TASK, method="alone"))
    assert trained is model
    assert momentum == 0.9
