"""Profiles as files, their refusals, and the stages made from them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PlanError
from gradwire.plan import Plan
from gradwire.planner.candidates import jobs_of
from gradwire.planner.choose import choose
from gradwire.planner.curves import Curve
from gradwire.planner.fit import Fit
from gradwire.planner.profile import Contention, LocalCost, Profile, Ready, StrategyCost
from gradwire.planner.stages import Bucketed, Stages
from gradwire.planner.timeline import Resource, simulate
from gradwire.strategy import Strategy

FP32 = "none | allreduce"


def affine(fixed: float, per_unit: float) -> Fit:
    return Fit(Curve(((0.0, fixed),), per_unit), 0.01, 0.02)


COST = StrategyCost(
    affine(1e-5, 1e-9), affine(1e-3, 4e-8), affine(1e-5, 1e-9), affine(0, 4),
    latency_seconds=1e-3, per_parameter_seconds=1e-5,
)  # fmt: skip
PROFILE = Profile(
    ready=(
        Ready(Parameter("b", (100, 10)), 0.01, 0.5),
        Ready(Parameter("table", (9, 2), sparse=True), 0.015),
        Ready(Parameter("a", (100, 10)), 0.02),
    ),
    backward_seconds=0.02, around_seconds=0.005, hosts=("one", "two"),
    contention=Contention(1.5, 0.25, 3.0, 0.5, 0.2, 0.001), strategies={FP32: COST},
    compressors={"bf16 @ cpu": LocalCost(affine(1, 1), affine(1, 1), affine(1, 1))},
    moves={"all_reduce float32 world": affine(1e-3, 1e-8)}, versions={"torch": "2.13"},
    moments_seconds=0.002,
)  # fmt: skip


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    assert Profile.from_json(PROFILE.to_json()) == PROFILE
    calm = replace(PROFILE, contention=Contention())
    calm.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == calm


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for hosts in (("one", "two"), ("three",)):
        replace(PROFILE, hosts=hosts).save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json").hosts == ("three",)
    assert [p.name for p in tmp_path.iterdir()] == ["profile.json"]


def test_the_dtype_is_that_of_most_dense_gradients() -> None:
    rows = [("a", (4, 4), "float32", False), ("b", (5, 5), "bfloat16", False),
            ("c", (90, 90), "float16", True)]  # fmt: skip
    ready = tuple(Ready(Parameter(*row), 0.0) for row in rows)
    assert replace(PROFILE, ready=ready).dtype == "bfloat16"
    assert replace(PROFILE, ready=()).dtype == "float32"


def test_files_of_before_are_read() -> None:
    data = json.loads(PROFILE.to_json())
    data["contention"] = {"cores": None, "wire_demand": 0.25}
    assert Profile.from_json(json.dumps(data)).contention == Contention(wire_demand=0.25)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "written in JSON"),
        ("[]", "must be a table of parameters, hosts"),
        ("{}", "format 1"),
        ('{"format": 2}', "format 1"),
        ('{"format": 1}', "no 'parameters'. Make one with `gradwire profile`"),
    ],
)
def test_what_is_no_profile_is_refused(text: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Profile.from_json(text)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("backward_seconds", -1, "backward_seconds must be a finite number"),
        ("around_seconds", math.nan, "NaN is not a JSON number"),
        ("hosts", "ab", "hosts must be a list"),
        ("hosts", [], "hosts must be a list of at least 1"),
    ],
)
def test_what_is_wrong_is_named(key: str, value: object, said: str) -> None:
    document = {**json.loads(PROFILE.to_json()), key: value}
    with pytest.raises(PlanError, match=said):
        Profile.from_json(json.dumps(document))


@pytest.mark.parametrize("dtype", ["x", "int8", "complex64"])
def test_a_dtype_that_is_not_exchanged_is_refused(dtype: str) -> None:
    """Else it was priced as of four bytes, or ended with an error of torch."""
    data = json.loads(PROFILE.to_json())
    data["parameters"][0]["dtype"] = dtype
    said = rf"parameters\[0\]\.dtype must be one of float16, .*; got '{dtype}'"
    with pytest.raises(PlanError, match=said):
        Profile.from_json(json.dumps(data))


def test_a_parameter_that_is_there_twice_is_refused() -> None:
    document = json.loads(PROFILE.to_json())
    document["parameters"].append(document["parameters"][0])
    with pytest.raises(PlanError, match="must differ from the names"):
        Profile.from_json(json.dumps(document))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"nothing\.json"):
        Profile.load(tmp_path / "nothing.json")


def test_a_profile_of_another_model_is_refused() -> None:
    PROFILE.check(PROFILE.parameters)
    with pytest.raises(PlanError, match="only in the model: other"):
        PROFILE.check([*PROFILE.parameters, Parameter("other", (1,))])


def test_a_strategy_that_was_not_measured_is_named() -> None:
    with pytest.raises(PlanError, match=r"'bf16 \| allreduce' was not"):
        PROFILE.cost("bf16 | allreduce")


# -- stages --------------------------------------------------------------------------------


def seconds(profile: Profile, lane: Resource, elements: int, kind: str = "wire") -> float:
    bucket = Bucketed(elements, 1, 0.0)
    stages = Stages(profile).of(bucket, FP32)
    return sum(s.seconds for s in stages if s.lane == lane and s.kind == kind)


def test_of_an_affine_move_the_link_has_what_grows() -> None:
    assert COST.link_seconds(1_000_000) == pytest.approx(0.04)
    assert seconds(PROFILE, Resource.CROSS, 1_000_000) == pytest.approx(0.04)


def test_a_start_up_is_waiting_and_what_it_costs_is_the_executors() -> None:
    assert seconds(PROFILE, Resource.WORKERS, 1_000_000) == 0.0
    assert seconds(PROFILE, Resource.LATENCY, 1_000_000) == pytest.approx(1e-3)
    shared, executor = PROFILE.contention, Stages(PROFILE).executor(2)
    assert executor.start_slowdown == shared.start_slowdown > 1.0
    assert executor.start_sharing == shared.start_sharing > 0.0
    assert executor.start_demand == shared.start_demand > 0.0


def test_a_floor_is_no_start_up_of_large_messages() -> None:
    floor = Curve(((0.0, 1e-3), (25_000.0, 1e-3)), 4e-8)  # the line itself begins at zero
    cost = replace(COST, wire=Fit(floor), latency_seconds=1e-3)
    assert cost.link_seconds(10) == pytest.approx(4e-7)
    assert cost.link_seconds(25_000) == pytest.approx(1e-3)
    assert cost.link_seconds(1_000_000) == pytest.approx(4e-2)


def test_all_parts_of_a_move_are_its_whole() -> None:
    for elements in (1, 1000, 100_000, 10_000_000):
        lanes = (Resource.WORKERS, Resource.LATENCY, Resource.CROSS)
        whole = sum(seconds(PROFILE, lane, elements) for lane in lanes)
        assert whole == pytest.approx(COST.wire(elements))


def test_ranks_of_one_machine_share_its_own_link() -> None:
    together = replace(PROFILE, hosts=("one", "one"))
    assert Stages(together).link == Resource.NODE
    assert seconds(together, Resource.NODE, 1_000_000) > 0


def test_a_lane_wakes_late_but_not_after_backward() -> None:
    stages = Stages(PROFILE)
    assert stages.job(Bucketed(10, 1, 0.010), FP32).ready_seconds == pytest.approx(0.011)
    assert stages.job(Bucketed(10, 1, 0.0195), FP32).ready_seconds == pytest.approx(0.020)
    assert stages.job(Bucketed(10, 1, 0.030), FP32).ready_seconds == pytest.approx(0.030)


def test_jobs_of_a_plan_are_its_buckets_in_their_order() -> None:
    b, table, a = PROFILE.parameters
    strategies = (Strategy.parse(FP32), Strategy.parse("none | columns"), Strategy.parse(FP32))
    plan = Plan((Bucket((b,)), Bucket((table,)), Bucket((a,))), strategies, 2)
    first, rows, last = jobs_of(PROFILE, plan)
    assert first is not None
    assert last is not None
    assert rows is None, "of rows nobody measured the cost"
    assert [job.ready_seconds for job in (first, last)] == pytest.approx([0.011, 0.020])
    assert first.stages


def test_a_chosen_plan_takes_as_long_as_its_jobs() -> None:
    found = choose(PROFILE)
    stages = Stages(PROFILE)
    jobs = [job for job in jobs_of(PROFILE, found.best.plan) if job]
    timeline = simulate(jobs, stages.executor(found.best.plan.lanes))
    assert timeline.iteration_seconds == pytest.approx(found.best.seconds)
    assert found.lower_bound <= found.best.seconds * (1 + 1e-9)
