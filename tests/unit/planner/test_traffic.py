"""A plan's traffic, and the step time that follows from it over a network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from profiles import profile, resnet50

from gradwire.buckets import Bucket, Parameter
from gradwire.cli.main import main
from gradwire.errors import PlanError
from gradwire.network import leaf_spine
from gradwire.network.demand import workload_of
from gradwire.network.placement import Placement
from gradwire.plan import Plan
from gradwire.planner.candidates import jobs_of, timeline_of
from gradwire.planner.profile import TableCost
from gradwire.planner.timeline import LINKS, Resource
from gradwire.planner.traffic import moves_of, traffic_of
from gradwire.strategy import Strategy

BF16 = Strategy.parse("bf16 | allreduce")
TOPK = Strategy.parse('topk(0.01)+ef | gtopk(variant="butterfly")')


def plan(strategy: Strategy, lanes: int = 2) -> Plan:
    return Plan.make(resnet50(), strategy, lanes=lanes)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("strategy", [BF16, TOPK])
def test_without_a_network_only_local_work_is_left(strategy: Strategy, lanes: int) -> None:
    """Where nothing is shared, the planner's own timeline remains, without its moves."""
    job = profile(parameters=resnet50())
    buckets = traffic_of(plan(strategy, lanes), job)
    ends = [0.0] * lanes
    for bucket in buckets:
        began = max(ends[bucket.lane], bucket.ready_seconds)
        ends[bucket.lane] = began + bucket.before_seconds + bucket.after_seconds
    made = workload_of(buckets, Placement.in_order(4), job.backward_seconds)
    assert made.work_seconds() == pytest.approx(max(*ends, job.backward_seconds))


def test_all_but_the_link_is_before_or_after() -> None:
    """They are encoding, starts of moves, and decoding: all of the planner's stages but links."""
    job, planned = profile(parameters=resnet50()), plan(BF16)
    jobs = jobs_of(job, planned)
    for bucket, stages in zip(traffic_of(planned, job), jobs, strict=True):
        assert stages is not None
        own = [s for s in stages.stages if s.lane not in LINKS]
        assert any(s.lane == Resource.LATENCY for s in own)
        told = bucket.before_seconds, bucket.after_seconds
        assert sum(told) == pytest.approx(sum(s.seconds for s in own))
        assert told[1] == pytest.approx(sum(s.seconds for s in own if s.kind == "decode"))
        starts = [s.seconds for s in own if s.lane == Resource.LATENCY]
        assert 0 < bucket.starting_seconds == pytest.approx(sum(starts))


def test_the_timeline_is_near() -> None:
    """Two models of the same step: links as one pipe with measured rates, or as they are. The
    profile's moves need a tenth more than their bytes."""
    job = profile(parameters=resnet50(), bits_per_second=1e9, start_seconds=0.0)
    made = workload_of(traffic_of(plan(BF16), job), Placement.in_order(4), job.backward_seconds)
    took = made.seconds(leaf_spine(1, 4, 1, host_gbps=1), tolerance=0.0)
    timeline = timeline_of(job, plan(BF16))
    assert 1.0 <= timeline.end_seconds / took < 1.12


def test_a_step_has_what_is_around_backward() -> None:
    """As in the planner's timeline: forward and the optimizer make the step longer, and none of
    its messages travels meanwhile."""
    job, host = profile(parameters=resnet50()), Placement.in_order(4)
    buckets, where = traffic_of(plan(BF16), job), leaf_spine(1, 4, 1, host_gbps=1)
    alone = workload_of(buckets, host, job.backward_seconds)
    made = workload_of(buckets, host, job.backward_seconds, 0.5)
    assert made.work_seconds() == pytest.approx(0.5 + alone.work_seconds())
    assert made.seconds(where) == pytest.approx(0.5 + alone.seconds(where))
    spans = [span for span in made.trace(where).spans if span.rank == 0]
    assert [(s.start_seconds, s.end_seconds) for s in spans if s.kind == "compute"] == [(0.0, 0.5)]
    assert min(s.start_seconds for s in spans if s.kind != "compute") == pytest.approx(0.5)


def test_exchanges_are_told_for_every_rank() -> None:
    assert len(moves_of(TOPK, [10_000], 4)) == 4
    assert len(moves_of(BF16, [10_000], 4)) == 1


def test_rows_are_refused() -> None:
    table = Parameter("table.weight", (1000, 16), sparse=True)
    job = profile(parameters=[*resnet50(), table])
    rows = Plan((Bucket((table,)),), (Strategy.parse("none | columns"),))
    with pytest.raises(PlanError, match="only in the profile"):
        traffic_of(rows, job)
    whole = Plan.make([*resnet50(), table], Strategy.parse("none | allreduce"))
    with pytest.raises(PlanError, match=r"table\.weight travel as rows"):
        traffic_of(whole, job)
    timed = replace(job, tables=(TableCost(("table.weight",), "none | allgather", 1.0, 1.0, 1.0),))
    rows_by = [
        Strategy.parse("none | allgather" if b.has_rows else "none | allreduce")
        for b in whole.buckets
    ]
    by_rows = Plan(whole.buckets, tuple(rows_by))
    with pytest.raises(PlanError, match=r"table\.weight travel as rows"):
        traffic_of(by_rows, timed)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The profile has four ranks, the topology 16; ranks at random places collide with hashes."""
    files = tmp_path / "plan.json", tmp_path / "profile.json"
    plan(BF16).save(files[0])
    profile(parameters=resnet50()).save(files[1])
    asked = [
        "network", "simulate", "--topology", "leaf_spine(4, 4, 4, host_gbps=1)", "--json",
        "--placement", "shuffled", "--step", str(files[0]), "--profile", str(files[1]),
    ]  # fmt: skip
    found = []
    for ranks in ("4", "16"):
        assert main([*asked, "--ranks", ranks]) == 0
        found.append(json.loads(capsys.readouterr().out))
    few, many = ({row["scheme"]: row["seconds"] for row in one["rows"]} for one in found)
    assert few["coloured"] < many["coloured"] < many["ecmp"]
    job = profile(parameters=resnet50())
    assert found[0]["least"] >= job.around_seconds + job.backward_seconds > 0.2
