"""The order of streams, on stand-ins that record their calls, as there is no device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.errors import UsageError
from gradwire.runtime import device_order
from gradwire.runtime.device_order import LaneOrder, Made
from noted_cuda import Cuda, Stream

DEVICE = torch.device("cuda", 1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    fake = SimpleNamespace(cuda=made, strided=torch.strided, device=torch.device)
    monkeypatch.setattr(device_order, "torch", fake)
    return made


def test_a_graph_that_is_captured_is_refused(cuda: Cuda) -> None:
    cuda.captures = True
    with pytest.raises(UsageError, match="a CUDA graph cannot capture the exchange"):
        Made(DEVICE).add()


def noting(x: Tensor, found: list[str]) -> Any:
    """A tensor that records the streams on which `record_stream` was called."""
    return SimpleNamespace(
        layout=x.layout, record_stream=lambda stream: found.append(stream.name),
        _indices=lambda: noting(x.indices(), found), _values=lambda: noting(x.values(), found),
    )  # fmt: skip


def test_a_lane_waits_for_every_stream_on_which_gradients_were_made(cuda: Cuda) -> None:
    made, lane = Made(DEVICE), LaneOrder(DEVICE)
    made.add()
    with cuda.stream(Stream("autograd's second", DEVICE)):
        made.add()
    before = made.take()
    with lane.after(before):
        assert cuda.current_stream(DEVICE) is lane.stream
        assert cuda.current_device() == DEVICE.index
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
    assert cuda.main[DEVICE].waited == ["all of lane"]


def test_moments_are_told_by_the_device(cuda: Cuda) -> None:
    """Moments are the device's time, however much earlier the host launched that work."""
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
