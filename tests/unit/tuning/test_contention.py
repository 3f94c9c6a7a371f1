"""The sharing of processors, worked out from measured slowdowns."""

from __future__ import annotations

import math

import pytest

from gradwire.planner.profile import CONTENTION, Contention
from gradwire.planner.timeline import Executor, Job, Resource, Stage, simulate
from gradwire.tuning.contention import cores_of, demand_of, sharing_of


def test_what_is_not_slowed_has_processors_for_all() -> None:
    assert cores_of(1.0) == math.inf
    assert cores_of(1.05) == math.inf
    assert demand_of(1.5, math.inf) == 0.0


@pytest.mark.parametrize(("slowdown", "cores"), [(2.0, 1.0), (1.25, 1.6), (5.0, 1.0)])
def test_two_that_share_a_processor_take_twice_as_long(slowdown: float, cores: float) -> None:
    assert cores_of(slowdown) == cores


@pytest.mark.parametrize("slowdown", [1.25, 1.5, 2.0])
def test_the_timeline_slows_backward_as_was_measured(slowdown: float) -> None:
    beside = Job(0.0, (Stage(Resource.WORKERS, 100.0, "encode"),))
    executor = Executor(cores=cores_of(slowdown), backward_seconds=1.0)
    assert simulate([beside], executor).backward_end_seconds == pytest.approx(slowdown)


def test_moves_that_slow_nothing_demand_nothing() -> None:
    assert demand_of(1.0, 1.0) == 0.0
    assert demand_of(1.5, 1.0) == pytest.approx(0.5)
    assert demand_of(1.2, 1.6) == pytest.approx(0.92)


def test_start_ups_pass_at_once_or_one_after_the_other() -> None:
    assert sharing_of(1.0) == 0.0
    assert sharing_of(0.8) == 0.0
    assert sharing_of(1.5) == pytest.approx(0.5)
    assert sharing_of(2.0) == 1.0


def test_infinity_is_null_in_json() -> None:
    assert Contention().to_json()["cores"] is None
    assert CONTENTION.read(Contention().to_json()) == Contention()


def test_files_of_before_have_the_defaults() -> None:
    old = {"cores": 1.5, "wire_demand": 0.25}
    assert CONTENTION.read(old) == Contention(1.5, 0.25, 1.0, 0.0, 0.0, 0.0)
