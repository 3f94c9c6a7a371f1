"""Computation, messages and dependencies: closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from network_moves import move

from gradwire.errors import NetworkError
from gradwire.network import Flows, leaf_spine
from gradwire.network.demand import workload_of
from gradwire.network.patterns import ring
from gradwire.network.placement import Placement
from gradwire.network.workload import Workload
from gradwire.planner.priced import PricedMove
from gradwire.trace import TRAINING_THREAD

FOUR = leaf_spine(2, 2, 2, host_gbps=8)  # 1 byte each nanosecond


@dataclass(frozen=True)
class Bucket:
    lane: int = 0
    ready_seconds: float = 0.0
    before_seconds: float = 0.0
    after_seconds: float = 0.0
    moves: tuple[tuple[PricedMove, ...], ...] = ((),)
    name: str = "bucket"
    starting_seconds: float = 0.0


RING = Bucket(moves=((move("all_reduce", 4_000_000),),))  # 6 ms


def took(*buckets: Bucket, backward: float = 0.0) -> float:
    made = workload_of(buckets, Placement.in_order(4), backward)
    return made.seconds(FOUR, tolerance=0.0)


def test_a_collective_waits_for_its_last_rank() -> None:
    """Rank 2 begins 10 ms late; the all-reduce then takes 6 ms more."""
    late = Workload(4)
    begin = late.work(np.array([0.0, 0.0, 0.01, 0.0]), 4)
    end = late.exchange(begin, ring(4, 4_000_000))
    assert late.seconds(FOUR, tolerance=0.0) == pytest.approx(0.016)
    assert end.tolist() == list(range(late.rows - 4, late.rows))


def test_who_takes_no_part_waits_for_nobody() -> None:
    pair = Workload(4)
    begin = pair.work(0.0, 4)
    end = pair.exchange(begin, Flows([0], [1], [1000]))
    assert end[2:].tolist() == begin[2:].tolist()
    assert not set(end[:2].tolist()) & set(begin.tolist())


def test_who_only_receives_may_be_late_too() -> None:
    """The message arrives after 1 ms, but rank 2 is busy until 5 ms, and goes on then."""
    late = Workload(4)
    begin = late.work(np.array([0.0, 0.0, 0.005, 0.0]), 4)
    end = late.exchange(begin, Flows([0], [2], [1_000_000]))
    late.wait(end[2:3], late.work(0.001, 1))
    assert late.seconds(FOUR, tolerance=0.0) == pytest.approx(0.006)


def test_a_trace_says_when_each_rank_does_what() -> None:
    """A bucket is ready after 3 ms, is encoded for 1, goes around a ring for 6 and is decoded for
    2; another one has nothing to send."""
    bucket = replace(RING, ready_seconds=0.003, before_seconds=0.001, after_seconds=0.002)
    nothing = Bucket(lane=1, ready_seconds=0.004, after_seconds=0.001, name="other")
    made = workload_of([bucket, nothing], Placement.in_order(4), 0.005)
    trace = made.trace(FOUR, tolerance=0.0)
    assert trace.world == 4
    for rank in range(4):
        found = [span for span in trace.spans if span.rank == rank and span.seconds > 0]
        told = [(s.kind, s.label, s.lane, s.start_seconds, s.end_seconds) for s in found]
        wanted = [
            ("backward", "", TRAINING_THREAD, 0.0, 0.005),
            ("encode", "bucket", 0, 0.003, 0.004), ("wire", "bucket", 0, 0.004, 0.010),
            ("decode", "other", 1, 0.004, 0.005), ("decode", "bucket", 0, 0.010, 0.012),
        ]  # fmt: skip
        assert [span[:3] for span in told] == [span[:3] for span in wanted]
        assert [span[3:] for span in told] == [pytest.approx(span[3:]) for span in wanted]
    assert trace.bytes_sent == [6_000_000.0] * 4
    assert max(s.end_seconds for s in trace.spans) == pytest.approx(0.012)


def test_starting_moves_is_no_encoding() -> None:
    """A lane's second bucket, too, is encoded for 1 ms, and starts its moves for 3."""
    bucket = replace(RING, before_seconds=0.004, starting_seconds=0.003)
    made = workload_of([bucket, bucket], Placement.in_order(4))
    spans = [s for s in made.trace(FOUR, tolerance=0.0).spans if s.rank == 0 and s.seconds > 0]
    assert [s.kind for s in spans] == ["encode", "wire", "wire"] * 2
    ends = [s.end_seconds for s in sorted(spans, key=lambda s: s.start_seconds)]
    assert ends == pytest.approx([0.001, 0.004, 0.010, 0.011, 0.014, 0.020])
    whole = [replace(own, starting_seconds=0.0) for own in (bucket, bucket)]
    assert took(*whole) == pytest.approx(0.020), "as long as without the difference"


def test_a_span_lasts_until_all_pieces_are_there() -> None:
    """A message that is cut goes over both spines."""
    made = Workload(4)
    sent = made.send(made.connect(Flows([0], [2], [2_000_000])), 2_000_000)
    made.show("wire", "message", np.array([0]), sent, bytes=2_000_000)
    (span,) = made.trace(FOUR, scheme="spray", tolerance=0.0).spans
    assert span.seconds == pytest.approx(0.002), "as the host's own link takes"
    assert span.bytes == 2_000_000


def test_connections_are_kept() -> None:
    """A ring has a connection a rank; its lane uses them again, other lanes have their own."""
    made = Workload(4)
    end = made.exchange(made.work(0.0, 4), ring(4, 4000))
    assert len(made.connections()) == 4
    made.exchange(end, ring(4, 4000))
    assert len(made.connections()) == 4
    made.exchange(end, ring(4, 8001))
    assert len(made.connections()) == 4
    made.exchange(end, ring(4, 4000), lane=1)
    assert len(made.connections()) == 8


def test_messages_of_a_connection_may_differ() -> None:
    """Messages of 1 MB and 3 MB are cut as their connection is."""
    made = Workload(4)
    connection = made.connect(Flows([0], [2], [10]))
    first = made.send(connection, 1_000_000)
    made.wait(first, made.send(connection, 3_000_000))
    for scheme in ("coloured", "spray", "ecmp_k(2)"):
        assert made.seconds(FOUR, scheme=scheme, tolerance=0.0) == pytest.approx(0.004)


def test_a_bucket_waits_encodes_moves_and_decodes() -> None:
    one = replace(RING, ready_seconds=0.01, before_seconds=0.002, after_seconds=0.003)
    assert took(one) == pytest.approx(0.021)
    assert took(one, backward=0.05) == pytest.approx(0.05)


def test_a_lane_takes_one_bucket_after_the_other() -> None:
    slow = replace(RING, before_seconds=0.004)
    assert took(slow, slow) == pytest.approx(0.02)


def test_two_lanes_work_at_once_and_share_links() -> None:
    """The second begins 3 ms after the first: 3 ms alone, 6 ms at half rate, 3 ms alone."""
    second = replace(RING, lane=1, before_seconds=0.003)
    assert took(RING, second) == pytest.approx(0.012)
    assert took(replace(RING, before_seconds=0.1), RING) == pytest.approx(0.112)
    assert took(replace(RING, before_seconds=0.1), replace(RING, lane=1)) == pytest.approx(0.106)


def test_moves_follow_each_other() -> None:
    """1 MB goes to each of 3 owners, and then on to all."""
    there_and_back = (move("all_to_all", 4_000_000), move("all_gather", 1_000_000))
    assert took(Bucket(moves=(there_and_back,))) == pytest.approx(0.006)


def test_work_alone() -> None:
    made = workload_of(
        [replace(RING, ready_seconds=0.01, after_seconds=0.002)], Placement.in_order(4), 0.005
    )
    assert made.work_seconds() == pytest.approx(0.012)


def test_a_machine_of_its_own_needs_no_network() -> None:
    made = workload_of([RING], Placement.in_order(4, 4))
    assert made.seconds(FOUR, Placement.in_order(4, 4)) == 0.0


def test_what_waits_for_itself_is_refused() -> None:
    made = Workload(2)
    rows = made.work(1.0, 2)
    made.wait(rows, rows[::-1])
    for seconds in (made.work_seconds, lambda: made.seconds(FOUR)):
        with pytest.raises(NetworkError, match="in a circle"):
            seconds()


def test_nothing_takes_no_time() -> None:
    assert Workload(3).seconds(FOUR) == 0.0
    assert Workload(3).work_seconds() == 0.0


def made() -> Workload:
    """A workload of three rows, with a connection between the first two of three ranks."""
    own = Workload(3)
    own.work(1.0, 3)
    own.connect(Flows([0], [1], [10]))
    return own


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda w: w.show("wire", "x", [3], [0]), "ranks must be whole numbers from 0 to 2"),
        (lambda w: w.show("wire", "x", [0], [9]), "rows that spans begin with .* is 9"),
        (lambda w: w.show("wire", "x", [0], [0], [9]), "rows that spans end with .* is 9"),
        (lambda w: w.show("wire", "x", [0, 1], [0]), "the same length; got 2 of rank"),
        (lambda w: w.work(math.nan, 1), "seconds of work must be numbers from 0 .* is nan"),
        (lambda w: w.work(math.inf, 1), "is inf"), (lambda w: w.work(-1.0, 1), "is -1.0"),
        (lambda w: w.work(np.ones(2), 3), "one value for each of 3 rows, or one for all; got 2"),
        (lambda w: w.work(1.0, -1), "rows of work .* got -1"),
        (lambda w: w.work(1.0, 1 << 62), "rows of work .* at most 16777216"),
        (lambda w: w.wait(np.array([3]), np.array([0])), "wait .* 0 to 2; number 0 is 3"),
        (lambda w: w.wait(np.array([0]), np.array([-1])), "number 0 is -1"),
        (lambda w: w.wait(np.arange(2), np.arange(1)), "got 2 of before, 1 of after"),
        (lambda w: w.send(np.array([1]), 10), "connections must be whole numbers from 0 to 0"),
        (lambda w: w.send(np.array([0]), -10), "bytes of messages .* is -10"),
        (lambda w: w.connect(Flows([0], [3], [10])), "from 0 to 2; got a flow with rank 3"),
        (lambda w: w.exchange(np.array([0, 1]), Flows([0], [1], [1])), "each of 3 rows, .* got 2"),
        (lambda w: w.exchange(np.array([0, 1, 9]), Flows([0], [1], [1])), "number 2 is 9"),
        (lambda w: Workload(0), "ranks is a whole number of at least 1"),
        (lambda w: Workload(1 << 31), "at most 16777216; got 2147483648"),
    ],
)  # fmt: skip
def test_rows_that_are_not_there_are_refused(use: Callable[[Workload], None], said: str) -> None:
    """They are refused before anything runs, and the rows added so far stay as they were."""
    own = made()
    with pytest.raises(NetworkError, match=said):
        use(own)
    assert own.rows == 3
    assert own.work_seconds() == 1.0
