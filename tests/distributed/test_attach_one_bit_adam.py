"""OneBitAdam beside an attached plan: its warm-up, loss scales, and what it refuses."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Ranks
from small import (
    attached,
    entry,
    fingerprint,
    loss_of,
    raised,
    small,
)
from torch.amp import GradScaler
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import gradwire
from gradwire import Warmup
from gradwire.errors import UsageError

KEPT = "residual", "owners_residual", "velocity"


def one_bit_adam() -> list[Any]:
    """The strategy of a matrix in each step, and the weights' fingerprint."""
    model, seen = small(), []
    plan = "onebit+shared_momentum | alltoall"
    with attached(model, plan, warmup=Warmup(3, (1.0,))) as handle:
        adam = gradwire.optim.OneBitAdam(
            model.parameters(), 1e-3, betas=(0.9, 0.99), freeze_step=3
        )
        for step in range(6):
            adam.zero_grad()
            loss_of(model, step).backward()
            adam.step()
            seen.append(str(handle.plan.strategy_of("one.weight")))
        state = entry(handle)["state"]
        assert all(float(state["one.weight"][key].abs().max()) > 0 for key in KEPT)
        other = gradwire.optim.OneBitAdam(model.parameters(), betas=(0.8, 0.99), freeze_step=3)
        with pytest.raises(UsageError, match=r"shared_momentum\(0\.8\)"):
            other.step()
    return [*seen, fingerprint(model.parameters())]


def one_bit_adam_clipped(scaled: bool) -> str:
    """The variance is learned from differences of momenta, which clipping destroys."""
    model, plan = small(), "onebit+shared_momentum | alltoall"
    scaler = GradScaler("cpu", enabled=scaled)
    with attached(model, plan, warmup=Warmup(9, (1.0,)), scaler=scaler if scaled else None):
        adam = gradwire.optim.OneBitAdam(model.parameters(), 1e-3, freeze_step=9)
        for step, norm in enumerate((1e9, 1e9, 1e-3)):
            adam.zero_grad()
            scaler.scale(loss_of(model, step)).backward()
            scaler.unscale_(adam)
            torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
            try:
                scaler.step(adam)
            except UsageError as error:
                return f"{step}: {error}"
            scaler.update()
    return "stepped"


def one_bit_adam_rounded() -> bool:
    """Whether it takes a scale that is no power of two, and NaN, without an error about changed
    momenta."""
    model, scaler = small(), GradScaler("cpu", init_scale=1000.0)
    plan, warmup = "onebit+shared_momentum | alltoall", Warmup(9, (1.0,))
    with attached(model, plan, warmup=warmup, scaler=scaler):
        adam = gradwire.optim.OneBitAdam(model.parameters(), 1e-3, freeze_step=9)
        for step in range(3):
            adam.zero_grad()
            scaler.scale(loss_of(model, step)).backward()
            scaler.step(adam)
            scaler.update()
    moved = not torch.equal(model.one.weight, small().one.weight)
    with attached(model, plan, warmup=warmup):
        adam = gradwire.optim.OneBitAdam(model.parameters(), 1e-3, freeze_step=9)
        for factor in (1.0, math.nan):
            adam.zero_grad()
            (loss_of(model) * factor).backward()
            adam.step()
    return moved and bool(model.one.weight.isnan().any())


def test_one_bit_adam_takes_what_is_rounded_and_what_is_nan(three: Ranks) -> None:
    assert three.run(one_bit_adam_rounded) == [True] * 3


def one_bit_adam_skips() -> list[Any]:
    """A step that the scaler skips does not count for the warm-up."""
    model, scaler = small(), GradScaler("cpu", init_scale=4.0)
    plan, warmup = "onebit+shared_momentum | alltoall", Warmup(4, (1.0,))
    with attached(model, plan, warmup=warmup, scaler=scaler) as handle:
        adam = gradwire.optim.OneBitAdam(model.parameters(), 1e-3, freeze_step=4)
        for step in range(8):
            adam.zero_grad()
            bad = step in (1, 2) and dist.get_rank() == step
            scaler.scale(loss_of(model, step) * (math.inf if bad else 1.0)).backward()
            scaler.step(adam)
            scaler.update()
            if step == 2:  # a resume keeps the count
                handle.load_state_dict(copy.deepcopy(handle.state_dict()))
        (state, *_) = adam.state.values()
        return [
            str(handle.plan.strategy_of("one.weight")),
            int(state["step"]),
            "momentum" in state,
        ]


def test_a_skipped_step_is_none_of_the_warm_up(three: Ranks) -> None:
    for strategy, steps, learns in three.run(one_bit_adam_skips):
        assert strategy.startswith("onebit")
        assert steps == 6
        assert not learns


def one_bit_adam_attached_anew(plan: str) -> str:
    model = small()
    adam = gradwire.optim.OneBitAdam(model.parameters(), 1e-3, freeze_step=2)
    with attached(model, "onebit+shared_momentum | alltoall", warmup=Warmup(2, (1.0,))):
        for step in range(3):
            adam.zero_grad()
            loss_of(model, step).backward()
            adam.step()
    adam.zero_grad()
    with attached(model, plan) if plan else nullcontext():
        loss_of(model).backward()
        return raised(adam.step)


@pytest.mark.parametrize(
    "plan", ["onebit+ef | alltoall", "onebit+shared_momentum(0.8) | alltoall", ""]
)
def test_one_bit_adam_is_told_of_gradients_that_come_later(three: Ranks, plan: str) -> None:
    """Nor does it take another momentum, which a scheduler may have changed."""
    for said in three.run(one_bit_adam_attached_anew, plan):
        assert "needs the averaged momentum instead of a gradient" in said
        assert "cycle_momentum=False" in said


def one_bit_adam_too_long() -> tuple[str, str]:
    """The variance takes ten steps to learn, of which only three are dense."""
    model = small()
    with attached(model, "onebit+shared_momentum | alltoall", warmup=Warmup(3, (1.0,))):
        adam = gradwire.optim.OneBitAdam(model.parameters(), 1e-3, freeze_step=10)
        for step in range(3):
            adam.zero_grad()
            loss_of(model, step).backward()
            adam.step()
        adam.zero_grad()
        loss_of(model, 3).backward()
        return raised(adam.step), raised(torch.optim.AdamW(model.parameters()).step)


def test_one_bit_adam_is_told_of_a_variance_that_is_not_learned(three: Ranks) -> None:
    for compressed, other in three.run(one_bit_adam_too_long):
        assert "in step 4 of freeze_step=10" in compressed
        assert "Use gradwire.optim.OneBitAdam(" in other


@pytest.mark.parametrize("scaled", [False, True])
def test_one_bit_adam_is_told_of_clipped_momenta(three: Ranks, scaled: bool) -> None:
    for said in three.run(one_bit_adam_clipped, scaled):
        assert said.startswith("2: while OneBitAdam learns")
        assert "attach(clip_norm=" in said


def resumed_by_dcp(folder: str, flat: bool) -> bool:
    """A new optimizer has a momentum, and after freeze_step the one that was saved has none."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)

    def job(steps: range, resumes: bool) -> str:
        model = small()
        adam = gradwire.optim.OneBitAdam(model.parameters(), 1e-3, freeze_step=2)
        plan, warmup = "onebit+shared_momentum | alltoall", Warmup(2, (1.0,))
        with attached(model, plan, warmup=warmup) as handle:
            if resumes:
                state = {"model": model.state_dict(), "optimizer": {}}
                state["optimizer"] = get_optimizer_state_dict(model, adam, options=options)
                dcp.load(state, checkpoint_id=folder)
                model.load_state_dict(state["model"])
                set_optimizer_state_dict(model, adam, state["optimizer"], options=options)
                handle.load_checkpoint(folder)
                assert all("momentum" not in own for own in adam.state.values())
            for step in steps:
                adam.zero_grad()
                loss_of(model, step).backward()
                adam.step()
                if step == 3 and not resumes:
                    state = {"model": model.state_dict(), "gradwire": handle.state_dict()}
                    state["optimizer"] = get_optimizer_state_dict(model, adam, options=options)
                    dcp.save(state, checkpoint_id=folder)
            return fingerprint(model.parameters())

    return job(range(6), False) == job(range(4, 6), True)


@pytest.mark.parametrize("flat", [False, True])
def test_one_bit_adam_resumes_from_a_checkpoint(three: Ranks, flat: bool, tmp_path: Path) -> None:
    assert all(three.run(resumed_by_dcp, str(tmp_path / "saved"), flat))


def test_one_bit_adam_learns_while_the_plan_is_dense(three: Ranks) -> None:
    """Vectors travel dense for ever, which is not an error."""
    first, *others = three.run(one_bit_adam)
    dense, sparse = "none+shared_momentum | allreduce", "onebit+shared_momentum | alltoall"
    assert first[:6] == [dense] * 3 + [sparse] * 3
    assert all(other == first for other in others)
