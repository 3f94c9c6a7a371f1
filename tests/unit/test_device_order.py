"""Which stream waits for which, on streams that note what is asked of them: there is no device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.errors import UsageError
from gradwire.runtime import device_order
from gradwire.runtime.device_order import LaneOrder, Made

DEVICE = torch.device("cuda", 1)


class Stream:
    """Notes what it waits for, and what was recorded on it."""

    def __init__(self, name: str) -> None:
        self.name, self.waited = name, list[str]()
        self.milliseconds = 0.0  # that it has worked

    def record_event(self, event: Event | None = None) -> Any:
        if event is None:
            return f"end of {self.name}"
        event.milliseconds = self.milliseconds
        return event

    def wait_event(self, event: str) -> None:
        self.waited.append(event)

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(f"all of {other.name}")


class Event:
    """Remembers how long its stream had worked, and who waited for it."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.milliseconds, self.is_over = math.nan, False

    def synchronize(self) -> None:
        self.is_over = True

    def elapsed_time(self, later: Event) -> float:
        assert later.is_over
        return later.milliseconds - self.milliseconds


class Cuda:
    """What is current, by device; and which stream work goes to."""

    def __init__(self) -> None:
        self.current = {DEVICE: Stream("main"), torch.device("cuda", 0): Stream("another device")}
        self.at_work: list[Stream] = []
        self.captures, self.Event = False, Event

    def is_current_stream_capturing(self) -> bool:
        return self.captures

    def current_stream(self, device: torch.device) -> Stream:
        return self.current[device]

    def Stream(self, device: torch.device) -> Stream:
        assert device == DEVICE
        return Stream("lane")

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.at_work.append(stream)
        yield
        self.at_work.pop()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    fake = SimpleNamespace(cuda=made, strided=torch.strided, device=torch.device)
    monkeypatch.setattr(device_order, "torch", fake)
    return made


def test_a_graph_that_is_captured_is_refused(cuda: Cuda) -> None:
    cuda.captures = True
    with pytest.raises(UsageError, match="whose work no CUDA graph holds"):
        Made(DEVICE).add()


def noting(x: Tensor, found: list[str]) -> Any:
    """A tensor that notes on which streams it was recorded."""
    return SimpleNamespace(
        layout=x.layout, record_stream=lambda stream: found.append(stream.name),
        _indices=lambda: noting(x.indices(), found), _values=lambda: noting(x.values(), found),
    )  # fmt: skip


def test_a_lane_waits_for_every_stream_on_which_gradients_were_made(cuda: Cuda) -> None:
    made, lane = Made(DEVICE), LaneOrder(DEVICE)
    main = cuda.current[DEVICE]
    made.add()
    cuda.current[DEVICE] = Stream("autograd's second")
    made.add()
    cuda.current[DEVICE] = main
    before = made.take()
    with lane.after(before):
        assert [stream.name for stream in cuda.at_work] == ["lane"]
    assert isinstance(lane.stream, Stream)
    assert sorted(lane.stream.waited) == ["end of autograd's second", "end of main"]
    assert [stream.name for stream, _ in made.take()] == ["main"], "it begins anew"


def test_memory_is_nobody_s_while_another_stream_reads_it(cuda: Cuda) -> None:
    lane, before, found = LaneOrder(DEVICE), Made(DEVICE).take(), list[str]()
    rows = torch.sparse_coo_tensor(
        torch.tensor([[0]]), torch.ones(1, 2), (4, 2), check_invariants=True
    ).coalesce()
    lane.uses([noting(torch.ones(2), found), noting(rows, found)])
    assert found == ["lane"] * 3, "ids and values each"
    found.clear()
    lane.hands_over([noting(rows, found)], before)
    assert found == ["main"] * 2


def test_who_waits_for_the_step_waits_for_the_lane(cuda: Cuda) -> None:
    LaneOrder(DEVICE).join()
    assert cuda.current[DEVICE].waited == ["all of lane"]


def test_moments_are_told_by_the_device(cuda: Cuda) -> None:
    """However long before the host asked for that work."""
    lane = LaneOrder(DEVICE)
    first = lane.now()
    assert isinstance(lane.stream, Stream)
    lane.stream.milliseconds = 250.0
    later = lane.now()
    assert later.seconds - first.seconds < 0.2
    assert later.since(first) - first.since(first) == pytest.approx(0.25)
    assert first.since(first) == first.seconds


def test_on_processors_there_is_nothing_to_order() -> None:
    made, lane = Made(torch.device("cpu")), LaneOrder(torch.device("cpu"))
    made.add()
    before = made.take()
    assert before == ()
    with lane.after(before):
        lane.uses([torch.ones(1)])
        lane.hands_over([torch.ones(1)], before)
    lane.join()
    first, later = lane.now(), lane.now()
    assert lane.stream is None
    assert later.since(first) == later.seconds >= first.seconds
