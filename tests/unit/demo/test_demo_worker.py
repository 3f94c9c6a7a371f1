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


def test_alone_nothing_is_attached() -> None:
    model = LanguageModel(vocabulary=20, hidden=4)
    trained, momentum = worker.synchronized(model, dataclasses.replace(TASK, method="alone"))
    assert trained is model
    assert momentum == 0.9
