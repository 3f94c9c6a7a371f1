"""plan="auto", and a plan that was adopted, where ranks are lost and come."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, stories
from small import batch, brief, fingerprint, small, won_by
from test_survivors import TOPK, attached

import gradwire
from gradwire.plan import BUCKET_BYTES
from gradwire.training import guard, survivors
from gradwire.tuning import auto
from gradwire.tuning.race import Race

PATIENCE = 4000
INT8 = "int8+ef | alltoall"


class End(NamedTuple):
    """What a rank had when training ended."""

    weights: str
    plan: str
    step: int
    world: int
    is_tuning: bool
    waits: bool


def _waits(handle: Any) -> bool:
    return any(bool(x.any()) for x in handle._session.ledger.waiting().values())


def _end(handle: Any, model: Any) -> End:
    end = End(
        fingerprint(model.parameters()), handle.plan.to_json(), handle.step,
        dist.get_world_size(), handle.is_tuning, _waits(handle),
    )  # fmt: skip
    handle.detach()
    return end


def _step(handle: Any, model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(batch(handle.step)).square().mean().backward()
    optimizer.step()


def _until(is_over: Callable[[], bool], handle: Any, model: Any, optimizer: Any) -> None:
    for _ in range(PATIENCE):
        if is_over():
            return
        _step(handle, model, optimizer)
    raise AssertionError("it takes too long")


def _die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _dies_at(moment: str, handle: Any) -> Any:
    """A context in which this process dies at that moment of the tuner's work."""
    if moment == "measured":
        return patch.object(auto, "measure", _die)
    if moment == "planned":
        return patch.object(auto.Tuner, "_correction", _die)
    if moment == "raced":
        return patch.object(Race, "learn", _die)
    session = handle._session  # after so many steps, or once it has settled
    wait, at = session.wait, {"watched": 5, "settled": PATIENCE}[moment]

    def dies(compares: bool = True) -> None:
        wait(compares)
        if session.step >= at or handle.tuner.is_settled:
            _die()

    session.wait = dies
    return ExitStack()


@brief()
def _auto(moment: str) -> End:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with ExitStack() as patches, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patches.enter_context(won_by(TOPK, races=moment == "raced"))
        handle: Any = attached(model, "auto", optimizer, bucket_bytes=BUCKET_BYTES)
        if dist.get_rank() == 1:
            patches.enter_context(_dies_at(moment, handle))
        _until(lambda: dist.get_world_size() == 2, handle, model, optimizer)
        if moment == "settled":
            assert str(handle.plan.main_strategy) == TOPK, "the plan in force stays"
            assert _waits(handle), "and so does what waits"
        _until(lambda: handle.tuner.is_settled, handle, model, optimizer)
        for _ in range(3):
            _step(handle, model, optimizer)
    return _end(handle, model)


@pytest.mark.parametrize("moment", ["watched", "measured", "planned", "raced", "settled"])
def test_a_rank_is_killed_while_plans_are_looked_for(tmp_path: Path, moment: str) -> None:
    with Ranks(3, tmp_path) as ranks:
        outcomes = ranks.outcomes(_auto, moment)
    assert outcomes[1].died
    assert all(outcomes[r].ok for r in (0, 2)), stories(outcomes)
    one, other = (outcomes[r].value for r in (0, 2))
    assert one == other
    assert (one.world, one.is_tuning, one.waits) == (2, True, True)
    assert TOPK in one.plan


@brief()
def _harmed() -> tuple[End, int]:
    """The guard takes what it sees for harm, and "auto" stays with dense; then a rank is lost."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with ExitStack() as patches, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patches.enter_context(won_by(TOPK))
        patches.enter_context(patch.multiple(guard, WINDOW=4, LIMIT=-1.0))
        handle: Any = attached(model, "auto", optimizer, bucket_bytes=BUCKET_BYTES)
        _until(lambda: not handle.is_tuning, handle, model, optimizer)
        if dist.get_rank() == 1:
            _die()
        _until(lambda: dist.get_world_size() == 2, handle, model, optimizer)
        begun = handle.step
        for _ in range(100):
            _step(handle, model, optimizer)
    return _end(handle, model), begun


def test_what_did_harm_is_not_looked_for_again(tmp_path: Path) -> None:
    with Ranks(3, tmp_path) as ranks:
        outcomes = ranks.outcomes(_harmed)
    assert all(outcomes[r].ok for r in (0, 2)), stories(outcomes)
    (one, begun), other = (outcomes[r].value for r in (0, 2))
    assert (one, begun) == other
    assert (one.step - begun, one.is_tuning) == (100, False)
    assert "none | allreduce" in one.plan
    assert TOPK not in one.plan


# -- plans that were adopted -------------------------------------------------------------------


@brief()
def _adopted_then_lost(place: str, plan: str) -> tuple[End, str, bool]:
    """Ranks 0 to 2 adopt another plan; rank 2 is killed; the fourth process takes its place, and
    attaches as they did."""
    process = dist.get_rank()
    store = dist.FileStore(place, 4)
    if process == 3:
        while not store.check(["gradwire/1/processes"]):
            threading.Event().wait(0.05)
    survivors.init_by(store, 2 if process == 3 else process, 3, "gloo", 60.0)
    model = small(seed=process)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with won_by(INT8), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handle: Any = attached(model, plan, optimizer, bucket_bytes=BUCKET_BYTES)
        came, is_tuning = handle.plan.to_json(), handle.is_tuning
        if process < 3:
            if plan == "auto":
                _until(lambda: handle.tuner.is_settled, handle, model, optimizer)
            else:
                parameters = [p for bucket in handle.plan.buckets for p in bucket.parameters]
                handle.adopt(gradwire.Plan.make(parameters[::-1], INT8))
            _step(handle, model, optimizer)
            if process == 2:
                _die()
            _until(lambda: dist.get_world_size() == 2, handle, model, optimizer)
            _until(lambda: dist.get_world_size() == 3, handle, model, optimizer)
        more = handle.step + 4
        _until(lambda: handle.step >= more, handle, model, optimizer)
    return _end(handle, model), came, is_tuning


@pytest.mark.parametrize("plan", [TOPK, "auto"])
def test_an_adopted_plan_stays_in_force(tmp_path: Path, plan: str) -> None:
    with Ranks(4, tmp_path) as ranks:
        outcomes = ranks.outcomes(_adopted_then_lost, str(tmp_path / "own"), plan)
    assert outcomes[2].died
    assert all(outcomes[r].ok for r in (0, 1, 3)), stories(outcomes)
    ends = [outcomes[r].value[0] for r in (0, 1, 3)]
    assert len({(end.weights, end.plan, end.is_tuning) for end in ends}) == 1
    assert INT8 in ends[0].plan
    assert TOPK not in ends[0].plan
    _, came, is_tuning = outcomes[3].value
    assert INT8 in came, "one that comes has it at once"
    assert is_tuning == (plan == "auto")


def _lost_amid_adoption() -> tuple[End, bool]:
    """A rank is lost when rank 0 has adopted another plan, and rank 2 has not yet."""
    rank, model = dist.get_rank(), small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handle = attached(model, TOPK, optimizer, bucket_bytes=BUCKET_BYTES)
        for _ in range(3):
            _step(handle, model, optimizer)
        parameters = [p for bucket in handle.plan.buckets for p in bucket.parameters]
        own: Any = handle._session
        with patch.object(own, "adopt", own.adopt if rank == 0 else lambda _: None):
            handle.adopt(gradwire.Plan.make(parameters[::-1], INT8))
        if rank == 1:
            _die()
        _step(handle, model, optimizer)
        waits = _waits(handle)
        _step(handle, model, optimizer)
    return _end(handle, model), waits


def test_a_rank_is_killed_while_the_others_adopt_a_plan(tmp_path: Path) -> None:
    with Ranks(3, tmp_path) as ranks:
        outcomes = ranks.outcomes(_lost_amid_adoption)
    assert all(outcomes[r].ok for r in (0, 2)), stories(outcomes)
    (one, waits), (other, others_wait) = (outcomes[r].value for r in (0, 2))
    assert (one.weights, one.plan, one.step) == (other.weights, other.plan, other.step)
    assert INT8 in one.plan
    assert waits, "what rank 0 has not sent"
    assert others_wait, "what rank 2 has not sent by the plan before"


@brief()
def _unequal_machines() -> tuple[str, End]:
    """Two machines of two ranks sum inside themselves first; one of them loses a rank."""
    os.environ["GROUP_RANK"] = f"{dist.get_rank() // 2}"
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with won_by("bf16 | hierarchical"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handle: Any = attached(model, "auto", optimizer, bucket_bytes=BUCKET_BYTES)
        _until(lambda: handle.tuner.is_settled, handle, model, optimizer)
        before = str(handle.plan.main_strategy)
        if dist.get_rank() == 3:
            _die()
        _until(lambda: dist.get_world_size() == 3, handle, model, optimizer)
        _step(handle, model, optimizer)
    return before, _end(handle, model)


def test_auto_begins_anew_where_machines_become_unequal(tmp_path: Path) -> None:
    with Ranks(4, tmp_path) as ranks:
        outcomes = ranks.outcomes(_unequal_machines)
    assert all(outcome.ok for outcome in outcomes[:3]), stories(outcomes)
    before, one = outcomes[0].value
    assert all(outcome.value == (before, one) for outcome in outcomes[:3])
    assert "hierarchical" in before
    assert "hierarchical" not in one.plan
    assert one.is_tuning
