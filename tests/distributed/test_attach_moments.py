"""Moments pass from a dense optimizer to the plan that keeps them, and back."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, close, entry, raised
from test_fsdp import joined, loss_of, sharded
from torch import Tensor, nn

import gradwire
from gradwire.training.trainable import shard_of

BETAS = (0.9, 0.99)
EXACT = "none+adam(beta2=0.99) | allgather"
COARSE = "lloyd(2)+adam(beta2=0.99) | allgather"
MUON = "lloyd(2)+muon(beta2=0.99) | alltoall"
DENSE = "none | allreduce"
Moments = dict[Tensor, dict[str, Any]]


def model_of(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 30))


def twin_of(model: nn.Module) -> nn.Module:
    twin = model_of()
    twin.load_state_dict(model.state_dict())
    return twin


class Wrapped(torch.optim.Optimizer):
    """What a trainer makes of an optimizer, such as Accelerate's."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A step of a regression with much noise, on data of each rank's own."""
    dice = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    x, noise = torch.randn(8, 40, generator=dice), torch.randn(8, 30, generator=dice)
    optimizer.zero_grad()
    (model(x) - x[:, :30] - 3 * noise).square().mean().backward()
    optimizer.step()


def adamw(model: nn.Module, kind: type = gradwire.optim.AdamW) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = kind(model.parameters(), 1e-3, betas=BETAS)
    return made


def muon(model: nn.Module) -> torch.optim.Optimizer:
    return gradwire.optim.Muon.of(model, lr=1e-3, betas=BETAS)


def trained_densely(make: Any, steps: int = 60) -> tuple[nn.Module, dict[str, Any]]:
    """A model that was trained densely, and its optimizer's state."""
    model = model_of()
    with attached(model, DENSE):
        optimizer = make(model)
        for step in range(steps):
            step_of(model, optimizer, step)
    return model, optimizer.state_dict()


def moved(model: nn.Module, before: nn.Module, name: str) -> Tensor:
    return model.get_parameter(name).detach() - before.get_parameter(name).detach()


def compared(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The ratio of the lengths, and the cosine of the angle between."""
    cosine = torch.nn.functional.cosine_similarity(one.view(-1), other.view(-1), dim=0)
    return float(one.norm() / other.norm()), float(cosine)


def went_on(plan: str, loads: str) -> dict[str, tuple[float, float]]:
    """The next step of a dense job by a plan with adam, compared with the dense step."""
    torch_s = lambda m: adamw(m, torch.optim.AdamW)  # noqa: E731
    before, state = trained_densely(torch_s)
    dense, model = twin_of(before), twin_of(before)
    with attached(dense, DENSE):
        optimizer = torch_s(dense)
        optimizer.load_state_dict(copy.deepcopy(state))
        step_of(dense, optimizer, 60)
    optimizer = adamw(model)
    told = {"before": optimizer, "before, wrapped": Wrapped(optimizer)}.get(loads)
    if told is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    with attached(model, plan, optimizer=told) as handle:
        if loads == "after":
            optimizer.load_state_dict(copy.deepcopy(state))
        if loads == "by name":
            torch_owner = torch_s(model)
            torch_owner.load_state_dict(copy.deepcopy(state))
            handle.take_moments(torch_owner)
            assert not torch_owner.state
        assert not optimizer.state
        step_of(model, optimizer, 60)
    names = [name for name, _ in model.named_parameters()]
    return {n: compared(moved(model, before, n), moved(dense, before, n)) for n in names}


@pytest.mark.parametrize("loads", ["before", "before, wrapped", "after", "by name"])
def test_a_dense_job_goes_on_by_adam(four: Ranks, loads: str) -> None:
    for found in four.run(went_on, EXACT, loads):
        for name, (length, cosine) in found.items():
            # The noise of all ranks' steps differs, their length does not.
            assert 0.95 < length < 1.05, (name, length)
            assert cosine > 0.9, (name, cosine)


def test_what_travels_dense_goes_on_in_the_steps_of_adamw(four: Ranks) -> None:
    for found in four.run(went_on, COARSE, "after"):
        for name in ("0.bias", "2.bias"):
            assert found[name] == pytest.approx((1, 1), abs=1e-4), name


def of_shards(kind: type) -> None:
    """A sharded model's dense job goes on by adam, from this rank's parts of the moments."""
    model = sharded()
    optimizer = kind(model.parameters(), 1e-3, betas=BETAS)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()

    with joined(model, DENSE):
        for number in range(3):
            step(number)
    parts = {n: shard_of(optimizer.state[p]["exp_avg"]) for n, p in model.named_parameters()}
    then = {name: x.flatten().clone() for name, x in parts.items() if x.numel()}
    ours = optimizer if kind is gradwire.optim.AdamW else None
    with joined(model, EXACT, optimizer=ours) as handle:
        if ours is None:
            handle.take_moments(optimizer)
            optimizer = adamw(model)
        state = entry(handle)["state"]
        assert state.keys() == then.keys()
        close({name: state[name]["exp_avg"].flatten() for name in then}, then)
        step(3)
        assert all(p.full_tensor().isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", [gradwire.optim.AdamW, torch.optim.AdamW])
def test_a_dense_job_of_shards_goes_on_by_adam(four: Ranks, kind: type) -> None:
    four.run(of_shards, kind)


def came_back() -> dict[str, tuple[float, float]]:
    """Thirty steps by adam; then the next one by torch's AdamW, compared with adam's own."""
    before, state = trained_densely(adamw)
    with attached(before, EXACT) as handle:
        optimizer = adamw(before)
        optimizer.load_state_dict(copy.deepcopy(state))
        for step in range(60, 90):
            step_of(before, optimizer, step)
        assert not optimizer.state
        kept = copy.deepcopy(entry(handle)["state"])
        handle.give_moments(optimizer)
        given = copy.deepcopy(optimizer.state_dict())
        kept_still = entry(handle)["state"]
        assert torch.equal(kept_still["0.weight"]["exp_avg"], kept["0.weight"]["exp_avg"])
        mine, weight = kept["0.weight"], optimizer.state[before.get_parameter("0.weight")]
        _check_mean(weight["exp_avg"], mine["exp_avg"])
        _check_mean(weight["exp_avg_sq"], mine["exp_avg_sq"] / mine["noise"][2] ** 2)
        assert mine["noise"][2] > 1.2
        assert float(weight["step"]) == 90
        model = twin_of(before)
        step_of(before, optimizer, 90)  # it steps by the plan still
    after, model_before = before, twin_of(model)
    with attached(model, DENSE):
        dense = adamw(model, torch.optim.AdamW)
        dense.load_state_dict(given)
        step_of(model, dense, 90)
    names = [name for name, _ in model.named_parameters()]
    return {
        n: compared(moved(model, model_before, n), moved(after, model_before, n)) for n in names
    }


def _check_mean(given: Tensor, own: Tensor) -> None:
    total = own.clone()
    dist.all_reduce(total)
    torch.testing.assert_close(given, total.view_as(given) / dist.get_world_size())


def test_a_dense_job_goes_on_after_adam(four: Ranks) -> None:
    for found in four.run(came_back):
        for name, (length, cosine) in found.items():
            assert 0.9 < length < 1.1, (name, length)
            assert cosine > 0.9, (name, cosine)


def resumed() -> bool:
    """Moments that were given, and saved beside the plan's own, do not replace these."""
    model = model_of()
    with attached(model, COARSE) as handle:
        optimizer = adamw(model)
        for step in range(5):
            step_of(model, optimizer, step)
        handle.give_moments(optimizer)
        parts = copy.deepcopy((model.state_dict(), optimizer.state_dict(), handle.state_dict()))
        for step in range(5, 9):
            step_of(model, optimizer, step)
    wanted, found = model.state_dict(), []
    for first in ("plan", "optimizer"):
        model = model_of(3)
        model.load_state_dict(parts[0])
        with attached(model, COARSE) as handle:
            optimizer = adamw(model)
            if first == "plan":
                handle.load_state_dict(parts[2])
            optimizer.load_state_dict(parts[1])
            if first == "optimizer":
                handle.load_state_dict(parts[2])
            for step in range(5, 9):
                step_of(model, optimizer, step)
        found.append(all(torch.equal(model.state_dict()[k], v) for k, v in wanted.items()))
    return all(found)


def test_a_resume_goes_on_with_the_plan_s_own(two: Ranks) -> None:
    assert two.run(resumed) == [True, True]


def given_too_early() -> str:
    """The state that two ranks load after four have saved it has no noise."""
    model = model_of()
    with attached(model, COARSE) as handle:
        optimizer = adamw(model)
        step_of(model, optimizer, 0)
        state: Any = copy.deepcopy(handle.state_dict())
        own = state["ranks"][f"{dist.get_rank()}"]
        for values in own["state"].values():
            own["tensors"] -= values.pop("noise", None) is not None
        handle.load_state_dict(state)
        text = raised(lambda: handle.give_moments(optimizer))
        assert not optimizer.state
        step_of(model, optimizer, 1)
        handle.give_moments(optimizer)
        assert optimizer.state
    return text


def test_moments_whose_noise_is_not_known_are_not_given(two: Ranks) -> None:
    for text in two.run(given_too_early):
        assert "that of '0.weight' is not known" in text


def by_muon() -> tuple[float, float]:
    before, state = trained_densely(muon)
    momentum = state["state"][0]["momentum_buffer"]
    dense, model = twin_of(before), twin_of(before)
    with attached(dense, DENSE):
        optimizer = muon(dense)
        optimizer.load_state_dict(copy.deepcopy(state))
        step_of(dense, optimizer, 60)
    optimizer = muon(model)
    with attached(model, MUON, optimizer=optimizer) as handle:
        optimizer.load_state_dict(copy.deepcopy(state))
        assert torch.equal(entry(handle)["state"]["0.weight"]["exp_avg"], momentum)
        step_of(model, optimizer, 60)
        handle.give_moments(optimizer)
        given = optimizer.state[model.get_parameter("0.weight")]
        _check_mean(given["momentum_buffer"], entry(handle)["state"]["0.weight"]["exp_avg"])
    return compared(moved(model, before, "0.weight"), moved(dense, before, "0.weight"))


def test_a_dense_job_goes_on_by_muon(four: Ranks) -> None:
    for length, cosine in four.run(by_muon):
        assert 0.5 < length < 1.5
        assert cosine > 0.6


def refused() -> str:
    model = model_of()
    with attached(model, COARSE) as handle:
        return raised(lambda: handle.take_moments(adamw(model)))


def test_an_optimizer_without_moments_is_refused(two: Ranks) -> None:
    for said in two.run(refused):
        assert "this AdamW has none" in said


def not_told() -> list[str]:
    model, state = trained_densely(adamw, 3)
    optimizer = adamw(model)
    optimizer.load_state_dict(state)
    with attached(model, COARSE), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            step_of(model, optimizer, step)
    return [str(w.message) for w in caught if "are not used" in str(w.message)]


def test_moments_that_nobody_uses_are_told_of_once(two: Ranks) -> None:
    for said in two.run(not_told):
        assert len(said) == 1
        assert "of 4 parameters" in said[0]


def given_to_others() -> tuple[list[int], str, str, str]:
    """Moments go to optimizers of parts of a model, and not to those that step by other
    moments."""
    model = model_of()
    with attached(model, COARSE) as handle:
        optimizer = adamw(model)
        for step in range(2):
            step_of(model, optimizer, step)
        parts = [adamw(part) for part in (model[0], model[2])]
        for part in parts:
            handle.give_moments(part)
        sizes = [len(part.state_dict()["state"]) for part in parts]
        amsgrad = gradwire.optim.AdamW(model.parameters(), betas=BETAS, amsgrad=True)
        said = raised(lambda: handle.give_moments(amsgrad))
    with attached(model, MUON, optimizer=muon(model)) as handle:
        step_of(model, muon(model), 3)
        other = raised(lambda: handle.give_moments(adamw(model)))
        sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for p in model.parameters():
            sgd.state[p] = {"momentum_buffer": torch.ones_like(p)}
        taken = raised(lambda: handle.take_moments(sgd))
    return sizes, said, other, taken


def given_to_a_stranger(kind: type[torch.optim.Optimizer], steps: int) -> tuple[str, bool]:
    """What an optimizer that steps by other moments is told after so many steps, and whether it
    then has the state that it had."""
    model = model_of()
    stranger = kind(model.parameters(), lr=0.1)
    for step in range(steps):
        step_of(model, stranger, step)
    before = copy.deepcopy(stranger.state_dict()["state"])
    with attached(model, COARSE) as handle:
        step_of(model, adamw(model), 0)
        told = raised(lambda: handle.give_moments(stranger))
    after = stranger.state_dict()["state"]
    return told, str(before) == str(after)


@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.NAdam, gradwire.optim.SGD]
)
@pytest.mark.parametrize("steps", [0, 2])
def test_a_stranger_gets_no_moments(
    two: Ranks, kind: type[torch.optim.Optimizer], steps: int
) -> None:
    for told, is_as_before in two.run(given_to_a_stranger, kind, steps):
        assert f"keeps others than {kind.__name__} has" in told
        assert is_as_before


def test_moments_go_to_who_steps_by_them(two: Ranks) -> None:
    for sizes, amsgrad, other, taken in two.run(given_to_others):
        assert sizes == [2, 2]
        assert "AdamW with amsgrad has" in amsgrad
        assert "keeps others than AdamW has" in other
        assert "this SGD has none" in taken


def in_their_order() -> bool:
    """Moments are given in the memory order of their weights, which torch's fused steps need."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 32, 3), nn.Flatten()).to(memory_format=torch.channels_last)
    with attached(model, COARSE) as handle:
        optimizer = adamw(model)
        model(torch.randn(2, 8, 5, 5)).square().mean().backward()
        optimizer.step()
        handle.give_moments(optimizer)
        weight = model[0].weight
        given = optimizer.state[weight]["exp_avg"]
        own = entry(handle)["state"]["0.weight"]["exp_avg"]
        _check_mean(given.contiguous(), own)
        return given.stride() == weight.stride()


def test_moments_lie_as_their_weights_do(two: Ranks) -> None:
    assert two.run(in_their_order) == [True, True]
