"""Local steps: states, weights that are loaded, and steps that do not count."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Ranks
from small import fingerprint, raised, small
from test_local_steps import DENSE, DILOCO, SPARSE, flat, train
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from gradwire import LocalSteps
from gradwire.errors import PlanError, UsageError


def made(seed: int, plan: str = SPARSE) -> tuple[nn.Module, torch.optim.Optimizer, LocalSteps]:
    model = small(seed)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    return model, optimizer, LocalSteps(model, optimizer, 4, plan, fragments=2, **DILOCO)


def interrupted(plan: str, stop: int) -> bool:
    model, optimizer, local = made(0, plan)
    train(model, optimizer, range(stop))
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    saved = {k: torch.load(_saved(v)) for k, v in {**saved, "local": local.state_dict()}.items()}
    train(model, optimizer, range(stop, 12))
    local.detach()
    again, optimizer, local = made(9, plan)
    again.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    local.load_state_dict(saved["local"])
    train(again, optimizer, range(stop, 12))
    local.detach()
    return torch.equal(flat(model), flat(again))


def _saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


@pytest.mark.once
@pytest.mark.parametrize("plan", [SPARSE, "qsgd(4)+ef | alltoall"])
@pytest.mark.parametrize("stop", [3, 4, 7])
def test_resume_is_the_uninterrupted_run(three: Ranks, plan: str, stop: int) -> None:
    """The resumed run ends with the same bits, also from the middle of a round."""
    assert three.run(interrupted, plan, stop) == [True] * 3


def save(folder: str) -> Tensor:
    model, optimizer, local = made(0)
    train(model, optimizer, range(8))
    local.synchronize()
    saved = {"model": model.state_dict(), "local": local.state_dict()}
    torch.save(saved, f"{folder}/{dist.get_rank()}.pt")
    local.detach()
    return flat(model)


def load(folder: str, count: int) -> Any:
    model, optimizer, local = made(5)
    saved = [torch.load(f"{folder}/{rank}.pt") for rank in range(count)]
    model.load_state_dict(saved[0]["model"])
    try:
        local.load_state_dict([own["local"] for own in saved])
    except PlanError as error:
        local.detach()
        return str(error)
    anchors = torch.cat([a.detach().flatten() for f in local.fragments
                         for a in f.anchors.parameters()])  # fmt: skip
    train(model, optimizer, range(8, 12))
    local.detach()
    return anchors


def test_another_number_of_ranks(four: Ranks, two: Ranks, tmp_path: Path) -> None:
    wanted = four.run(save, str(tmp_path))
    for anchors in two.run(load, str(tmp_path), 4):
        assert torch.equal(anchors, wanted[0])
    assert all("from rank k to rank k mod 2" in said for said in two.run(load, str(tmp_path), 2))


def loaded_under_way() -> bool:
    """A state is loaded while an exchange is under way: the exchange is dropped."""
    weights = []
    for steps in (4, 6):  # at 6, the second round's first half is under way
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        local = LocalSteps(model, optimizer, 3, SPARSE, delay=2)
        train(model, optimizer, range(2))
        saved = torch.load(_saved([model.state_dict(), local.state_dict()]))
        train(model, optimizer, range(2, steps))
        assert local.fragments[0].under_way
        model.load_state_dict(saved[0])
        local.load_state_dict(saved[1])
        train(model, optimizer, range(2, 8))
        weights.append(flat(model))
        local.detach()
    return torch.equal(*weights)


def test_loading_drops_an_exchange_that_is_under_way(three: Ranks) -> None:
    assert three.run(loaded_under_way) == [True] * 3


def by_dcp(folder: str, plan: str) -> str:
    """torch.distributed.checkpoint fills only what the state has; a fresh one has no residuals
    yet."""
    model, optimizer, local = made(0, plan)
    train(model, optimizer, range(8))
    dcp.save({"local": local.state_dict()}, checkpoint_id=folder)
    local.detach()
    _, _, local = made(0, plan)
    state = {"local": local.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    try:
        local.load_state_dict(state["local"])
    except (PlanError, UsageError) as error:
        return str(error)
    finally:
        local.detach()
    return "loaded"


@pytest.mark.parametrize("plan", [DENSE, SPARSE])
def test_what_dcp_leaves_out_is_missed(three: Ranks, tmp_path: Path, plan: str) -> None:
    for said in three.run(by_dcp, str(tmp_path), plan):
        assert "fills only" in said


def weights_loaded(after: int) -> tuple[str, list[bool]]:
    """Loaded weights do not count as progress; after `reset` all ranks begin at rank 0's."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 2, SPARSE, delay=1)
    train(model, optimizer, range(after))
    local.synchronize()
    model.load_state_dict(small(9).state_dict())
    before = flat(model)
    said = raised(optimizer.step)
    model.load_state_dict(small(9 + dist.get_rank()).state_dict())
    local.reset()
    begun = torch.equal(flat(model), before)
    (own,) = local.fragments
    empty = not own.outer.state and not any(own.handle._session.ledger.memory.values())
    train(model, optimizer, range(3))
    begun_anew = own.launched_at == local.step - (after + 1) % 2
    local.synchronize()
    near = float((flat(model) - before).norm() / before.norm()) < 0.5
    local.detach()
    return said, [begun, empty, begun_anew, near]


@pytest.mark.parametrize("after", [0, 3, 4])
def test_weights_that_are_loaded_are_no_progress(three: Ranks, after: int) -> None:
    for said, held in three.run(weights_loaded, after):
        assert "'conv.weight' was changed" in said
        assert "reset()" in said
        assert held == [True] * 4


def reset_under_way() -> bool:
    """`reset` drops an exchange that is under way."""
    weights = []
    for late in (False, True):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        local = LocalSteps(model, optimizer, 4, SPARSE, delay=2)
        train(model, optimizer, range(5 if late else 1))
        assert local.fragments[0].under_way == late
        model.load_state_dict(small(3).state_dict())
        local.reset()
        train(model, optimizer, range(1, 6))
        weights.append(flat(model))
        local.detach()
    return torch.equal(*weights)


def test_reset_drops_an_exchange_that_is_under_way(three: Ranks) -> None:
    assert three.run(reset_under_way) == [True] * 3


def usual(dtype: torch.dtype, options: dict[str, Any]) -> int:
    """Nothing that a training loop usually does is taken for loaded weights."""
    model = small().to(dtype)
    mine, theirs = [model.one.weight, model.conv.weight], [model.two.weight]
    optimizer, other = torch.optim.AdamW(mine, 0.01, eps=1e-4), torch.optim.SGD(theirs, 0.1)
    optimizer.register_step_post_hook(lambda *_: mine[1].data.clamp_(-0.1, 0.1))
    local = LocalSteps(model, optimizer, 4, SPARSE, **options)

    def step(i: int) -> None:
        generator = torch.Generator().manual_seed(9 * i + dist.get_rank())
        model(torch.randn(4, 2, 5, 5, generator=generator).to(dtype)).square().mean().backward()
        other.step()  # moves its parameters at another time than `optimizer`
        optimizer.step()
        other.step()
        model.zero_grad()

    for i in range(10):
        step(i)
        if i % 3 == 0:
            local.synchronize()
            for p in mine:  # weights that are swapped for an evaluation and back
                p.data.mul_(1.1).div_(1.1)
    saved = copy.deepcopy([model.state_dict(), local.state_dict()])
    step(10)
    local.load_state_dict(saved[1])  # before the model's state
    model.load_state_dict(saved[0])
    for i in range(10, 16):
        step(i)
    local.detach()
    model.load_state_dict(saved[0])
    step(16)
    return local.step


@pytest.mark.once
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"delay": 1}, {"fragments": 2, "delay": 1}])
def test_nothing_else_looks_like_loaded_weights(
    three: Ranks, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    assert three.run(usual, dtype, options) == [16] * 3


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW,
}  # fmt: skip


def asked_for_states(kind: str) -> tuple[list[int], bool]:
    """One rank reads its optimizer's state, which torch makes by a step with zeros."""
    model = small()
    optimizer = OPTIMIZERS[kind](model.parameters(), 0.1)
    local, steps = LocalSteps(model, optimizer, 3, DENSE), []
    for step in range(3):
        if dist.get_rank() == 0:
            get_optimizer_state_dict(model, optimizer)
        steps.append(local.step)
        equal = train(model, optimizer, range(step, step + 1))[-1]
        optimizer.zero_grad()
    local.detach()
    return steps, equal


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_a_step_that_makes_states_is_none(three: Ranks, kind: str) -> None:
    assert three.run(asked_for_states, kind) == [([0, 1, 2], True)] * 3


def warmed_up() -> int:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    local = LocalSteps(model, optimizer, 4, DENSE)
    model.zero_grad()
    train(model, optimizer, range(1))
    optimizer.step()
    local.detach()
    return local.step


def test_a_step_of_rate_0_is_one(three: Ranks) -> None:
    assert three.run(warmed_up) == [2] * 3


def does_not_fit(how: str) -> tuple[str, bool]:
    """A state that is refused changes nothing, even if its first fragment fits."""
    model, optimizer, local = made(0, SPARSE)
    train(model, optimizer, range(6))
    saved: Any = copy.deepcopy(local.state_dict())
    train(model, optimizer, range(6, 7))
    before = copy.deepcopy(local.state_dict())
    last = saved["fragments"]["1"]
    if how == "name":
        last["anchors"]["three"] = last["anchors"].pop("two.weight")
    elif how == "shape":
        last["anchors"]["two.weight"] = last["anchors"]["two.weight"].T.contiguous()
    elif how == "momenta":
        last["outer"]["state"].clear()
    elif how == "residuals":
        last["gradwire"]["ranks"][f"{dist.get_rank()}"]["tensors"] += 1
    elif how == "fragments":
        del saved["fragments"]["1"]
    said = raised(lambda: local.load_state_dict(saved), (PlanError, UsageError))
    after = local.state_dict()
    local.detach()
    return said, fingerprint(_tensors(before)) == fingerprint(_tensors(after))


def _tensors(state: Any) -> list[Tensor]:
    """All numbers and tensors of the state, in order."""
    if isinstance(state, dict):
        return [x for key in state for x in _tensors(state[key])]
    if isinstance(state, Tensor):
        return [state]
    return [torch.tensor(state)] if isinstance(state, int | float) else []


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("name", "'two.weight' has none in the state"),
        ("shape", "'two.weight' has [13, 3]"),
        ("momenta", "fills only"),
        ("residuals", "as many tensors as were saved"),
        ("fragments", "Pass fragments=1"),
    ],
)
def test_what_does_not_fit_changes_nothing(three: Ranks, how: str, says: str) -> None:
    for said, same in three.run(does_not_fit, how):
        assert says in said
        assert same


def another_plan() -> tuple[str, bool, float]:
    """Residuals pass to another plan with strict=False; the outer rates are the constructor's."""
    model, optimizer, local = made(0, SPARSE)
    train(model, optimizer, range(6))
    saved = copy.deepcopy([model.state_dict(), local.state_dict()])
    waited = sum(own["residual_norm"] for own in local.stats())
    local.detach()
    options: Any = {"fragments": 2, "outer_lr": 0.3, "outer_momentum": 0.5, "nesterov": False}
    local = LocalSteps(model, optimizer, 4, SPARSE.replace("0.1", "0.2"), **options)
    said = raised(lambda: local.load_state_dict(saved[1]), PlanError)
    local.load_state_dict(saved[1], strict=False)
    model.load_state_dict(saved[0])
    waits = sum(own["residual_norm"] for own in local.stats())
    (group,) = local.fragments[1].outer.param_groups
    held = {key: group[key] for key in ("lr", "momentum", "nesterov")}
    local.detach()
    return said, held == {"lr": 0.3, "momentum": 0.5, "nesterov": False}, abs(waits - waited)


def test_a_state_goes_on_by_another_plan_if_asked(three: Ranks) -> None:
    for said, held, lost in three.run(another_plan):
        assert "strict=False" in said
        assert held
        assert lost < 1e-6


def loaded_twice() -> bool:
    """Training on does not write into the state that was loaded."""
    model, optimizer, local = made(0)
    train(model, optimizer, range(6))
    saved: Any = copy.deepcopy(local.state_dict())
    before = fingerprint(_tensors(saved))
    local.load_state_dict(saved)
    train(model, optimizer, range(6, 12))
    local.detach()
    return fingerprint(_tensors(saved)) == before


def test_a_state_may_be_loaded_again(three: Ranks) -> None:
    assert three.run(loaded_twice) == [True] * 3
