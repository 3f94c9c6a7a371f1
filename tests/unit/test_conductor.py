"""The conductor alone decides the order of moves; its network only records what it receives."""

from __future__ import annotations

import itertools
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PeerError, UsageError
from gradwire.moves import AllReduce, Exchange, Move
from gradwire.runtime import conductor, threads
from gradwire.runtime.conductor import Conductor
from gradwire.runtime.context import BucketContext
from gradwire.runtime.device_order import LaneOrder, Moment
from gradwire.runtime.host_copies import CPU
from gradwire.strategy import StepInfo

N = 4


class Alone:
    """A performer for one rank, which records labels and fails at a chosen one."""

    rank, world = 0, 1

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.threads: list[int] = []
        self.failing: str | None = None
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def at(self, device: torch.device) -> Alone:
        return self

    def bytes_sent(self, move: Move) -> float:
        return move.bytes_sent(self.world)

    def perform(self, move: Move, label: str) -> Tensor:
        self.asked.append(label.split(" [", maxsplit=1)[0])
        self.threads.append(torch.get_num_threads())
        if self.failing is not None and label.startswith(self.failing):
            raise PeerError(f"{label} failed on purpose.")
        return move.data if isinstance(move, AllReduce) else move.data[None]


class Stage:
    """A conductor over `buckets` buckets and `lanes` lanes."""

    def __init__(self, buckets: int, lanes: int, text: str = "none | allreduce") -> None:
        self.performers = [Alone() for _ in range(lanes)]
        self.memory: dict[str, Any] = {}
        contexts = [
            BucketContext(
                Strategy.parse(text), Bucket((Parameter(f"p{i}", (N,)),)), 0, 1, self.memory
            )
            for i in range(buckets)
        ]
        self.ends: list[BaseException | None] = []
        performers: Any = self.performers
        device = torch.device("cpu")
        self.conductor = Conductor(contexts, performers, self.ends.append, device)
        self.results = [torch.zeros(N) for _ in range(buckets)]

    def step(self, order: list[int], number: int = 0, bad: int | None = None) -> None:
        """Hands the buckets over in this order, and waits."""
        self.conductor.begin(number)
        for b in order:
            x = torch.full((N,), float("nan") if b == bad else b + 1.0)
            self.conductor.ready(b, [x], [self.results[b]], StepInfo(number))
        self.conductor.wait()


@pytest.fixture
def stage():  # type: ignore[no-untyped-def]
    """A function that makes stages, whose threads end with the test."""
    made: list[Stage] = []

    def make(*arguments: Any) -> Stage:
        made.append(Stage(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.conductor.close()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_whatever_is_ready_first_the_plan_s_order_is_issued(stage, order) -> None:  # type: ignore[no-untyped-def]
    one = stage(3, 1)
    one.step(list(order))
    assert one.performers[0].asked == ["bucket 0", "bucket 1", "bucket 2"]
    assert [r.tolist() for r in one.results] == [[b + 1.0] * N for b in range(3)]
    assert one.ends == [None]


def test_lane_i_takes_bucket_i_and_every_lanes_th_after_it(stage) -> None:  # type: ignore[no-untyped-def]
    one = stage(5, 2)
    for number in range(20):
        one.step([4, 2, 0, 1, 3], number)
    assert one.performers[0].asked == ["bucket 0", "bucket 2", "bucket 4"] * 20
    assert one.performers[1].asked == ["bucket 1", "bucket 3"] * 20
    assert one.ends == [None] * 20


def test_lanes_compute_with_as_many_threads_as_who_trains(stage) -> None:  # type: ignore[no-untyped-def]
    one, before = stage(2, 2), torch.get_num_threads()
    try:
        for number, threads in enumerate([2, 3, 1]):
            torch.set_num_threads(threads)
            one.step([0, 1], number)
    finally:
        torch.set_num_threads(before)
    assert [alone.threads for alone in one.performers] == [[2, 3, 1]] * 2


def test_a_bucket_that_is_not_ready_holds_back_those_behind_it(stage) -> None:  # type: ignore[no-untyped-def]
    one = stage(2, 1)
    one.conductor.begin(0)
    one.conductor.ready(1, [torch.ones(N)], [one.results[1]], StepInfo())
    time.sleep(0.05)
    assert one.performers[0].asked == []
    assert one.ends == []
    one.conductor.ready(0, [torch.ones(N)], [one.results[0]], StepInfo())
    one.conductor.wait()
    assert one.performers[0].asked == ["bucket 0", "bucket 1"]


def test_the_trace_holds_the_last_step_only(stage) -> None:  # type: ignore[no-untyped-def]
    one = stage(3, 1)
    for number in range(2):
        one.step([0, 1, 2], number)
    spans = one.conductor.trace.spans
    assert [s.kind for s in spans] == ["encode", "wire", "decode"] * 3
    assert [s.label for s in spans[::3]] == [f"bucket {b} [none | allreduce]" for b in range(3)]
    times = [t for s in spans for t in (s.start_seconds, s.end_seconds)]
    assert times == sorted(times)


def test_spans_last_as_they_did_on_a_device(stage, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """If moments have device events, the spans' lengths come from them, on every lane."""
    ticks = itertools.count()

    class Late(Moment):
        def since(self, first: Moment) -> float:
            return 100.0 * self.seconds

    monkeypatch.setattr(LaneOrder, "now", lambda _: Late(float(next(ticks)), object()))  # type: ignore[arg-type]
    one = stage(4, 2)
    for step in range(2):
        one.step([0, 1, 2, 3], step)
        spans = one.conductor.trace.spans
        assert len(spans) == 3 * 4
        assert all(span.start_seconds % 100.0 == span.end_seconds % 100.0 == 0.0 for span in spans)
        assert all(span.seconds >= 100.0 for span in spans)


def test_a_bad_bucket_skips_the_step_for_all(stage) -> None:  # type: ignore[no-untyped-def]
    one = stage(2, 1, "topk(0.5)+ef | allgather")
    one.step([0, 1], bad=1)
    assert one.results[1].isnan().all()
    assert one.memory["p0"]["residual"].tolist() == [1.0] * N, "given back"
    one.step([0, 1], 1)
    assert one.results[0].tolist() == [2.0, 2.0, 0.0, 0.0]


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_error_in_a_lane_reaches_the_one_who_waits(stage, lanes: int) -> None:  # type: ignore[no-untyped-def]
    one = stage(4, lanes)
    for performer in one.performers:
        performer.failing = "bucket 1"
    with pytest.raises(PeerError, match=r"bucket 1 .* failed on purpose"):
        one.step([0, 1, 2, 3])
    assert len(one.ends) == 1
    assert isinstance(one.ends[0], PeerError)
    if lanes == 1:
        assert one.performers[0].asked == ["bucket 0", "bucket 1"], "nothing more is issued"
    with pytest.raises(UsageError, match=r"must be attached again; step 0 failed with: bucket 1"):
        one.conductor.begin(1)


def test_close_ends_the_threads(stage) -> None:  # type: ignore[no-untyped-def]
    before = threading.active_count()
    one = stage(2, 2)
    one.step([0, 1])
    assert threading.active_count() == before + 2
    one.conductor.close()
    assert threading.active_count() == before
    assert all(performer.closed for performer in one.performers)
    one.conductor.close()  # once more does no harm


def test_a_wait_has_a_limit(stage, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Moves have the process group's timeout; this limit is for what it does not cover."""
    one = stage(2, 1)
    monkeypatch.setattr(conductor, "_GRACE_SECONDS", 0.0)
    one.conductor._timeout_seconds = 0.05
    one.conductor.begin(3)
    one.conductor.ready(0, [torch.ones(N)], [one.results[0]], StepInfo())
    with pytest.raises(PeerError, match=r"in step 3 nothing moved .* 1 of 2 buckets are not done"):
        one.conductor.wait()


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_lane_survives_whatever_is_raised(stage, at_the_end: bool) -> None:  # type: ignore[no-untyped-def]
    def leave(*_: Any) -> None:
        raise SystemExit("told to")

    one = stage(1, 1)
    if at_the_end:
        one.conductor._on_end = leave
    else:
        one.performers[0].perform = leave
    with pytest.raises(SystemExit, match="told to"):
        one.step([0])
    with pytest.raises(UsageError, match="step 0 failed with: told to"):
        one.conductor.begin(1)


def test_closing_amid_a_step_ends_it(stage) -> None:  # type: ignore[no-untyped-def]
    one = stage(2, 1)
    one.conductor.begin(0)
    one.conductor.ready(1, [torch.ones(N)], [one.results[1]], StepInfo())
    one.conductor.close()
    with pytest.raises(UsageError, match=r"detached, or adopt .* during the exchange of step 0"):
        one.conductor.wait()
    assert len(one.ends) == 1


def test_a_step_that_fails_leaves_no_bucket_open() -> None:
    """No bucket stays open, after a damaged bucket or a failure in another lane's move."""
    told = list[int]()

    class Context:
        def __init__(self, number: int) -> None:
            self.number = number

        def abandon(self) -> None:
            told.append(self.number)
            if self.number == 0:
                raise RuntimeError("the device is gone")

    failed = object.__new__(Conductor)
    buckets = [SimpleNamespace(context=Context(i)) for i in range(3)]
    failed.__dict__.update(
        buckets=buckets, error=PeerError("rank 1 died"), _left=1, _lock=threading.Lock(),
        _lanes=[], _on_end=lambda error: told.append(9), _done=threading.Event(),
    )  # fmt: skip
    failed.finished()
    assert told == [0, 1, 2, 9]
    assert str(failed.error) == "rank 1 died"


def test_a_move_is_performed_where_what_it_sends_lies() -> None:
    asked = list[str]()

    class Noting(Alone):
        def at(self, device: torch.device) -> Alone:
            asked.append(device.type)
            return self

        def perform(self, move: Move, label: str) -> Any:
            return {} if isinstance(move, Exchange) else super().perform(move, label)

    class Moving(Stage):
        def rounds(self) -> Any:
            yield Exchange({}, {})
            yield AllReduce(torch.ones(2, device="meta"))
            yield Exchange({}, {})

    stage = Moving(1, 1)
    stage.conductor.close()
    context: Any = stage.conductor.buckets[0].context
    context.rounds = stage.rounds
    conductor = Conductor([context], [Noting()], stage.ends.append, CPU)  # type: ignore[list-item]
    conductor.begin(0)
    conductor.ready(0, [torch.ones(N)], [torch.ones(N)], StepInfo(0))
    conductor.wait()
    conductor.close()
    assert asked == ["cpu", "meta", "meta"], "what sends nothing goes where the last one went"


def test_lanes_that_began_end_at_exit_though_another_could_not_begin(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    begins = threading.Thread._bootstrap  # type: ignore[attr-defined]

    def dies(thread: threading.Thread) -> None:
        if thread.name == "gradwire-lane-1":
            raise SystemExit
        begins(thread)

    monkeypatch.setattr(threading.Thread, "_bootstrap", dies)
    monkeypatch.setattr(threads, "START_SECONDS", 0.05)
    before = set(threading.enumerate())
    with pytest.raises(MemoryError, match="gradwire-lane-1"):
        Stage(2, 2)
    begun = [t for t in threading.enumerate() if t not in before and t.is_alive()]
    assert [t.name for t in begun] == ["gradwire-lane-0"]
    conductor._close_all()
    assert not begun[0].is_alive()
