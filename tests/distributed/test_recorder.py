"""What the recorder sees of a job's steps, and what ranks conclude from it together."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import brief
from torch import Tensor, nn

from gradwire.planner.profile import Contention
from gradwire.training.attach import attach_plan as attach
from gradwire.tuning.contention import measure as measure_contention
from gradwire.tuning.profiling import _is_busy, _moments_seconds, _timings, samples_of
from gradwire.tuning.recorder import Recorder


class Chain(nn.Module):
    """A table whose gradient is zero in all rows but one, a linear layer, and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.last = nn.Linear(4, 2)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.table(x)).square().sum()
        return made


def recorded() -> None:
    model = Chain()
    handle = attach(model, "none | allreduce", bucket_bytes=1, lanes=2)
    session: Any = handle._session
    recorder = Recorder(model, session, keeps=32)
    assert session.launches_at_end
    for _ in range(5):
        model.zero_grad()
        with handle.no_sync():
            model(torch.tensor([4])).backward()
        model(torch.tensor([3])).backward()
        with torch.no_grad():
            model(torch.tensor([3]))  # an evaluation is no step
    assert len(recorder.steps) == 4, "the first had begun before"
    for step in recorder.steps:
        assert set(step.ready) == {"table.weight", "last.weight", "last.bias"}
        assert 0 < step.ready["last.weight"] <= step.ready["table.weight"]
        assert step.around > 0
        assert step.busy > 0
    assert recorder.density["table.weight"] == 0.2, "of the sum of both, which is sent"
    assert recorder.density["last.weight"] == 1.0
    samples = samples_of(session, recorder)
    assert {name: x[0].shape for name, x in samples.items()} == {
        "table.weight": (5, 4), "last.weight": (1, 4),
    }  # fmt: skip
    assert len(samples["last.weight"]) == len(samples["table.weight"]) == 4
    assert all(x[3].any() and x[4].any() for x in samples["table.weight"])
    ready, backward, around = _timings(session, recorder)
    by_name = {r.parameter.name: r.seconds for r in ready}
    assert by_name["unused.weight"] == max(by_name.values()), "what never comes is the last"
    assert backward >= max(by_name.values()) * (1 - 1e-9)
    assert around > 0
    recorder.close()
    assert not session.launches_at_end
    assert session.on_end is None
    model.zero_grad()
    model(torch.tensor([3])).backward()
    assert len(recorder.steps) == 4
    handle.detach()


def test_the_recorder_sees_gradients_in_their_order(one: Ranks) -> None:
    one.run(recorded)


def stepped(closed: bool, plan: str) -> tuple[set[float], float]:
    """What optimizers take of the time around backward, and of this what a plan may spare them, by
    a clock that their steps alone move."""
    model, wall = nn.Linear(3, 2), 1.0

    class Slow(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            nonlocal wall
            wall += 0.25
            return super().step(closure)

    def backward() -> Tensor:
        own.zero_grad()
        loss = model(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss

    handle = attach(model, plan)
    session: Any = handle._session
    own, other = Slow(model.parameters(), lr=0.1), Slow(nn.Linear(1, 1).parameters(), lr=0.1)
    with patch("gradwire.tuning.agree.perf_counter", lambda: wall):
        recorder = Recorder(model, session)
        for _ in range(4):
            if closed:
                own.step(backward)
            else:
                backward()
                own.step()
            other.step()
        recorder.close()
        spared = _moments_seconds(session, recorder)
    handle.detach()
    return {step.stepping for step in recorder.steps}, spared


def test_what_the_optimizer_takes_is_known(two: Ranks) -> None:
    """Not what one of another model takes, nor one whose closure does the backward."""
    assert two.run(stepped, False, "none | allreduce") == [({0.25}, 0.25)] * 2
    assert two.run(stepped, True, "none | allreduce") == [({0.0}, 0.0)] * 2
    kept = two.run(stepped, False, "none+server_momentum | allreduce")
    assert kept == [({0.25}, 0.0)] * 2, "the plan keeps them already"


def timed(late: tuple[float, float]) -> tuple[float, float]:
    """The seconds of backward and around it, where rank 0 needs `late` for forward and backward
    and rank 1 the other way round, by clocks that only they move."""
    forward, backward = late if dist.get_rank() == 0 else late[::-1]
    model = nn.Linear(2, 2)
    handle = attach(model, "none | allreduce")
    session: Any = handle._session
    wall = 1.0

    def spend(_: Tensor) -> None:
        nonlocal wall
        wall += backward

    with patch("gradwire.tuning.agree.perf_counter", lambda: wall):
        recorder = Recorder(model, session)
        for _ in range(4):
            model.zero_grad()
            wall += forward
            loss = model(torch.ones(3, 2)).sum()
            loss.register_hook(spend)
            loss.backward()
        recorder.close()
        found = _timings(session, recorder)[1:]
    handle.detach()
    return found


def test_a_rank_that_is_late_once_is_not_late_twice(two: Ranks) -> None:
    """One rank's forward takes 0.8 s, the other's backward: a step waits 0.8 s, not 1.6."""
    (backward, around), other = two.run(timed, (0.8, 0.0))
    assert (backward, around) == other
    assert backward + around == pytest.approx(0.8)


def busy(share: float) -> bool:
    """Whether a backward of 50 ms counts as busy if a processor computes for `share` of it, by
    clocks that only it moves."""
    wall = cpu = 1.0
    model = nn.Linear(2, 2)
    handle = attach(model, "none | allreduce")
    session: Any = handle._session

    def spend(_: Tensor) -> None:
        nonlocal wall, cpu
        wall, cpu = wall + 0.05, cpu + share * 0.05

    with (
        patch("gradwire.tuning.agree.perf_counter", lambda: wall),
        patch("gradwire.tuning.recorder.process_time", lambda: cpu),
    ):
        recorder = Recorder(model, session)
        for _ in range(5):
            model.zero_grad()
            loss = model(torch.ones(3, 2)).sum()
            loss.register_hook(spend)
            loss.backward()
        recorder.close()
    found = _is_busy(session, recorder)
    handle.detach()
    return found


def test_a_backward_that_waits_leaves_processors_to_others(one: Ranks) -> None:
    assert one.run(busy, 0.1) == [False]
    assert one.run(busy, 1.0) == [True]


@brief()
def shared() -> tuple[float, ...]:
    handle = attach(Chain(), "none | allreduce", bucket_bytes=1, lanes=2)
    session: Any = handle._session
    found = measure_contention(session.performers, torch.device("cpu"))
    idle = measure_contention(session.performers, torch.device("cpu"), backward_is_busy=False)
    handle.detach()
    assert found.cores >= 1.0
    assert found.wire_demand >= 0.0
    assert found.start_slowdown >= 1.0
    assert found.start_sharing >= 0.0
    assert found.start_demand >= 0.0
    assert 0.0 <= found.wake_seconds < math.inf
    assert idle == Contention(start_sharing=idle.start_sharing)
    return tuple(vars(found).values())


def test_all_ranks_measure_the_same_contention(two: Ranks) -> None:
    assert len(set(two.run(shared))) == 1


def nothing_on_cuda() -> None:
    assert math.isinf(measure_contention([], torch.device("cuda")).cores)


def test_a_gpu_shares_no_processors(one: Ranks) -> None:
    one.run(nothing_on_cuda)
