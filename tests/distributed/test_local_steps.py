"""Local steps: rounds, fragments, delays, residuals of progress, and what is refused."""

from __future__ import annotations

import copy
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from broken import WIDE
from ranks import Ranks
from small import attached, fingerprint, from_all, loss_of, raised, small
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import LocalSteps
from gradwire.errors import PlanError, UsageError
from gradwire.soundness import SoundnessWarning
from gradwire.training.attached import is_attached
from gradwire.training.fragments import split
from gradwire.training.rounds import steps_to_a_round

AVERAGE: dict[str, Any] = {"outer_lr": 1.0, "outer_momentum": 0.0, "nesterov": False}
DILOCO: dict[str, Any] = {"outer_lr": 0.7, "outer_momentum": 0.9, "nesterov": True}
DENSE, SPARSE = "none | allreduce", "topk(0.1)+ef | allgather"


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[bool]:
    """Trains; returns after each step whether all ranks had the same parameters."""
    equal = []
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        equal.append(len({fingerprint([x]) for x in from_all(flat(model))}) == 1)
    return equal


def every_step() -> float:
    """Rounds of one step, averaged, are data-parallel SGD but for the order of operations."""
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


def told_of(plan: str | None) -> list[str]:
    """Returns what is said of a strategy; None: the default."""
    model = small()
    optimizer = gradwire.optim.Muon.of(model, lr=2e-3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        given: dict[str, Any] = {"strict": True} if plan is None else {"plan": plan}
        local = LocalSteps(model, optimizer, 2, **given)
        train(model, optimizer, range(4))
        local.detach()
    return [str(each.message) for each in told if each.category is SoundnessWarning]


def test_the_outer_step_is_not_judged_as_an_optimizer_of_gradients(two: Ranks) -> None:
    assert two.run(told_of, None) == [[], []]


def test_a_strategy_that_loses_what_it_does_not_send_is_told_of(two: Ranks) -> None:
    first, other = two.run(told_of, "topk(0.1) | allgather")
    assert "what 'topk(0.1)' does not send is lost" in first[0]
    assert not other


def rounds(fragments: int, delay: int) -> tuple[list[bool], list[float], list[bool]]:
    model = small(seed=dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    local = LocalSteps(model, optimizer, 4, SPARSE, fragments=fragments, delay=delay, **DILOCO)
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
    """Of each four steps, one half is exchanged at the fourth and the other two steps later."""
    for equal, exchanges, _ in three.run(rounds, 2, 0):
        assert not any(equal)
        assert exchanges == [3, 2]


def test_exchanges_go_on_while_steps_are_taken(three: Ranks) -> None:
    for equal, _, under_way in three.run(rounds, 2, 1):
        assert not any(equal)
        assert under_way == [True, False], "begun at the twelfth step, and used at the eleventh"


def progress() -> float:
    """With averages, what arrived and the residuals add up to all the progress that ranks made."""
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
    local = LocalSteps(model, optimizer, 2, plan, **DILOCO)
    train(model, optimizer, range(8))
    local.detach()
    return flat(model)


def test_the_outer_momentum_may_be_the_plans(three: Ranks) -> None:
    ours = three.run(by_plan, "dgc(1.0, nesterov=True, mask=False) | allgather")
    theirs = three.run(by_plan, DENSE)
    assert float((ours[0] - theirs[0]).abs().max()) < 1e-6


def met_twice() -> bool:
    """Without a step there is no progress: nothing moves, not even by the outer momentum."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 3, DENSE, fragments=2, **DILOCO)
    train(model, optimizer, range(7))
    local.synchronize()
    before = flat(model)
    local.synchronize()
    twin = small()
    again = LocalSteps(
        twin, torch.optim.SGD(twin.parameters(), 0.1), 3, DENSE, fragments=2, **DILOCO
    )
    again.load_state_dict(copy.deepcopy(local.state_dict()))
    anchors = [a.detach().clone() for f in again.fragments for a in f.anchors.parameters()]
    again.synchronize()
    moved = [a.detach() for f in again.fragments for a in f.anchors.parameters()]
    local.detach()
    again.detach()
    return torch.equal(flat(model), before) and all(map(torch.equal, anchors, moved))


def test_meeting_again_without_a_step_changes_nothing(three: Ranks) -> None:
    assert three.run(met_twice) == [True] * 3


def met_with_none_since(delay: int) -> tuple[Tensor, float]:
    """The weights after a meeting at the very step at which an exchange began, and the number of
    exchanges."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 3, DENSE, delay=delay, **DILOCO)
    train(model, optimizer, range(3))
    local.synchronize()
    exchanges = local.stats()[0]["steps"]
    local.detach()
    return flat(model), exchanges


def test_meeting_as_an_exchange_begins_only_awaits_it(three: Ranks) -> None:
    at_once, late = (three.run(met_with_none_since, delay) for delay in (0, 1))
    for (weights, _), (others, exchanges) in zip(at_once, late):
        assert exchanges == 1
        assert torch.equal(weights, others)


def scaled(before: int) -> str:
    model, scaler = small(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 2, DENSE)
    train(model, optimizer, range(before))
    optimizer.zero_grad()
    scaler.scale(loss_of(model)).backward()
    try:
        scaler.step(optimizer)
    except UsageError as error:
        return str(error)
    finally:
        local.detach()
    return "stepped"


@pytest.mark.parametrize("before", [0, 3])
def test_a_scaler_skips_steps_on_one_rank_only(three: Ranks, before: int) -> None:
    """A scaler is refused even if it comes later."""
    assert all("without a scaler" in said for said in three.run(scaled, before))


def diverged(delay: int) -> tuple[bool, bool]:
    """One rank's round ends in inf: all ranks drop the round, and go on."""
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
        optimizer.step()  # an exchange is under way
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
    """16-bit parameters and their anchor after 256 rounds, each of which moves 2^-8 of a bfloat16
    step."""
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


def of_one_rank(dtype: torch.dtype) -> tuple[float, float]:
    """After nine rounds, in each of which the weight of one of three ranks moves by one step of
    the format: the anchor and the weight, in such steps."""
    model = nn.Linear(1, 1, bias=False, dtype=dtype)
    nn.init.ones_(model.weight)
    unit = torch.finfo(dtype).eps
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    local = LocalSteps(model, optimizer, 1, DENSE)
    for _ in range(9):
        model.weight.grad = torch.full_like(model.weight, -unit * (dist.get_rank() == 0))
        optimizer.step()
    local.detach()
    (anchor,) = local.fragments[0].anchors.parameters()
    return (anchor.item() - 1.0) / unit, (model.weight.item() - 1.0) / unit


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mean_of_less_than_a_step_is_not_lost_in_16_bits(
    three: Ranks, dtype: torch.dtype
) -> None:
    for anchor, here in three.run(of_one_rank, dtype):
        assert anchor == pytest.approx(3.0, abs=0.01)
        assert here == 3.0


def tiny() -> list[float]:
    """A bias whose mean is smaller than the smallest number of its format."""
    model = nn.Linear(2, 2).half()
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    local = LocalSteps(model, optimizer, 1, DENSE)
    for step in range(3):
        model.bias.grad = torch.zeros_like(model.bias)
        model.bias.grad[0] = -6e-8 * (step == 0 and dist.get_rank() == 0)
        optimizer.step()
    local.detach()
    anchor = dict(local.fragments[0].anchors.named_parameters())["bias"]
    return [anchor[0].item(), model.bias[0].item()]


def test_a_small_mean_may_be_rounded_off_in_16_bits(three: Ranks) -> None:
    """The optimizer alone has changed the weights."""
    for mean, here in three.run(tiny):
        assert 1e-8 < mean < 3e-8
        assert here == 0.0


def double() -> tuple[float, str, str]:
    """How far float64 parameters are from the mean over ranks, and the errors of other plans."""
    model = small(seed=dist.get_rank()).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = raised(lambda: LocalSteps(model, optimizer, 1, SPARSE, **AVERAGE), PlanError)
    local = LocalSteps(model, optimizer, 1, DENSE, **AVERAGE)
    begin = flat(model)
    rank = dist.get_rank()
    for p in model.parameters():
        p.grad = torch.full_like(p, 1 / 3 + rank)
    optimizer.step()
    local.detach()
    mean = sum(0.1 * (1 / 3 + r) for r in range(dist.get_world_size())) / dist.get_world_size()
    far = float((flat(model) - (begin - mean)).abs().max())
    turning = nn.ParameterList([torch.ones(2, dtype=torch.complex64)])
    turns = torch.optim.SGD(turning.parameters(), 0.1)
    return far, said, raised(lambda: LocalSteps(turning, turns, 1, DENSE))


def test_float64_is_exchanged_as_such(three: Ranks) -> None:
    for far, said, of_complex in three.run(double):
        assert far < 1e-14
        assert "must be sent uncompressed, by 'none | allreduce' or 'none | allgather'" in said
        assert "'0' is torch.complex64" in of_complex


def travels() -> tuple[list[str], list[list[str]]]:
    """How each parameter travels with two fragments: names and types are those of the whole
    model."""
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


def found(slow: str) -> tuple[int, list[int]]:
    """The steps to a round, where each step takes 150 ms more or each exchange 60 ms; and the
    steps after which all ranks were equal."""
    model = small(seed=dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if slow == "step":
        model.register_forward_pre_hook(lambda *_: time.sleep(0.15))
    local = LocalSteps(model, optimizer)
    land = local.fragments[0].land

    def landed_late(*args: Any) -> None:
        time.sleep(0.06)
        land(*args)

    if slow == "exchange":
        local.fragments[0].land = landed_late  # type: ignore[method-assign]
    equal = train(model, optimizer, range(30))
    again = small()
    other = LocalSteps(again, torch.optim.SGD(again.parameters(), 0.1))
    other.load_state_dict(local.state_dict())
    assert other.every == local.every
    assert other._rounds is None
    for own in (local, other):
        own.detach()
    return local.every, [step + 1 for step, same in enumerate(equal) if same]


def found_after_a_resume() -> tuple[bool, bool]:
    """Whether the steps to a round are still being found after a resume, and are found in the
    end."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer)
    train(model, optimizer, range(6))
    state, weights = copy.deepcopy(local.state_dict()), copy.deepcopy(model.state_dict())
    local.detach()
    again = small()
    again.load_state_dict(weights)
    optimizer = torch.optim.SGD(again.parameters(), 0.1)
    other = LocalSteps(again, optimizer)
    other.load_state_dict(state)
    looks = other._rounds is not None
    train(again, optimizer, range(6, 22))
    other.detach()
    return looks, other._rounds is None


def test_a_resume_goes_on_looking(three: Ranks) -> None:
    assert three.run(found_after_a_resume) == [(True, True)] * 3


@pytest.mark.parametrize("slow", ["step", "exchange"])
def test_the_steps_to_a_round_are_found(three: Ranks, slow: str) -> None:
    for every, equal in three.run(found, slow):
        assert every == 8 if slow == "exchange" else every <= 4
        later = [step for step in range(13, 31) if step % every == 0]
        assert equal == [4, 8, 12, *later]


@pytest.mark.parametrize(
    ("step", "exchange", "every"),
    [(1.0, 0.0, 1), (1.0, 0.1, 1), (1.0, 0.11, 2), (1.0, 0.4, 4), (0.1, 9.0, 8)],
)
def test_an_exchange_takes_a_tenth_of_a_round(step: float, exchange: float, every: int) -> None:
    assert steps_to_a_round(step, exchange) == every


def gone_on() -> float:
    """How far the weights are from those of all plus this rank's own step meanwhile."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 4, DENSE, delay=1, **AVERAGE)
    train(model, optimizer, range(4))
    there = sum(from_all(flat(model))) / dist.get_world_size()
    twin = copy.deepcopy(model)
    train(twin, torch.optim.SGD(twin.parameters(), 0.1), range(4, 5))
    wanted = there + flat(twin) - flat(model)
    train(model, optimizer, range(4, 5))
    local.detach()
    return float((flat(model) - wanted).abs().max())


def test_what_is_learnt_meanwhile_is_added(three: Ranks) -> None:
    assert max(three.run(gone_on)) < 1e-6


def late(fragments: int, delay: int) -> tuple[float, float]:
    """How far the mean is from what all ranks learnt in all their steps, and the number of
    exchanges, where each arrives when the next one begins."""
    model, world = small(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 4, DENSE, fragments=fragments, delay=delay, **AVERAGE)
    begin, made = flat(model), torch.zeros(flat(model).numel())
    for step in range(15):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        made += 0.1 * torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]
        optimizer.step()
        assert step < 3 or any(own.under_way for own in local.fragments)
    local.synchronize()
    exchanges = local.stats()[0]["steps"]
    wanted = begin - sum(from_all(made)) / world
    off = float((flat(model) - wanted).abs().max())
    local.detach()
    return off, exchanges


@pytest.mark.parametrize(("fragments", "delay"), [(1, 4), (2, 2)])
def test_what_arrives_a_whole_round_late_counts_once(
    three: Ranks, fragments: int, delay: int
) -> None:
    for off, exchanges in three.run(late, fragments, delay):
        assert off < 1e-5
        assert exchanges == 4


def delayed(place: str, steps: int, told: int) -> tuple[Any, LocalSteps]:
    """Trains. Rank 2 takes its fourth step, which begins an exchange, once the others have taken
    the step `told`."""
    store, model = dist.FileStore(place, 3), small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(model, optimizer, 4, SPARSE, delay=4, timeout_seconds=30.0)
    for step in range(steps):
        if step == 3 and dist.get_rank() == 2:
            store.wait(["0", "1"], timedelta(seconds=WIDE))
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        if step == told:
            store.set(f"{dist.get_rank()}", "")
    return model, local


def behind(place: str) -> bool:
    """Rank 2 begins an exchange once the others have taken their seventh step."""
    model, local = delayed(place, steps=12, told=6)
    local.synchronize()
    same = len({fingerprint([x]) for x in from_all(flat(model))}) == 1
    local.detach()
    return same


def test_nobody_waits_for_a_rank_that_is_less_than_a_round_behind(
    three: Ranks, tmp_path: Path
) -> None:
    assert three.run(behind, str(tmp_path / "steps")) == [True] * 3


def let_go(place: str) -> list[bool]:
    """Ranks stop while an exchange is under way, which rank 2 begins when the others stop."""
    model, local = delayed(place, steps=4, told=3)
    (own,) = local.fragments
    under_way, before, conductor = own.under_way, flat(model), own.handle._session.conductor
    local.detach()
    ended = not any(lane.is_alive() for lane in conductor._lanes)
    return [under_way, conductor.error is None, ended, torch.equal(flat(model), before)]


def test_stopping_waits_for_an_exchange_that_is_under_way(three: Ranks, tmp_path: Path) -> None:
    assert three.run(let_go, str(tmp_path / "steps")) == [[True] * 4] * 3


def refused(options: dict[str, Any]) -> str:
    model: Any = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    kind, plan = options.pop("kind", ""), options.pop("plan", DENSE)
    handle: Any = gradwire.attach(model, DENSE) if kind == "attached" else None
    handle = LocalSteps(model, optimizer, 4, DENSE) if kind == "local" else handle
    if kind == "sharded":
        fully_shard(model)
    if "ddp" in kind:
        model = DistributedDataParallel(model)
        model = nn.Sequential(model) if kind == "ddp inside" else model
        model = torch.compile(model, backend="eager") if kind == "compiled ddp" else model
    if kind == "another's":
        optimizer = torch.optim.SGD(small().parameters(), 0.1)
    if kind == "name":
        optimizer = "sgd"  # type: ignore[assignment]
    if kind == "parameters":
        model = list(model.parameters())
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
        ({"kind": "ddp inside"}, "Pass the plain module"),
        ({"kind": "compiled ddp"}, "Pass the plain module"),
        ({"kind": "another's"}, "holds none of them"),
        ({"kind": "name"}, "needs the optimizer itself, whose steps it counts; got 'sgd'"),
        ({"kind": "parameters"}, "takes an nn.Module; got list"),
        ({"kind": "attached"}, "Pass the plain module"),
        ({"kind": "local"}, "takes local steps already"),
        ({"kind": "sharded"}, "Pass the plain module"),
        ({"plan": "auto"}, "takes a strategy, not a plan"),
        ({"every": 0}, "every=0"),
        ({"every": 2.5}, "every=2.5"),
        ({"plan": "dgc(0.1) | allgather"}, "Pass outer_momentum=0.9, nesterov=False"),
        ({"plan": "dgc(0.1) | allgather", "outer_momentum": 0.5}, "got outer_momentum=0.5"),
        ({"plan": "sign | vote"}, "Pass for example outer_lr=0.001"),
        ({"every": None, "fragments": 2}, "got fragments=2, delay=0"),
        ({"every": None, "delay": 1}, "Pass every"),
        ({"fragments": 5}, "fragments=5"),
        ({"delay": 5}, "delay one from 0 to every/fragments; got every=4, fragments=1, delay=5"),
        ({"fragments": 2, "delay": 3}, "delay=3"),
        ({"scaler": None}, "without a scaler"),
        ({"compression": 3}, "check_every; got compression. Correct the name, or leave it out"),
        ({"on_failure": "shrink"}, "got on_failure"),
    ],
)
def test_what_is_refused(three: Ranks, options: dict[str, Any], says: str) -> None:
    for said in three.run(refused, options):
        assert says in said


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_without_a_process_group(kind: Any) -> None:
    assert not dist.is_initialized()
    model = nn.Linear(2, 2)
    with pytest.raises(UsageError, match="init_process_group"):
        LocalSteps(model, kind(model.parameters(), 0.1), 2)


def differs(option: str, value: Any) -> tuple[str, bool]:
    """The error if rank 1 passes another value; and whether the model can be attached after it."""
    usual: dict[str, Any] = {"every": 4, "delay": 1}
    if dist.get_rank() == 1:
        usual[option] = value
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = raised(lambda: LocalSteps(model, optimizer, timeout_seconds=5.0, **usual), PlanError)
    with attached(model, DENSE):
        return said, all(train(model, optimizer, range(1)))


@pytest.mark.parametrize(
    ("option", "value"),
    [("every", 3), ("delay", 0), ("outer_lr", 0.7), ("outer_momentum", 0.9)],
)
def test_ranks_whose_rounds_differ_are_named(three: Ranks, option: str, value: Any) -> None:
    for rank, (said, fine) in enumerate(three.run(differs, option, value)):
        assert f"rank {rank} has" in said
        assert "rank 1" in said
        assert f"{option}={value}" in said
        assert fine


class Wrapper(torch.optim.Optimizer):
    """A wrapper like Accelerate's: torch's hooks run in the inner optimizer only."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> None:
        self.optimizer.step(closure)


def wrapped() -> tuple[list[str], bool]:
    model = small()
    compiled: Any = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    local = LocalSteps(compiled, Wrapper(Wrapper(optimizer)), 2, DENSE)
    equal = train(compiled, optimizer, range(2))[-1]
    local.detach()
    return list(local.fragments[0].parameters), equal


def test_models_and_optimizers_are_taken_out_of_their_wrappers(three: Ranks) -> None:
    names = [name for name, _ in small().named_parameters()]
    assert three.run(wrapped) == [(names, True)] * 3


@pytest.mark.parametrize(
    ("sizes", "count", "wanted"),
    [
        ([8, 8, 8, 8], 2, [2, 2]),
        ([16, 4, 16, 4, 16, 4, 800, 4], 4, [5, 1, 1, 1]),
        ([800, 4, 4, 4], 3, [1, 1, 2]),
        ([800, 4, 4, 4], 4, [1, 1, 1, 1]),
        ([1, 1, 1, 9], 2, [3, 1]),  # more than half of the 9 would not fit beside the others
        ([4, 9, 4, 9, 4, 9, 4], 3, [2, 3, 2]),
        ([5], 1, [1]),
    ],
)
def test_there_are_as_many_fragments_as_asked_for(
    sizes: list[int], count: int, wanted: list[int]
) -> None:
    named = {f"{i}": nn.Parameter(torch.zeros(size)) for i, size in enumerate(sizes)}
    parts = split(named, count)
    assert [len(part) for part in parts] == wanted
    assert [name for part in parts for name in part] == list(named)


def alone() -> tuple[str, str, bool]:
    """Attaching a model that takes local steps is refused, and after detach it works."""
    model = small()
    optimizer = gradwire.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    local = LocalSteps(
        model, optimizer, 2, "dgc(0.1) | allgather", **{**DILOCO, "nesterov": False}
    )
    train(model, optimizer, range(4))  # the inner momentum is the optimizer's, not the plan's
    said = raised(lambda: gradwire.attach(model, DENSE))
    malformed = raised(lambda: local.load_state_dict({"model": {}}))
    local.detach()
    with attached(model, DENSE):
        local.detach()
        return said, malformed, is_attached(model.one.weight)


def test_local_steps_are_a_models_only_exchange(three: Ranks) -> None:
    for said, malformed, still in three.run(alone):
        assert "attached only once" in said
        assert "got no 'step'" in malformed
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
