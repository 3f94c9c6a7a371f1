"""What ranks that are left remember of an optimizer, and one that fails as it takes that over."""

from __future__ import annotations

import copy
import os
import signal
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from broken import WIDE
from ranks import Ranks, stories
from small import attached as attached_in
from small import batch, fingerprint, raised, residuals, small
from test_attach_moments import (
    COARSE,
    DENSE,
    EXACT,
    adamw,
    compared,
    model_of,
    moved,
    step_of,
    trained_densely,
    twin_of,
)
from test_survivors import TOPK, attached, same, train
from test_survivors_edges import Breaks

from gradwire.testing import Die, inject
from gradwire.training import survivors


def _lost_after_dense_moments() -> dict[str, tuple[float, float]]:
    """A dense job goes on by adam, and a rank is lost in the first step. Returns the next step,
    compared with that of AdamW among those that are left."""
    before, state = trained_densely(adamw)
    model, dense = twin_of(before), twin_of(before)
    optimizer, plain = adamw(model), adamw(dense, torch.optim.AdamW)
    plain.load_state_dict(copy.deepcopy(state))
    optimizer.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handle = attached(model, EXACT, optimizer)
        inject(handle, Die(at=0), rank=1, lane=0)
        step_of(model, optimizer, 60)
    assert dist.get_world_size() == 3, "the step is dropped"
    step_of(model, optimizer, 61)
    handle.detach()
    with attached_in(dense, DENSE):
        step_of(dense, plain, 61)
    names = [name for name, _ in model.named_parameters()]
    return {n: compared(moved(model, before, n), moved(dense, before, n)) for n in names}


def test_a_rank_is_lost_as_a_dense_job_goes_on_by_adam(tmp_path: Path) -> None:
    """Moments are the average's until noise was measured. If that was forgotten, steps would be
    longer by the root of the number of ranks."""
    with Ranks(4, tmp_path) as ranks:
        outcomes = ranks.outcomes(_lost_after_dense_moments)
    assert outcomes[1].died
    for rank in (0, 2, 3):
        assert outcomes[rank].ok, stories(outcomes)
        for name, (length, cosine) in outcomes[rank].value.items():
            assert 0.9 < length < 1.1, (name, length)
            assert cosine > 0.9, (name, cosine)


def _with_two_optimizers() -> tuple[str, bool]:
    model = small()
    first = torch.optim.SGD(model.one.parameters(), 0.05)
    second = torch.optim.AdamW([*model.conv.parameters(), *model.two.parameters()], 0.05)
    handle = attached(model, TOPK, first)
    model(batch()).square().mean().backward()
    first.step()
    text = raised(second.step)
    is_as_it_was = not second.state
    handle.detach()
    return text, is_as_it_was


def test_a_second_optimizer_is_refused(tmp_path: Path) -> None:
    """Ranks share the state of the one that was passed: a rank that came would step by another."""
    with Ranks(2, tmp_path) as ranks:
        for text, is_as_it_was in ranks.run(_with_two_optimizers):
            assert "this AdamW is another than the SGD passed to attach. Give" in text
            assert is_as_it_was


class NumpyS(float):
    """A number that is not Python's own, as numpy.float64, which is a float, too."""


def _by_numpy_s_rates() -> tuple[float, str]:
    """One rank is a step behind, and gets the optimizer's state of another."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    handle = attached(model, TOPK, optimizer, lanes=1, check_every=1000)
    inject(handle, Breaks(at=3 * len(handle.plan.buckets) - 1), rank=2, lane=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while handle.step < 9:
            optimizer.param_groups[0]["lr"] = NumpyS(0.05 * 0.9**handle.step)
            optimizer.zero_grad()
            model(batch(handle.step)).square().mean().backward()
            optimizer.step()
    handle.detach()
    return optimizer.param_groups[0]["lr"], fingerprint(model.parameters())


def test_rates_may_be_numpy_s(tmp_path: Path) -> None:
    """Where states are loaded, torch takes Python's own numbers alone."""
    with Ranks(3, tmp_path) as ranks:
        assert len(set(ranks.run(_by_numpy_s_rates))) == 1


def _fails_alone(place: str) -> Any:
    """Rank 2 fails where the others attach again after a loss, and its process stays."""
    store, rank, model = dist.FileStore(place, 4), dist.get_rank(), small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = attached(model, TOPK, optimizer, timeout_seconds=200.0)
    inject(handle, Die(at=9), rank=1, lane=0)
    if rank == 2:
        with (
            patch.object(survivors.Survivors, "catch_up", side_effect=ValueError("its own")),
            pytest.raises(ValueError, match="its own"),
        ):
            train(handle, model, optimizer, 8)
        store.wait(["over"], timedelta(seconds=WIDE))
        return handle.attached
    end = train(handle, model, optimizer, 8)
    store.set("over", "yes")
    return end


def test_who_fails_as_the_others_attach_again_is_left_behind(tmp_path: Path) -> None:
    """Its thread does not answer any more, for which the others would wait."""
    with Ranks(4, tmp_path) as ranks:
        outcomes = ranks.outcomes(_fails_alone, str(tmp_path / "own"), timeout_seconds=90.0)
    assert outcomes[1].died
    assert outcomes[2].value is False, stories(outcomes)
    same([outcomes[r].value for r in (0, 3)], world=2, step=8)


# -- parts of machines ---------------------------------------------------------------------------


def _changed_places() -> tuple[int, bool, bool, str]:
    """One of two machines is lost; of the other, rank 1 is a step ahead, and becomes rank 0."""
    process = dist.get_rank()
    os.environ["GROUP_RANK"] = f"{process // 2}"
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle: Any = attached(model, "topk(0.1)+ef | hierarchical", optimizer, check_every=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(4):
            step_of(model, optimizer, step)
        did_wait = any(x.any() for x in residuals(handle).values())
        if process == 1:
            handle._session.on_lost.__self__._steps += 1
        if process > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        step_of(model, optimizer, 4)
        waits = any(x.any() for x in residuals(handle).values())
        step_of(model, optimizer, 5)
    rank = dist.get_rank()
    handle.detach()
    return rank, did_wait, waits, fingerprint(model.parameters())


def test_ranks_of_a_machine_that_change_places_leave_their_parts(tmp_path: Path) -> None:
    """What waits of one part must not be sent as that of another."""
    with Ranks(4, tmp_path) as ranks:
        outcomes = ranks.outcomes(_changed_places)
    assert all(outcome.ok for outcome in outcomes[:2]), stories(outcomes)
    one, other = (outcome.value for outcome in outcomes[:2])
    assert (one[:3], other[:3]) == ((1, True, False), (0, True, False))
    assert one[3] == other[3]


def test_one_that_comes_gets_no_moments_of_another_s_part() -> None:
    values = {"exp_avg": torch.ones(2), "steps": torch.ones(1), "residual": torch.ones(2)}
    own = {"part": [0, 2], "tensors": 6, "state": {"whole": values, "part": values}}
    before = {"ranks": {"0": own}, "plan": {COARSE: ["whole", "part"]}, "taken": 1, "world": 4}
    optimizer = torch.optim.SGD([torch.zeros(2)], 0.1)
    came = survivors._Memory(optimizer, None)
    came.take(survivors._Memory(optimizer, before, {"part"}).packed())
    found = {name: set(values) for name, values in came._moments.items()}
    assert found == {"whole": {"exp_avg", "steps"}, "part": set()}


# -- the own view --------------------------------------------------------------------------------


def _said(run: Callable[[Any, Any], None]) -> list[str]:
    """Returns what was said of forwards that go round the module; there is none here."""
    model = model_of()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(model, adamw(model))
    return [str(w.message) for w in seen if "own view" in str(w.message)]


def _loses_a_rank(model: Any, optimizer: Any) -> None:
    handle = attached(model, COARSE, optimizer)
    for step in range(6):
        if step == 4 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        step_of(model, optimizer, step)
    assert dist.get_world_size() == 2
    handle.detach()


def _resumes(model: Any, optimizer: Any) -> None:
    with attached_in(model, COARSE) as handle:
        for step in range(4):
            step_of(model, optimizer, step)
        state = copy.deepcopy(handle.state_dict())
    with attached_in(model, COARSE) as handle:
        handle.load_state_dict(state)
        optimizer.zero_grad()
        handle.flush()
        optimizer.step()


@pytest.mark.parametrize("run", [_loses_a_rank, _resumes])
def test_a_step_count_that_was_taken_over_is_no_exchange(
    tmp_path: Path, run: Callable[[Any, Any], None]
) -> None:
    """After a loss, and after a resume that flushes at once, no forward belongs to the step."""
    with Ranks(3, tmp_path) as ranks:
        outcomes = ranks.outcomes(_said, run)
    left = [outcome for outcome in outcomes if not outcome.died]
    assert len(left) >= 2
    assert all(outcome.ok for outcome in left), stories(outcomes)
    assert not any(outcome.value for outcome in left)
