"""Local steps: rounds, fragments, delays, what waits of progress, states."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Ranks
from small import attached, fingerprint, from_all, loss_of, raised, small
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import LocalSteps
from gradwire.errors import PlanError, UsageError
from gradwire.training.attached import is_attached

AVERAGE: dict[str, Any] = {"outer_lr": 1.0, "outer_momentum": 0.0, "nesterov": False}
DENSE, SPARSE = "none | allreduce", "topk(0.1)+ef | allgather"


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[bool]:
    """Whether all ranks had the same parameters, after each step."""
    equal = []
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        equal.append(len({fingerprint([x]) for x in from_all(flat(model))}) == 1)
    return equal


def every_step() -> float:
    """One step to a round, averaged: data-parallel SGD, but for the order of operations."""
    one, other = small(), small()
    ours = torch.optim.SGD(one.parameters(), 0.1)
    theirs = torch.optim.SGD(other.parameters(), 0.1)
    local = LocalSteps(one, ours, 1, DENSE, **AVERAGE)
    with attached(other, DENSE):
        assert all(train(one, ours, range(10)))
        train(other, theirs, range(10))
    local.detach()
    return float((flat(one) - flat(other)).abs().max())


def test_one_step_to_a_round_is_data_parallel(three: Ranks) -> None:
    assert max(three.run(every_step)) < 1e-6


def rounds(fragments: int, delay: int) -> tuple[list[bool], list[float], list[bool]]:
    model = small(seed=dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    local = LocalSteps(model, optimizer, 4, SPARSE, fragments=fragments, delay=delay)
    before = flat(model)
    assert len({fingerprint([x]) for x in from_all(before)}) == 1, "rank 0's, to begin with"
    equal = train(model, optimizer, range(12))
    exchanges = [own["steps"] for own in local.stats()]
    under_way = [own.under_way for own in local.fragments]
    local.synchronize()
    assert len({fingerprint([x]) for x in from_all(flat(model))}) == 1
    assert not torch.equal(flat(model), before)
    local.detach()
    train(model, optimizer, range(12, 17))
    assert len({fingerprint([x]) for x in from_all(flat(model))}) == dist.get_world_size()
    return equal, exchanges, under_way


def test_ranks_meet_after_each_round(three: Ranks) -> None:
    for equal, exchanges, _ in three.run(rounds, 1, 0):
        assert equal == [step % 4 == 3 for step in range(12)]
        assert exchanges == [3]


def test_fragments_take_turns(three: Ranks) -> None:
    """Of four steps, the halves meet at the fourth and, two steps later, at the sixth."""
    for equal, exchanges, _ in three.run(rounds, 2, 0):
        assert not any(equal)
        assert exchanges == [3, 2]


def test_exchanges_go_on_while_steps_are_taken(three: Ranks) -> None:
    for equal, _, under_way in three.run(rounds, 2, 1):
        assert not any(equal)
        assert under_way == [True, False], "begun at the twelfth step, and used at the eleventh"


def progress() -> float:
    """Of averages, what arrived and what waits of it is all the progress that ranks made."""
    model, world = small(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 3, SPARSE, **AVERAGE)
    begin, made = flat(model), torch.zeros(flat(model).numel())
    for step in range(9):
        before = flat(model)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]
        made += 0.1 * gradient
        optimizer.step()
        assert step % 3 == 2 or torch.allclose(flat(model), before - 0.1 * gradient, atol=1e-7)
    waits = local.fragments[0].handle._session.ledger.waiting()
    kept = torch.cat([waits.get(n, torch.zeros(p.numel())) for n, p in model.named_parameters()])
    all_made, all_kept = (sum(from_all(x)) / world for x in (made, kept))
    local.detach()
    assert float(kept.abs().max()) > 1e-3
    return float((begin - flat(model) + all_kept - all_made).abs().max())


def test_no_progress_is_lost(three: Ranks) -> None:
    assert max(three.run(progress)) < 1e-5


def by_plan(plan: str) -> Tensor:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 2, plan)
    train(model, optimizer, range(8))
    local.detach()
    return flat(model)


def test_the_outer_momentum_may_be_the_plans(three: Ranks) -> None:
    ours = three.run(by_plan, "dgc(1.0, nesterov=True, mask=False) | allgather")
    theirs = three.run(by_plan, DENSE)
    assert float((ours[0] - theirs[0]).abs().max()) < 1e-6


def made(seed: int, plan: str = SPARSE) -> tuple[nn.Module, torch.optim.Optimizer, LocalSteps]:
    model = small(seed)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    return model, optimizer, LocalSteps(model, optimizer, 4, plan, fragments=2)


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
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("plan", [SPARSE, "qsgd(4)+ef | alltoall"])
@pytest.mark.parametrize("stop", [3, 4, 7])
def test_resume_is_the_uninterrupted_run(three: Ranks, plan: str, stop: int) -> None:
    """Also in the middle of a round."""
    assert three.run(interrupted, plan, stop) == [True] * 3


def save(folder: str) -> Tensor:
    model, optimizer, local = made(0)
    train(model, optimizer, range(8))
    local.synchronize()
    torch.save(local.state_dict(), f"{folder}/{dist.get_rank()}.pt")
    local.detach()
    return flat(model)


def load(folder: str, count: int) -> Any:
    model, optimizer, local = made(5)
    states = [torch.load(f"{folder}/{rank}.pt") for rank in range(count)]
    try:
        local.load_state_dict(states)
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
    assert all("rank k's goes to k mod 2" in said for said in two.run(load, str(tmp_path), 2))


def loaded_under_way() -> bool:
    """A state that is loaded while an exchange is on its way: that exchange is nothing's."""
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


def met_twice() -> bool:
    """No step, no progress: nothing moves, not even by the outer momentum."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 3, DENSE, fragments=2)
    train(model, optimizer, range(7))
    local.synchronize()
    before = flat(model)
    local.synchronize()
    again = LocalSteps(small(), torch.optim.SGD(small().parameters(), 0.1), 3, DENSE, fragments=2)
    again.load_state_dict(torch.load(_saved(local.state_dict())))
    anchors = [a.detach().clone() for f in again.fragments for a in f.anchors.parameters()]
    again.synchronize()
    moved = [a.detach() for f in again.fragments for a in f.anchors.parameters()]
    local.detach()
    again.detach()
    return torch.equal(flat(model), before) and all(map(torch.equal, anchors, moved))


def test_meeting_again_without_a_step_changes_nothing(three: Ranks) -> None:
    assert three.run(met_twice) == [True] * 3


def scaled(resumed: bool) -> str:
    model, scaler = small(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 2, DENSE)
    if resumed:
        local.load_state_dict({**local.state_dict(), "step": 5})
    scaler.scale(loss_of(model)).backward()
    try:
        scaler.step(optimizer)
    except UsageError as error:
        return str(error)
    finally:
        local.detach()
    return "stepped"


@pytest.mark.parametrize("resumed", [False, True])
def test_a_scaler_skips_steps_on_one_rank_only(three: Ranks, resumed: bool) -> None:
    assert all("without a scaler" in said for said in three.run(scaled, resumed))


def diverged(delay: int) -> tuple[bool, bool]:
    """One rank's round ends in inf: all go back, and go on."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 2, SPARSE, delay=delay)
    train(model, optimizer, range(2 + delay))
    anchors = [a for f in local.fragments for a in f.anchors.parameters()]
    before = torch.cat([a.detach().flatten() for a in anchors])
    train(model, optimizer, range(2 + delay, 3))
    if dist.get_rank() == 1:
        with torch.no_grad():
            next(model.parameters()).fill_(float("inf"))
    optimizer.zero_grad()
    if delay:
        optimizer.step()  # on its way
    with pytest.warns(UserWarning, match="round is dropped"):
        optimizer.step()
    back = torch.equal(flat(model), before)
    equal = train(model, optimizer, range(4, 6))[-1] or delay > 0
    local.detach()
    return back, equal and bool(flat(model).isfinite().all())


@pytest.mark.parametrize("delay", [0, 1])
def test_a_round_that_diverges_is_dropped(three: Ranks, delay: int) -> None:
    assert three.run(diverged, delay) == [(True, True)] * 3


def half() -> tuple[float, float]:
    """How far 16-bit parameters came when each round goes 2^-8 of one bfloat16 step, 256 times."""
    model = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), 2**-7)
    local = LocalSteps(model, optimizer, 1, DENSE, **{**AVERAGE, "outer_lr": 2**-8})
    for _ in range(256):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
    local.detach()
    anchor = local.fragments[0].anchors
    return float(model.weight.detach().max()), float(next(anchor.parameters()).detach().max())


def test_small_outer_steps_are_not_lost_in_16_bits(three: Ranks) -> None:
    for here, anchor in three.run(half):
        assert anchor < 0.9945
        assert here == float(torch.tensor(anchor, dtype=torch.bfloat16))


def travels() -> tuple[list[str], list[list[str]]]:
    """How each parameter goes, of two fragments: what is named is found in the whole model."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(
        model, optimizer, 4, SPARSE, fragments=2, exclude=[nn.Conv2d, "two.w*"],
        buckets=[["norm.bias", "two.bias"]],
    )  # fmt: skip
    found = [
        f"{name} {str(strategy).split()[0]}"
        for own in local.fragments
        for bucket, strategy in zip(own.handle.plan.buckets, own.handle.plan.strategies)
        for name in bucket.names if name.endswith("weight")
    ]  # fmt: skip
    alone = [
        list(bucket.names)
        for own in local.fragments
        for bucket in own.handle.plan.buckets
        if bucket.names[0] in ("norm.bias", "two.bias")
    ]
    local.detach()
    for wrong in ({"exclude": ["three.*"]}, {"buckets": [["three.weight"]]}):
        with pytest.raises(PlanError, match="three"):
            LocalSteps(model, optimizer, 4, SPARSE, fragments=2, **wrong)
    assert not any(map(is_attached, model.parameters()))
    return sorted(found), alone


def test_what_is_named_is_found_in_its_fragment(three: Ranks) -> None:
    wanted = ["conv.weight none", "norm.weight none", "one.weight topk(0.1)+ef"]
    wanted.append("two.weight none")
    assert three.run(travels) == [(wanted, [["norm.bias"], ["two.bias"]])] * 3


def kept(keep: float) -> float:
    """How far from keep·θ here + (1 - keep)·θ of all, where the rank went on for a step."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 4, DENSE, delay=1, keep=keep, **AVERAGE)
    train(model, optimizer, range(4))
    there = sum(from_all(flat(model))) / dist.get_world_size()
    twin = copy.deepcopy(model)
    train(twin, torch.optim.SGD(twin.parameters(), 0.1), range(4, 5))
    train(model, optimizer, range(4, 5))
    local.detach()
    return float((flat(model) - (keep * flat(twin) + (1 - keep) * there)).abs().max())


@pytest.mark.parametrize("keep", [0.0, 0.25, 0.9])
def test_own_progress_meanwhile_is_mixed_in(three: Ranks, keep: float) -> None:
    assert max(three.run(kept, keep)) < 1e-6


def by_dcp(folder: str, plan: str) -> str:
    """torch.distributed.checkpoint fills what is there: of a fresh one, nothing waits yet."""
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


def refused(options: dict[str, Any]) -> str:
    model: Any = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    kind, plan = options.pop("kind", ""), options.pop("plan", DENSE)
    handle: Any = gradwire.attach(model, DENSE) if kind == "attached" else None
    handle = LocalSteps(model, optimizer, 4, DENSE) if kind == "local" else handle
    if kind == "sharded":
        fully_shard(model)
    model = DistributedDataParallel(model) if kind == "ddp" else model
    try:
        LocalSteps(model, optimizer, options.pop("every", 4), plan, **options)
    except UsageError as error:
        return str(error)
    finally:
        if handle:
            handle.detach()
    return "made"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "ddp"}, "Pass the plain module"),
        ({"kind": "attached"}, "Pass the plain module"),
        ({"kind": "local"}, "takes local steps already"),
        ({"kind": "sharded"}, "Pass the plain module"),
        ({"plan": "auto"}, "travel by a strategy"),
        ({"every": 0}, "every=0"),
        ({"every": 2.5}, "every=2.5"),
        ({"plan": "dgc(0.1) | allgather"}, "Pass outer_momentum=0.9, nesterov=False"),
        ({"plan": "dgc(0.1) | allgather", "outer_momentum": 0.5}, "got outer_momentum=0.5"),
        ({"fragments": 5}, "fragments=5"),
        ({"fragments": 2, "delay": 2}, "delay=2"),
        ({"keep": 1.0}, "keep=1.0"),
        ({"scaler": None}, "without a scaler"),
    ],
)
def test_what_is_refused(three: Ranks, options: dict[str, Any], says: str) -> None:
    for said in three.run(refused, options):
        assert says in said


def alone() -> tuple[str, str, bool]:
    """What else may be done with a model that takes local steps, and after them."""
    model = small()
    optimizer = gradwire.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    local = LocalSteps(model, optimizer, 2, "dgc(0.1) | allgather", nesterov=False)
    train(model, optimizer, range(4))  # its momentum is its own, not the plan's
    said = raised(lambda: gradwire.attach(model, DENSE))
    malformed = raised(lambda: local.load_state_dict({"model": {}}))
    local.detach()
    with attached(model, DENSE):
        local.detach()
        return said, malformed, is_attached(model.one.weight)


def test_local_steps_are_a_models_only_exchange(three: Ranks) -> None:
    for said, malformed, still in three.run(alone):
        assert "attached once" in said
        assert "['model']" in malformed
        assert still


def unfrozen() -> str:
    model = small()
    model.two.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 2, SPARSE)
    try:
        train(model, optimizer, range(2))
        model.two.requires_grad_(True)
        before = fingerprint(model.parameters())
        said = raised(lambda: train(model, optimizer, range(2)))
        assert fingerprint(model.parameters()) == before
        return said
    finally:
        local.detach()


def test_what_was_frozen_goes_no_way_of_its_own(three: Ranks) -> None:
    assert all("was frozen then" in said for said in three.run(unfrozen))
