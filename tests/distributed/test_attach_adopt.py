"""Adopting another plan between two steps: no residual is lost, whichever plan follows which."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, entry, fingerprint, from_all, gradients
from test_attach_members import Told, slopes
from torch import Tensor

from gradwire import Plan, Strategy
from gradwire.errors import PeerError, PlanError

TWO = "per_node=2"
PATH = "compress@gpu, all_to_all, decompress@gpu, compress@gpu, all_gather, decompress@gpu"
IN_TURN = (
    f"topk(0.1)+ef | hierarchical({TWO})",
    "topk(0.1)+ef | allgather",
    "sign(scaled=True)+ef | alltoall",
    f"qsgd(4)+ef | steps('{PATH}')",
    "topk(0.1)+ef | steps('reduce_scatter@node, compress@gpu, all_gather@cross, decompress@gpu, "
    f"all_gather@node', {TWO})",
    f"int8+ef | hierarchical(outer='alltoall', {TWO})",
    "topk(0.1)+ef | steps('reduce@node, compress@gpu, all_gather@cross, decompress@gpu, "
    f"broadcast@node', {TWO})",
    "topk(0.1)+ef | gtopk",
    "none | powersgd(2)",
    "randk(0.2)+ef | allreduce",
    "none | allreduce",
)


def plan_of(handle: Any, strategy: str, bucket_bytes: int = 1 << 20, lanes: int = 1) -> Plan:
    parameters = [p for bucket in handle.plan.buckets for p in bucket.parameters]
    return Plan.make(parameters, Strategy.parse(strategy), bucket_bytes=bucket_bytes, lanes=lanes)


def given_and_arrived(order: tuple[str, ...], steps: int) -> tuple[float, str]:
    """The largest difference between all results, times ranks, and all gradients; and the results'
    fingerprint."""
    model, world = Told(), dist.get_world_size()
    given = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    arrived = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    taken, seen = 0, list[Tensor]()
    with attached(model, order[0]) as handle:
        for number, strategy in enumerate(order):
            if number:
                handle.adopt(plan_of(handle, strategy, 700 + 400 * (number % 3)))
                assert str(handle.plan.main_strategy) == str(Strategy.parse(strategy))
            for _ in range(steps):
                model.zero_grad()
                told = slopes(taken)
                model(told).backward()
                taken += 1
                for name, mean in gradients(model).items():
                    given[name] += sum(from_all(told[name]))
                    arrived[name] += world * mean
                    seen.append(mean)
    far = max(float((arrived[n] - given[n]).abs().max()) for n in given)
    return far, fingerprint(seen)


@pytest.mark.parametrize("steps", [1, 2])
def test_all_that_waited_arrives_in_the_end(four: Ranks, steps: int) -> None:
    (far, first), *others = four.run(given_and_arrived, IN_TURN, steps)
    assert far < 1e-4
    assert all(other == (far, first) for other in others)


def test_from_each_to_dense(four: Ranks) -> None:
    for strategy in IN_TURN[:-2]:
        (far, _), *_ = four.run(given_and_arrived, (strategy, "none | allreduce"), 2)
        assert far < 1e-4, strategy


def through_a_file(first: str, then: str) -> float:
    """The difference as in `given_and_arrived`, where a job with another plan loads the first
    one's state."""
    world = dist.get_world_size()
    saved, given, arrived = None, dict[str, Tensor](), dict[str, Tensor]()
    for strategy in (first, then):
        model = Told()
        with attached(model, strategy) as handle:
            if saved is not None:
                handle.load_state_dict(saved, strict=False)
            for taken in range(2):
                model.zero_grad()
                told = slopes(taken)
                model(told).backward()
                for name, mean in gradients(model).items():
                    given[name] = given.get(name, 0.0) + sum(from_all(told[name]))
                    arrived[name] = arrived.get(name, 0.0) + world * mean
            saved = copy.deepcopy(handle.state_dict())
    return max(float((arrived[n] - given[n]).abs().max()) for n in given)


@pytest.mark.parametrize(
    "first",
    ["topk(0.1)+ef | allgather", "int8+ef | alltoall", "qsgd(4)+ef | alltoall", IN_TURN[3]],
)
def test_another_plan_without_feedback_sends_what_was_saved(four: Ranks, first: str) -> None:
    for far in four.run(through_a_file, first, "none | allreduce"):
        assert far < 1e-4


def of_another_path(first: str, then: str) -> str:
    model = Told()
    with attached(model, first) as handle:
        model(slopes(0)).backward()
        saved = copy.deepcopy(handle.state_dict())
        handle.load_state_dict(saved)
    with attached(Told(), then) as handle:
        before = handle.state_dict()["step"]
        try:
            handle.load_state_dict(saved)
        except PlanError as error:
            return f"{before == handle.state_dict()['step']} {error}"
    return "taken over"


@pytest.mark.parametrize(
    "then", ["none | allreduce", "topk(0.1)+ef | allgather", f"int8+ef | steps('{PATH}')"]
)
def test_a_state_goes_on_by_what_it_was_saved_with(four: Ranks, then: str) -> None:
    for said in four.run(of_another_path, IN_TURN[3], then):
        assert said.startswith("True a state must be loaded with the strategies that it was")
        assert f"has '{Strategy.parse(then)}' here" in said
        assert "handle.adopt" in said
        assert "strict=False" in said


def parts_and_wholes() -> bool:
    """Whether the state of an adopted plan is that of a job that began with it."""
    inside, whole = f"topk(0.1)+ef | hierarchical({TWO})", "topk(0.1)+ef | allgather"
    model = Told()
    with attached(model, inside) as handle:
        model(slopes(0)).backward()
        part = entry(handle)["part"]
        handle.adopt(plan_of(handle, whole))
        model.zero_grad()
        model(slopes(1)).backward()
        saved, kept = copy.deepcopy(handle.state_dict()), entry(handle)["part"]
    with attached(Told(), whole) as handle:
        handle.load_state_dict(saved)
        return part == [dist.get_rank() % 2, 2] and kept == [0, 1]


def test_state_after_machines_were_left_fits_a_plan_without(four: Ranks) -> None:
    assert all(four.run(parts_and_wholes))


def through_a_bad_step(first: str, then: str, bad_bucket: str) -> float:
    """The difference between what arrived in the end and what was given, but for the bad steps'
    own gradients."""
    model, world = Told(), dist.get_world_size()
    given = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    arrived = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    with attached(model, first) as handle:
        for taken in range(6):
            if taken in (2, 4):
                last = "none | allreduce"
                handle.adopt(plan_of(handle, then if taken == 2 else last, 8))
            told = {n: x * (taken not in (2, 4)) for n, x in slopes(taken).items()}
            is_bad = taken in (2, 4)
            if is_bad and dist.get_rank() == 1:
                told[bad_bucket][0, 0] = float("inf")
            model.zero_grad()
            model(told).backward()
            for name, mean in gradients(model).items():
                if not is_bad:
                    given[name] += sum(from_all(told[name]))
                    arrived[name] += world * mean
    return max(float((arrived[n] - given[n]).abs().max()) for n in given)


@pytest.mark.once
@pytest.mark.parametrize(
    "then", ["topk(0.1)+ef | allgather", "int8+ef | alltoall", "none | allreduce"]
)
@pytest.mark.parametrize("bad_bucket", ["a", "c"])
def test_a_bad_step_right_after_loses_nothing(four: Ranks, then: str, bad_bucket: str) -> None:
    for far in four.run(through_a_bad_step, "topk(0.1)+ef | gtopk", then, bad_bucket):
        assert far < 1e-4


def velocity_stays() -> bool:
    model = Told()
    with attached(model, "dgc(0.1) | allgather") as handle:
        for step in range(2):
            model.zero_grad()
            model(slopes(step)).backward()
        before: Any = entry(handle)["state"]
        handle.adopt(plan_of(handle, "dgc(0.1) | gtopk"))
        after: Any = entry(handle)["state"]
        kept = all(torch.equal(before[n]["velocity"], after[n]["velocity"]) for n in "abc")
        same = all(torch.equal(before[n]["residual"], after[n]["residual"]) for n in "abc")
    return kept and same


def test_velocities_stay_with_their_feedback(four: Ranks) -> None:
    assert four.run(velocity_stays) == [True] * 4


def saved_between() -> float:
    """The error after a resume from a state that was saved right after the plan changed: the state
    holds what has not been sent yet."""
    model = Told()
    with attached(model, "topk(0.1)+ef | allgather") as handle:
        model(slopes(0)).backward()
        handle.adopt(plan_of(handle, "none | allreduce"))
        saved = handle.state_dict()
        model.zero_grad()
        model(slopes(1)).backward()
        wanted = gradients(model)
    again = Told()
    with attached(again, "none | allreduce") as handle:
        handle.load_state_dict(saved)
        again(slopes(1)).backward()
        return max(float((gradients(again)[n] - wanted[n]).abs().max()) for n in wanted)


def test_a_state_saved_in_between_is_whole(four: Ranks) -> None:
    assert four.run(saved_between) == [0.0] * 4


def refused(strategy: str, other: str) -> str:
    model = Told()
    with attached(model, strategy) as handle:
        model(slopes(0)).backward()
        text = other if dist.get_rank() == 3 or "ranks" not in other else "none | allreduce"
        try:
            handle.adopt(plan_of(handle, text.removesuffix(" ranks")))
        except PlanError as error:
            said = str(error)
        else:
            return "adopted"
        assert str(handle.plan.main_strategy) == str(Strategy.parse(strategy))
        model.zero_grad()
        model(slopes(1)).backward()  # training goes on as before
    return said


@pytest.mark.parametrize(
    ("strategy", "other", "says"),
    [
        (
            "lloyd(2)+adam | allgather",
            "none+server_adam | allreduce",
            "cannot be passed on to another",
        ),
        ("dgc(0.1) | allgather", "topk(0.1)+ef | allgather", "must keep momentum where it is"),
        (
            "topk(0.1)+ef | allgather",
            f"topk(0.1)+ef | hierarchical({TWO})",
            "sums inside machines",
        ),
        ("none | allreduce", "bf16 | allreduce ranks", "all ranks must attach the same plan"),
    ],
)
def test_what_cannot_be_adopted_leaves_all_as_it_was(
    four: Ranks, strategy: str, other: str, says: str
) -> None:
    for said in four.run(refused, strategy, other):
        assert says in said


def adopted_by_one() -> str:
    """What the other rank hears, if a rank does not change plans with it."""
    model = torch.nn.Linear(8, 8)
    with attached(model, "none | allreduce", timeout_seconds=1.0) as handle:
        said = ""
        if dist.get_rank() == 0:
            with pytest.raises(PeerError) as refused:
                handle.adopt(plan_of(handle, "bf16 | allreduce"))
            said = str(refused.value)
        dist.barrier()
        return said


def test_a_rank_that_does_not_change_plans_is_named(two: Ranks) -> None:
    said, _ = two.run(adopted_by_one)
    assert said.startswith("all ranks must attach, and change plans, together, within the timeout")
    assert "rank 1 died or is stuck, or calls attach(), adopt() or backward() less often" in said
