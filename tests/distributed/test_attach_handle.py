"""The handle from attach to detach, attaching again and twice, and what optimizers must not do."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from ranks import Ranks
from small import (
    attached,
    close,
    fingerprint,
    gradients,
    loss_of,
    mean,
    raised,
    small,
)
from small import local_gradients as local
from torch import nn

import gradwire
from gradwire import Plan, Strategy
from gradwire.errors import UsageError
from gradwire.runtime.process_groups import make_group
from gradwire.training.attached import is_attached

TOPK = "topk(0.1)+ef | allgather"
LOSSLESS = "topk(1.0)+ef | allgather"


def explicit_buckets() -> None:
    model = small()
    lists = [["two.weight", "conv.weight"], ["one.weight"]]
    with attached(model, LOSSLESS, buckets=lists) as handle:
        assert {"two.weight", "conv.weight"} in [set(b.names) for b in handle.plan.buckets]
        assert ("one.weight",) in [b.names for b in handle.plan.buckets]
        expected = {n: mean(g) for n, g in local(model).items()}
        loss_of(model).backward()
        close(gradients(model), expected)


def test_explicit_buckets(three: Ranks) -> None:
    three.run(explicit_buckets)


def detached() -> None:
    model, before = small(), threading.active_count()
    handle = gradwire.attach(model, TOPK, lanes=2, timeout_seconds=20.0)
    loss_of(model).backward()
    handle.detach()
    handle.detach()  # a second call does no harm
    assert threading.active_count() == before
    model.zero_grad()
    expected = local(model)
    loss_of(model).backward()  # no exchange: purely local
    close(gradients(model), expected, 0.0)
    assert not torch.equal(mean(expected["one.weight"]), expected["one.weight"])
    model.zero_grad()
    with attached(model, LOSSLESS):
        expected = {n: mean(g) for n, g in local(model).items()}
        loss_of(model).backward()
        close(gradients(model), expected)


def detached_late() -> None:
    """A second detach of an old handle does not detach the new one."""
    model = small()
    optimizer = gradwire.optim.SGD(model.parameters(), 1.0, momentum=0.5)
    with attached(model, LOSSLESS) as old:
        pass
    with attached(model, "dgc(1.0, momentum=0.5, mask=False) | allgather"):
        old.detach()
        assert "detach" in raised(lambda: gradwire.attach(model, LOSSLESS))
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
    assert not any("momentum_buffer" in state for state in optimizer.state.values())


def test_an_old_handle_does_not_detach_a_new_one(three: Ranks) -> None:
    three.run(detached_late)


def detached_twice() -> None:
    """The plan in force uses fewer lanes than were made."""
    model = small()
    with attached(model, LOSSLESS, lanes=3, bucket_bytes=1) as handle:
        parameters = [p for bucket in handle.plan.buckets for p in bucket.parameters]
        handle.adopt(Plan.make(parameters, Strategy.parse(LOSSLESS), lanes=1))
        handle.detach()
        handle.detach()
        assert not handle.attached


def test_a_second_detach_does_nothing(three: Ranks) -> None:
    three.run(detached_twice)


def test_detach_and_attach_again(three: Ranks) -> None:
    three.run(detached)


def resources() -> list[tuple[int, int]]:
    return resources_of(LOSSLESS, nn.Linear(4, 4))


def resources_of(strategy: str, model: nn.Linear) -> list[tuple[int, int]]:
    """Threads and open files of the process, after each round of attach and detach."""
    counts = []
    for _ in range(8):
        model.zero_grad()
        with attached(model, strategy, lanes=3):
            model(torch.ones(1, model.in_features)).sum().backward()
        tasks, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        counts.append((tasks, files))
    return counts


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_detaching_frees_threads_and_sockets(three: Ranks) -> None:
    for counts in three.run(resources):
        assert counts[-1][0] <= counts[1][0] + 1, counts
        assert counts[-1][1] <= counts[1][1] + 1, counts


def fails_at(place: str, rounds: int = 6) -> list[tuple[int, int]]:
    """As `resources`, after attaching that fails at this place. The model is as it was before."""
    counts, model = [], small()
    options = {"lanes": 3, "bucket_bytes": 1, "timeout_seconds": 20.0}
    optimizer = gradwire.optim.AdamW(model.parameters())
    for _ in range(rounds):
        with patch(place, side_effect=_fails_late(place)):
            assert raised(
                lambda: gradwire.attach(
                    model, "lloyd(2)+adam | alltoall", optimizer=optimizer, **options
                ),
                RuntimeError,
            ).startswith("told to")
        gc.collect()  # an error's traceback keeps groups
        tasks, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        counts.append((tasks, files))
        assert not any(map(is_attached, model.parameters()))
        assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
        assert not model._forward_pre_hooks
        assert not any("gradwire" in key for key in model.__dict__)
    return counts


def _fails_late(place: str) -> Callable[..., Any]:
    """A stand-in that fails; where groups are made, at the second one."""
    calls = [0]

    def stand_in(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if place.endswith("make_group") and calls[0] == 1:
            return make_group(*args, **options)
        raise RuntimeError("told to")

    return stand_in


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
@pytest.mark.parametrize(
    "place", ["lanes.make_group", "attach.broadcast", "attach._frontend", "attach.take"]
)
def test_attaching_that_fails_frees_threads_and_sockets(three: Ranks, place: str) -> None:
    for counts in three.run(fails_at, f"gradwire.training.{place}"):
        assert counts[-1][0] <= counts[1][0] + 1, counts
        assert counts[-1][1] <= counts[1][1] + 1, counts


def two_models() -> None:
    one, two = small(1), small(2)
    with attached(one, LOSSLESS, lanes=2), attached(two, "none | allreduce"):
        wanted = [{n: mean(g) for n, g in local(m).items()} for m in (one, two)]
        loss_of(one).backward()
        loss_of(two).backward()
        for model, expected in zip((one, two), wanted):
            close(gradients(model), expected)
            model.zero_grad()
        (loss_of(one) + loss_of(two)).backward()  # one backward through both
        for model, expected in zip((one, two), wanted):
            close(gradients(model), expected)


def in_turn(together: bool) -> str:
    """Two halves of one model, each with an optimizer, take turns."""
    model = nn.ModuleDict({"one": nn.Linear(8, 8), "two": nn.Linear(8, 8)})
    with contextlib.ExitStack() as stack:
        for module in (model,) if together else model.values():
            stack.enter_context(attached(module, TOPK))
        optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in model.values()]
        try:
            for _ in range(2):
                for half, optimizer in zip(model.values(), optimizers):
                    optimizer.zero_grad()
                    half(torch.ones(1, 8)).sum().backward()
                    optimizer.step()
        except UsageError as error:
            return str(error)
    return "trained"


def test_parts_that_take_turns_are_attached_one_by_one(three: Ranks) -> None:
    """Attached as a whole, an average that still lies in .grad would be remembered as a
    gradient."""
    for said in three.run(in_turn, True):
        assert "'one.weight' still held" in said
        assert "each by itself" in said
    assert three.run(in_turn, False) == ["trained"] * 3


def test_two_attached_models(three: Ranks) -> None:
    three.run(two_models)


def attached_twice() -> None:
    model = small()
    with attached(model, TOPK):
        for module in (model, model.one, nn.Sequential(model)):
            text = raised(lambda module=module: gradwire.attach(module, TOPK, timeout_seconds=5.0))
            assert "detach" in text
        loss_of(model).backward()
    with attached(model, TOPK):
        model.zero_grad()
        loss_of(model).backward()


def test_a_parameter_is_attached_once(three: Ranks) -> None:
    three.run(attached_twice)


def momentum_twice() -> None:
    for make, name in (
        (lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9), "SGD"),
        (lambda ps: torch.optim.Adam(ps), "Adam"),
        (lambda ps: torch.optim.RMSprop(ps, momentum=0.5), "RMSprop"),
    ):
        model = small()
        optimizer = make(model.parameters())
        with attached(model, "dgc(0.1) | allgather"):
            loss_of(model).backward()
            before = fingerprint(model.parameters())
            for _ in range(2):  # every attempt is refused
                text = raised(optimizer.step)
                assert name in text
                assert "dgc(0.1) | allgather" in text
                assert "Use gradwire.optim.SGD(" in text
            assert fingerprint(model.parameters()) == before
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        optimizer.step()  # after detach it may step
    model = small()
    with attached(model, TOPK):
        loss_of(model).backward()
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()


def test_momentum_in_the_optimizer_beside_dgc(three: Ranks) -> None:
    three.run(momentum_twice)


def never_fired() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached(model, TOPK) as handle, handle.no_sync():
        loss_of(model).backward()
        with pytest.warns(UserWarning, match="seen no gradients"):
            optimizer.step()
        optimizer.step()  # one warning is enough: warnings are errors here
    other = small()
    with attached(model, TOPK):
        loss_of(other).backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()  # not our model


def test_a_warning_if_no_gradient_was_ever_seen(three: Ranks) -> None:
    three.run(never_fired)


def after_detach() -> list[str]:
    model = small()
    with attached(model, "topk(0.1)+ef | allgather") as handle:
        loss_of(model).backward()
    plan = handle.plan
    return [
        raised(call) for call in (handle.synchronize, handle.flush, lambda: handle.adopt(plan))
    ]


def test_a_detached_handle_says_so(three: Ranks) -> None:
    for said in three.run(after_detach):
        assert all("Attach the model again" in text for text in said)
