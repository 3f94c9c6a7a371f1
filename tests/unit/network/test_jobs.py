"""Two jobs on one fabric: each goes through its own steps, and they share common links."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradwire.errors import NetworkError
from gradwire.extension import VARIABLE
from gradwire.network import Flows, Link, leaf_spine, outages, route, simulate_jobs
from gradwire.network.engines.packet import send
from gradwire.network.engines.transport import Transport
from gradwire.network.jobs import routed, together
from gradwire.network.sharing import Job, jobs_of, placed

FABRIC = leaf_spine(2, 2, 1, host_gbps=8, fabric_gbps=8)
"""Leaves have one link each way, on which a megabyte takes a millisecond."""
MB = 10**6
ENGINES = pytest.mark.parametrize("engine", ["flow", "packet"])
KERNELS = pytest.mark.parametrize("kernels", ["", "twin"])
HOW = Transport(packet_bytes=1000, latency_ns=1.0)


def ends(engine: str, *flows: Flows) -> list[float]:
    """The milliseconds at which each job ends."""
    jobs = routed(flows, FABRIC, "coloured")
    found = simulate_jobs(jobs, engine, transport=HOW)  # type: ignore[arg-type]
    return (found * 1e3).tolist()


@ENGINES
@KERNELS
def test_jobs_that_meet_share(engine: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a millisecond alone, both two. If the second begins half a millisecond later, the
    first has half left, which takes twice as long."""
    monkeypatch.setenv(VARIABLE, kernels)
    one, other = Flows([0], [2], MB), Flows([1], [3], MB)
    assert ends(engine, one) == pytest.approx([1.0], rel=0.01)
    assert ends(engine, one, other) == pytest.approx([2.0, 2.0], rel=0.01)
    later = Flows([1], [3], MB, 0, 500_000)
    assert ends(engine, one, later) == pytest.approx([1.5, 2.0], rel=0.07)


@ENGINES
@KERNELS
def test_steps_are_of_each_job(engine: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first job's three steps go up, the second's two come down: they share no link, and
    neither waits for the other's steps."""
    monkeypatch.setenv(VARIABLE, kernels)
    one = Flows([0, 1, 0], [2, 3, 2], [MB // 4, MB // 2, MB // 4], [0, 1, 7])
    other = Flows([2, 3], [0, 1], [2 * MB, MB], [3, 4], [0, 0])
    assert ends(engine, one, other) == pytest.approx([1.0, 3.0], rel=0.02)
    assert ends(engine, other, one) == pytest.approx([3.0, 1.0], rel=0.02)


@ENGINES
def test_one_job_is_as_if_there_were_no_others(engine: str) -> None:
    """Jobs that share no link do not change each other; and each job has its own hashes."""
    fabric = leaf_spine(4, 4, 4)
    flows = Flows(np.arange(8), np.arange(8) + 8, MB)
    (alone,) = simulate_jobs(routed([flows], fabric, "ecmp", 3), engine)  # type: ignore[arg-type]
    far = Flows([0], [1], 1)
    both = simulate_jobs(routed([flows, far], fabric, "ecmp", 3), engine)  # type: ignore[arg-type]
    assert both[0] == pytest.approx(alone, rel=1e-12)
    one, other = routed([flows, flows], fabric, "ecmp", 3)
    assert one.path.tolist() != other.path.tolist()


def test_rows_of_jobs_follow_each_other() -> None:
    fabric = leaf_spine(2, 2, 3)
    jobs = [route(Flows([0, 1], [2, 3], 1000, [0, 4]), fabric, scheme)
            for scheme in ("ethereal", "coloured")]  # fmt: skip
    all = together(jobs)
    assert all.offset.tolist() == [0, len(jobs[0].flow), len(jobs[0].flow) + 2]
    assert all.job.tolist() == [0, 0, 1, 1]
    assert all.routes.flows.step.tolist() == [0, 4, 5, 9]
    size = all.routes.amount / all.routes.unit
    assert np.bincount(all.routes.flow, size).tolist() == pytest.approx([1000] * 4)
    assert len(send(jobs).seconds) == all.offset[-1]


@ENGINES
def test_all_jobs_go_around_what_failed(engine: str) -> None:
    fabric = leaf_spine(2, 2, 2, host_gbps=8, fabric_gbps=8)
    flows = [Flows([0], [2], MB), Flows([1], [3], MB)]
    jobs = routed(flows, fabric, "coloured")
    dying = outages(flows, fabric, "coloured", {Link("leaf0", "spine0"): 0.0}, 0.0)
    took = simulate_jobs(jobs, engine, transport=HOW, outages=dying)  # type: ignore[arg-type]
    assert (took * 1e3).tolist() == pytest.approx([2.0, 2.0], rel=0.01)


def test_what_is_no_set_of_jobs_is_refused() -> None:
    flows = Flows([0], [2], MB)
    jobs = [route(flows, FABRIC), route(flows, leaf_spine(2, 2, 2))]
    with pytest.raises(NetworkError, match="jobs must share one topology"):
        simulate_jobs(jobs)
    with pytest.raises(NetworkError, match="at least one job must run; got none"):
        simulate_jobs([])
    with pytest.raises(NetworkError, match=r"several jobs at once, .* got 'static'"):
        simulate_jobs(jobs[:1] * 2, "static")
    assert simulate_jobs(jobs[:1], "static") == pytest.approx([1e-3])


def test_jobs_have_hosts_of_their_own() -> None:
    """Named hosts go first, then the next free ones, in the scheduler's order."""
    jobs = [Job("ring", MB, ranks=2), Job("ring", MB, hosts=[5, 1]), Job("direct", MB, ranks=3,
            start_seconds=0.5, name="late")]  # fmt: skip
    first, second, third = placed(jobs, [7, 1, 4, 0, 3, 2, 5, 6])
    assert set(first.flows.src) == {7, 4}
    assert set(second.flows.src) == {5, 1}
    assert set(third.flows.src) == {0, 3, 2}
    assert (first.name, third.name, third.start_seconds) == ("job0", "late", 0.5)
    assert set(third.flows.start_ns[third.flows.step == 0]) == {500_000_000}
    assert set(third.flows.start_ns[third.flows.step > 0]) == {0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[job]]\ntraffic = "ring"\n', "a job needs either ranks or hosts; got neither"),
        ("[[job]]\nranks = 2\nhosts = [0, 1]\n", "a job needs either ranks or hosts; got both"),
        ("[[job]]\nranks = 0\n", r"job\[0\].ranks must be a whole number"),
        ("[[job]]\nrank = 2\n", "rank"),
        ("job = []\n", "job must be a list of at least 1"),
        ("[[job]\n", "must be written in TOML"),
    ],
)
def test_files_of_jobs_that_cannot_be_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_text(text)
    with pytest.raises(NetworkError, match=said):
        jobs_of(str(tmp_path / "jobs.toml"))


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([Job(ranks=5)], "job 0 needs 5, and 4 are left"),
        ([Job(hosts=[0, 1]), Job(ranks=3)], "job 1 needs 3, and 2 are left"),
        ([Job(hosts=[0, 1]), Job(hosts=[1, 2])], "of one job; got 1 twice"),
        ([Job(hosts=[0, 4])], "one of 0 to 3, and of one job; got 4"),
    ],
)
def test_hosts_that_are_not_there_are_refused(jobs: list[Job], said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        placed(jobs, range(4))
