"""What else may happen where a job goes on without a rank: outside backward(), to the store, to
schedules, to parameters that were frozen, and to one that comes and is lost at once."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ranks import Outcome, Ranks, stories
from small import batch, fingerprint, small
from test_survivors import TOPK, End, attached, same, train
from torch import nn

import gradwire
from gradwire.errors import PayloadError, PeerError, PlanError, UsageError
from gradwire.runtime import roster
from gradwire.testing import Die, Fault, inject
from gradwire.training import survivors


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _left(outcomes: list[Outcome], lost: int = 1) -> list[Any]:
    assert outcomes[lost].died
    left = [outcome for r, outcome in enumerate(outcomes) if r != lost]
    assert all(outcome.ok for outcome in left), stories(outcomes)
    return [outcome.value for outcome in left]


def _begun(**options: Any) -> tuple[gradwire.Handle, Any, torch.optim.Optimizer]:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    return attached(model, TOPK, optimizer, **options), model, optimizer


# -- outside backward() ------------------------------------------------------------------------


def _lost_in_the_guard_s_sum() -> End:
    handle, model, optimizer = _begun(guard=True)
    session: Any = handle._session
    summed = session.summed

    def dies(own: torch.Tensor, what: str) -> torch.Tensor:
        if session.step == 4 and what == "the guard's sample":
            _die()
        found: torch.Tensor = summed(own, what)
        return found

    if dist.get_rank() == 1:
        session.summed = dies
    return train(handle, model, optimizer, 8)


def test_a_rank_is_lost_before_the_optimizer_s_step(tmp_path: Path) -> None:
    """The guard sums there, and an error would end all ranks."""
    with Ranks(3, tmp_path) as ranks:
        same(_left(ranks.outcomes(_lost_in_the_guard_s_sum)), world=2, step=8)


def _lost_in_flush() -> tuple[bool, bool, End]:
    handle, model, optimizer = _begun()
    train_on = 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while handle.step < train_on:
            optimizer.zero_grad()
            model(batch(handle.step)).square().mean().backward()
            optimizer.step()
        if dist.get_rank() == 1:
            _die()
        optimizer.zero_grad()
        handle.flush()
    is_empty = all(p.grad is None for p in model.parameters())
    waits = handle.stats()["residual_norm"] > 0.0
    return is_empty, waits, train(handle, model, optimizer, 8)


def test_a_rank_is_lost_in_a_flush(tmp_path: Path) -> None:
    """It is dropped, as a step is, and what waits goes on waiting."""
    with Ranks(3, tmp_path) as ranks:
        found = _left(ranks.outcomes(_lost_in_flush))
    assert all((is_empty, waits) == (True, True) for is_empty, waits, _ in found)
    same([end for _, _, end in found], world=2, step=8)


# -- the store ---------------------------------------------------------------------------------


def _host_of_the_store_dies() -> str:
    handle, model, optimizer = _begun()
    inject(handle, Die(at=9), rank=0, lane=0)
    with pytest.raises(PeerError) as error:
        train(handle, model, optimizer, 8)
    return str(error.value)


def test_the_host_of_the_store_is_killed(tmp_path: Path) -> None:
    with Ranks(3, tmp_path, store="tcp") as ranks:
        for text in _left(ranks.outcomes(_host_of_the_store_dies), lost=0):
            assert "the rendezvous store must outlive all ranks" in text
            assert "TORCHELASTIC_USE_AGENT_STORE=True" in text


class _NoStore:
    """A store whose host is gone, or, until it is set free, stuck."""

    def __init__(self, is_stuck: bool) -> None:
        self._is_stuck, self.freed = is_stuck, threading.Event()

    def _call(self, *_: object) -> Any:
        if self._is_stuck:
            self.freed.wait()
        raise dist.DistNetworkError("Broken pipe")

    add = set = get = check = compare_set = _call


@pytest.mark.parametrize("is_stuck", [False, True])
def test_without_the_store_nobody_is_taken_up(
    monkeypatch: pytest.MonkeyPatch, is_stuck: bool
) -> None:
    """Training needs it only where ranks are lost or come; it is asked once in vain."""
    monkeypatch.setattr(roster, "STORE_SECONDS", 0.2)
    store = _NoStore(is_stuck)
    made = roster.Roster(store, 0, [0, 1], 2)
    with pytest.warns(UserWarning, match="training goes on until a rank is lost"):
        assert made.asking() == []
    assert made.asking() == []
    with pytest.raises(PeerError, match=r"it is lost: (Broken pipe|it did not answer)"):
        made.without_lost(1, 0.2)
    store.freed.set()


def _with_another_default_group(place: str) -> Any:
    """The first job of these processes had one rank more, and other numbers."""
    process = dist.get_rank()
    handle, _, _ = _begun()
    handle.detach()
    dist.destroy_process_group()
    if process == 0:
        return None
    store, limit = dist.FileStore(place, 2), timedelta(seconds=30)
    dist.init_process_group("gloo", store=store, rank=2 - process, world_size=2, timeout=limit)
    handle, model, optimizer = _begun()
    inject(handle, Die(at=9), rank=1, lane=0)
    return train(handle, model, optimizer, 8)


def test_a_default_group_that_was_made_anew(tmp_path: Path) -> None:
    with Ranks(3, tmp_path) as ranks:
        _, end = _left(ranks.outcomes(_with_another_default_group, str(tmp_path / "other")))
    same([end], world=1, step=8)
    assert "process 1 was lost; one rank goes on" in end.said[0]


# -- one rank fails before the others ----------------------------------------------------------


@dataclass(frozen=True)
class Breaks(Fault):
    """A connection breaks on this rank alone, after the move; the others have its messages."""

    at: int

    def after(self, number: int, arrived: Any) -> Any:
        if number == self.at:
            raise PeerError("a connection broke")
        return arrived


def _a_step_behind(set_rate: Callable[[gradwire.Handle, torch.optim.Optimizer], None]) -> Any:
    handle, model, optimizer = _begun(lanes=1, check_every=1000)
    inject(handle, Breaks(at=3 * len(handle.plan.buckets) - 1), rank=2, lane=0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        while handle.step < 9:
            optimizer.zero_grad()
            model(batch(handle.step)).square().mean().backward()
            optimizer.step()
            set_rate(handle, optimizer)
    said = [str(w.message) for w in seen]
    rate, step = optimizer.param_groups[0]["lr"], handle.step
    handle.detach()
    return fingerprint(model.parameters()), rate, step, said


def _of_step(handle: gradwire.Handle, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.05 * 0.9**handle.step


def _falling(_: gradwire.Handle, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] *= 0.9


@pytest.mark.parametrize("set_rate", [_falling, _of_step])
def test_a_rank_that_was_a_step_behind_gets_the_rate_of_the_others(
    tmp_path: Path, set_rate: Callable[..., None]
) -> None:
    """SGD has no state that differs, and weights would differ from then on, unseen."""
    with Ranks(3, tmp_path) as ranks:
        found = ranks.run(_a_step_behind, set_rate)
    assert len({weights for weights, *_ in found}) == 1
    assert len({rate for _, rate, *_ in found}) == 1
    assert {step for *_, step, _ in found} == {9}
    said = [text for *_, texts in found for text in texts]
    assert len(said) == 1
    assert said[0].startswith("an exchange failed, as where a connection breaks, and no process")


def _own_schedule() -> str:
    steps = iter(range(1, 100))

    def set_rate(_: gradwire.Handle, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.05 * 0.9 ** next(steps)  # by this rank's own count

    with pytest.raises(PayloadError) as error:
        _a_step_behind(set_rate)
    return str(error.value)


def test_a_schedule_that_counts_its_own_steps_is_told_of_soon(tmp_path: Path) -> None:
    with Ranks(3, tmp_path) as ranks:
        for text in ranks.run(_own_schedule):
            assert "before step 7 the learning rate of 'conv.weight' is 0.02657" in text
            assert "on rank 2, and their weights differ. Set a rate" in text
            assert "Load a checkpoint of step 4 or before" in text


# -- parameters, scalers, memory ---------------------------------------------------------------


def _frozen_since() -> tuple[End, bool]:
    handle, model, optimizer = _begun()
    model.conv.weight.requires_grad_(False)
    inject(handle, Die(at=9), rank=1, lane=0)
    return train(handle, model, optimizer, 8), model.conv.weight.requires_grad


def test_a_parameter_that_was_frozen_since_attach(tmp_path: Path) -> None:
    with Ranks(3, tmp_path) as ranks:
        found = _left(ranks.outcomes(_frozen_since))
    same([end for end, _ in found], world=2, step=8)
    assert not any(trains for _, trains in found), "it stays frozen"


def _with_a_scaler() -> str:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = attached(model, "none | allreduce", optimizer)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(batch()).square().mean()).backward()
    with pytest.raises(UsageError) as error:
        scaler.step(optimizer)
    handle.detach()
    return str(error.value)


def test_a_scaler_that_attach_was_not_passed(tmp_path: Path) -> None:
    """Without memory a plan needs none, but steps without gradients do not go with it."""
    with Ranks(2, tmp_path) as ranks:
        assert all("needs no GradScaler" in text for text in ranks.run(_with_a_scaler))


def test_a_job_without_a_default_group() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with pytest.raises(UsageError, match="needs a default process group"):
        attached(model, TOPK, optimizer)


def _made_again() -> bool:
    before = dist.group.WORLD
    with pytest.raises(UsageError, match="one default process group; this one has it already"):
        gradwire.init_process_group()
    return before is dist.group.WORLD


def test_a_default_group_stays(one: Ranks) -> None:
    assert one.run(_made_again) == [True]


def _let_go() -> tuple[bool, int]:
    handle, model, optimizer = _begun()
    gone = weakref.ref(model)
    train(handle, model, optimizer, 3)
    del handle
    gc.collect()
    hooks = len(optimizer._optimizer_step_post_hooks)
    del model, optimizer
    gc.collect()
    return gone() is None, hooks


def test_nothing_keeps_a_model_that_was_detached(tmp_path: Path) -> None:
    with Ranks(2, tmp_path) as ranks:
        assert ranks.run(_let_go) == [(True, 0)] * 2


# -- groups that cannot be made ----------------------------------------------------------------


def _cannot_connect_at_first() -> End:
    """The first group after the loss cannot be made on rank 0, and can on the other."""
    handle, model, optimizer = _begun()
    inject(handle, Die(at=9), rank=1, lane=0)
    make, failed = dist.init_process_group, list[bool]()

    def fails_once(*args: Any, **options: Any) -> None:
        make(*args, **options)
        if not failed:
            failed.append(True)
            dist.destroy_process_group()
            dist.distributed_c10d._world.group_count = 1  # which torch counts before it connects
            raise RuntimeError("Gloo connectFullMesh failed with: Connection closed by peer")

    if dist.get_rank() == 0:
        dist.init_process_group = fails_once
    with patch.object(survivors, "CONNECT_SECONDS", 3.0):
        return train(handle, model, optimizer, 8)


def test_a_group_that_one_rank_could_not_make_is_made_again(tmp_path: Path) -> None:
    with Ranks(3, tmp_path) as ranks:
        same(_left(ranks.outcomes(_cannot_connect_at_first)), world=2, step=8)


def _attached_again() -> End:
    handle, model, optimizer = _begun()
    inject(handle, Die(at=9), rank=1, lane=0)
    train(handle, model, optimizer, 8)
    again = attached(model, TOPK, optimizer)
    inject(again, Die(at=9), rank=1, lane=0)  # process 2
    return train(again, model, optimizer, 8)


def test_a_model_is_attached_again_after_a_loss(tmp_path: Path) -> None:
    """It begins anew there, as those that are left do together, and may lose another rank."""
    with Ranks(4, tmp_path) as ranks:
        outcomes = ranks.outcomes(_attached_again)
    assert [outcome.died for outcome in outcomes] == [False, True, True, False]
    assert all(outcomes[r].ok for r in (0, 3)), stories(outcomes)
    same([outcomes[r].value for r in (0, 3)], world=2, step=8)


# -- one that comes and is lost at once --------------------------------------------------------


def _comes_and_dies(place: str) -> Any:
    """The fourth process takes the place of rank 2, and dies before it attaches.

    0 1 2 ──► 0 1 ──► 0 1 3 ──► 0 1, and 3 is not taken up again
    """
    process, store = dist.get_rank(), dist.FileStore(place, 4)
    while process == 3 and not store.check(["gradwire/1/processes"]):
        time.sleep(0.05)
    survivors.init_by(store, min(process, 2), 3, "gloo", 60.0)
    if process == 3:
        group = dist.distributed_c10d._get_default_group()
        own: Any = group._get_backend(torch.device("cpu"))
        store.set("timeout", f"{own.options._timeout.total_seconds()}")
        _die()
    handle, model, optimizer = _begun(timeout_seconds=200.0)
    if process == 2:
        inject(handle, Die(at=9), lane=0)
    made, at = survivors._ROSTER, 0
    assert made is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while made.epoch < 3 or handle.step < at + 30:
            at = handle.step if made.epoch < 3 else at
            optimizer.zero_grad()
            model(batch(handle.step)).square().mean().backward()
            optimizer.step()
            time.sleep(0.01)
    handle.detach()
    weights = fingerprint(model.parameters())
    return made.epoch, dist.get_world_size(), weights, float(store.get("timeout"))


def test_one_that_comes_and_is_lost_before_it_attaches(tmp_path: Path) -> None:
    """The others notice by its connection; by the store they would after attach's timeout."""
    with Ranks(4, tmp_path) as ranks:
        outcomes = ranks.outcomes(_comes_and_dies, str(tmp_path / "own"), timeout_seconds=90.0)
    assert [outcome.died for outcome in outcomes] == [False, False, True, True]
    assert all(outcome.ok for outcome in outcomes[:2]), stories(outcomes)
    one, other = (outcome.value for outcome in outcomes[:2])
    assert one == other
    assert one[:2] == (3, 2)
    assert one[3] == 60.0, "the group of one that comes has the timeout that was asked for"


def _attached_again_with_one_that_came(place: str) -> End:
    """The fourth process takes the place of rank 2, and all attach their model a second time."""
    process, store = dist.get_rank(), dist.FileStore(place, 4)
    while process == 3 and not store.check(["gradwire/1/processes"]):
        time.sleep(0.05)
    survivors.init_by(store, min(process, 2), 3, "gloo", 60.0)
    handle, model, optimizer = _begun()
    if process == 2:
        inject(handle, Die(at=9), lane=0)
    assert survivors._ROSTER is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while survivors._ROSTER.epoch < 2:
            optimizer.zero_grad()
            model(batch(handle.step)).square().mean().backward()
            optimizer.step()
            time.sleep(0.01)
    train(handle, model, optimizer, handle.step + 5)
    return train(attached(model, TOPK, optimizer), model, optimizer, 8)


def test_one_that_came_attaches_again_as_the_others_do(tmp_path: Path) -> None:
    with Ranks(4, tmp_path) as ranks:
        outcomes = ranks.outcomes(_attached_again_with_one_that_came, str(tmp_path / "own"))
    assert outcomes[2].died
    assert all(outcomes[r].ok for r in (0, 1, 3)), stories(outcomes)
    same([outcomes[r].value for r in (0, 1, 3)], world=3, step=8)


# -- one that comes and does not fit -----------------------------------------------------------


def _comes_unlike(place: str, what: str) -> Any:
    """The fourth process takes the place of rank 2, with another model or optimizer."""
    process, store = dist.get_rank(), dist.FileStore(place, 4)
    while process == 3 and not store.check(["gradwire/1/processes"]):
        time.sleep(0.05)
    survivors.init_by(store, min(process, 2), 3, "gloo", 60.0)
    model: Any = small()
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.05)
    if process == 3:
        if what == "model":
            model.three = nn.Linear(3, 3)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), 0.05)
        with pytest.raises((PlanError, UsageError)) as error:
            attached(model, TOPK, optimizer)
        return str(error.value)
    handle = attached(model, TOPK, optimizer)
    if process == 2:
        inject(handle, Die(at=9), lane=0)
    made, at = survivors._ROSTER, 0
    assert made is not None
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        while made.epoch < 3 or handle.step < at + 5:
            at = handle.step if made.epoch < 3 else at
            optimizer.zero_grad()
            model(batch(handle.step)).square().mean().backward()
            optimizer.step()
            time.sleep(0.01)
    end = train(handle, model, optimizer, handle.step)
    return end, [str(w.message) for w in seen]


@pytest.mark.parametrize(
    ("what", "words", "told"),
    [
        ("model", "all ranks must attach the same plan", "process 3 cannot join: all ranks must"),
        ("optimizer", "SGD of 8 parameters; got AdamW of 8", "process 3 was lost; 2 ranks go on"),
    ],
)
def test_one_that_comes_and_does_not_fit(tmp_path: Path, what: str, words: str, told: str) -> None:
    """It ends with an error; the others, which are right, go on without it."""
    with Ranks(4, tmp_path) as ranks:
        outcomes = ranks.outcomes(_comes_unlike, str(tmp_path / "own"), what)
    assert outcomes[2].died
    assert all(outcomes[r].ok for r in (0, 1, 3)), stories(outcomes)
    assert words in outcomes[3].value
    (one, said), (other, _) = (outcomes[r].value for r in (0, 1))
    same([one, other], world=2, step=one.step)
    assert any(text.startswith(told) for text in said), said
