"""A training step of a parallel job: closed forms, and the effect of paths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradwire.errors import NetworkError
from gradwire.network import leaf_spine, rail_optimized
from gradwire.network.parallelism import (
    BACKWARD,
    FORWARD,
    RING,
    Parallelism,
    connections,
    workload_of,
)
from gradwire.network.placement import Placement

JOB = Parallelism(
    dp=4, pp=2, tp=2, gradient_bytes=8 * 10**6, activation_bytes=10**6, microbatches=3,
    forward_seconds=0.01, backward_seconds=0.02,
)  # fmt: skip
FAST = leaf_spine(4, 4, 4, host_gbps=1e6)


def test_work_alone_takes_its_seconds() -> None:
    one = replace(JOB, dp=1, pp=1, tp=1)
    assert workload_of(one).seconds(FAST) == pytest.approx(3 * 0.03)


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 4, 9])
def test_a_pipeline_fills_and_drains(pp: int, microbatches: int) -> None:
    """It takes (m + p - 1) (f + b): Narayanan et al. 2021, section 2.2."""
    job = replace(JOB, dp=1, tp=1, pp=pp, microbatches=microbatches)
    expected = (microbatches + pp - 1) * 0.03
    assert workload_of(job).seconds(FAST) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("dp", [2, 4, 16])
def test_gradients_go_round(dp: int) -> None:
    """After the last backward pass a host's link carries 2 (n - 1) / n of the bytes."""
    job = replace(JOB, dp=dp, pp=1, tp=1, gradient_bytes=16 * 10**6, microbatches=1)
    took = workload_of(job).seconds(leaf_spine(4, 4, 4, host_gbps=8), tolerance=0.0)
    assert took == pytest.approx(0.03 + 2 * (dp - 1) / dp * 16e6 / 1e9)


def test_buckets_begin_before_backward_ends() -> None:
    """Four buckets of 4 ms each are ready every 5 ms, so only the last is exposed."""
    job = replace(JOB, dp=16, pp=1, tp=1, gradient_bytes=16 * 10**6, microbatches=1, buckets=4)
    took = workload_of(job).seconds(leaf_spine(4, 4, 4, host_gbps=15), tolerance=0.0)
    assert took == pytest.approx(0.03 + 2 * 15 / 16 * 4e6 * 8 / 15e9)


def test_activations_hold_up_stages() -> None:
    """One microbatch goes through two stages and back, with a message each way."""
    job = replace(JOB, dp=1, tp=1, microbatches=1)
    took = workload_of(job).seconds(leaf_spine(2, 1, 1, host_gbps=8), Placement((0, 1)))
    assert took == pytest.approx(0.06 + 2 * 1e6 / 1e9)


def test_who_shares_a_machine_needs_no_network() -> None:
    job = replace(JOB, dp=1, tp=1, microbatches=1)
    took = workload_of(job).seconds(leaf_spine(2, 1, 1, host_gbps=8), Placement((0, 1), (0, 0)))
    assert took == pytest.approx(0.06)


def test_connections_are_of_stages_and_replicas() -> None:
    flows = connections(JOB)
    assert np.bincount(flows.step).tolist() == [8, 8, 16]
    forward, backward, ring = (flows[flows.step == kind] for kind in (FORWARD, BACKWARD, RING))
    assert sorted(zip(forward.src.tolist(), forward.dst.tolist())) == [
        (r, r + 8) for r in range(8)
    ]
    assert sorted(zip(backward.dst.tolist(), backward.src.tolist())) == [
        (r, r + 8) for r in range(8)
    ]
    assert {(b - a) % 8 for a, b in zip(ring.src.tolist(), ring.dst.tolist())} == {2}
    assert set(ring.bytes.tolist()) == {2 * 10**6}


@pytest.mark.parametrize("scheme", ["coloured", "spray", "wrap", "ecmp_k(2)"])
def test_every_piece_of_a_message_arrives_before_what_waits(scheme: str) -> None:
    topology = rail_optimized(2, 4, 2, 2)
    transfers = workload_of(JOB).transfers(topology, Placement.in_order(16, 2), scheme, 1)
    moved = transfers.bytes.sum()
    messages = 2 * 3 * 8 * 10**6 + 16 * 6 * 2 * 10**6
    assert moved == pytest.approx(messages)
    assert workload_of(JOB).seconds(topology, scheme=scheme) >= (3 + 1) * 0.03


def test_pinned_paths_are_faster_than_hashed_ones_at_random_places() -> None:
    job = replace(
        JOB, dp=32, gradient_bytes=64 * 10**6, forward_seconds=1e-3, backward_seconds=2e-3
    )
    topology = leaf_spine(16, 8, 8)
    where = Placement.shuffled(128, 1, 2)
    pinned, hashed = (workload_of(job).seconds(topology, where, s) for s in ("coloured", "ecmp"))
    assert hashed > 1.2 * pinned


def test_a_trace_shows_passes_and_messages() -> None:
    """All microbatches, forward and backward; activations, their gradients, and rings."""
    made = workload_of(replace(JOB, buckets=3))
    trace = made.trace(leaf_spine(4, 4, 4))
    assert max(s.end_seconds for s in trace.spans) == pytest.approx(
        made.seconds(leaf_spine(4, 4, 4))
    )
    passes = JOB.ranks * JOB.microbatches
    assert len(list(trace.of("compute"))) == passes
    assert len(list(trace.of("backward"))) == passes + 2 * JOB.ranks, "the last in three parts"
    between = (JOB.pp - 1) * JOB.dp * JOB.tp * JOB.microbatches
    assert len(list(trace.of("wire"))) == 2 * between + 3 * JOB.ranks
    for span in trace.of("compute"):
        assert span.seconds == pytest.approx(JOB.forward_seconds)
    around = 2 * (JOB.dp - 1) * JOB.part_bytes
    assert sum(trace.bytes_sent) == pytest.approx(
        2 * between * JOB.activation_bytes + JOB.ranks * around, rel=1e-5
    )


def test_a_tolerance_changes_little() -> None:
    topology = leaf_spine(4, 4, 4)
    exact, rough = (
        workload_of(JOB).seconds(topology, scheme="ecmp", tolerance=t) for t in (0.0, 0.02)
    )
    assert rough == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"dp": 0}, "dp must be a whole number, 1 to"),
        ({"forward_seconds": -1.0}, "forward_seconds must be a finite number, 0 to"),
        ({"buckets": 1.5}, "buckets must be a whole number"),
    ],
)
def test_jobs_that_cannot_be_are_refused(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        replace(JOB, **wrong)  # type: ignore[arg-type]


def test_ranks_beyond_the_hosts_are_refused() -> None:
    with pytest.raises(NetworkError, match="a flow with host"):
        workload_of(JOB).seconds(leaf_spine(2, 2, 2))
