"""Whole jobs whose buckets are processed in the host's memory; here the host plays the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, entry, fingerprint, gradients, loss_of, small, train
from test_attach_members import plain_and_ddp, resumed, spoiled

import gradwire
from gradwire import Plan, Strategy
from gradwire.runtime import host_copies, own_view, process_groups
from gradwire.runtime.host_copies import CPU
from gradwire.runtime.offload import OffloadedContext
from gradwire.runtime.torch_dist import Performer, backend_of
from gradwire.training.attachable import check_carried, not_carried
from gradwire.training.session import describe
from suites import first

STRATEGIES = (
    "topk(0.1)+ef | offload",
    "none | offload(outer='allreduce')",
    "int8+ef | offload(outer='alltoall')",
    "dgc(0.1) | offload(outer='gtopk')",
    "topk(0.1)+ef | offload(outer='hierarchical(per_node=1)')",
)
some = pytest.mark.parametrize("strategy", first(STRATEGIES, 2))


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of the function where gradients count as outside the host's memory."""
    kept = host_copies.is_apart
    host_copies.is_apart = lambda device: True
    try:
        return function(*arguments)
    finally:
        host_copies.is_apart = kept


def trained(strategy: str) -> tuple[str, bool]:
    """Weights and gradients after some steps, and whether contexts were on the host."""
    model = small()
    with attached(model, strategy, bucket_bytes=1000) as handle:
        train(model, range(4))
        made = [type(c) is OffloadedContext for c in handle._session.ledger.contexts]
        assert handle.stats()["residual_norm"] >= 0.0
        state = fingerprint(x for _, own in sorted(entry(handle)["state"].items())
                            for _, x in sorted(own.items()))  # fmt: skip
    found = fingerprint([*model.parameters(), *gradients(model).values()])
    return f"{found} {state}", any(made)


@pytest.mark.parametrize("strategy", first(STRATEGIES, 3))
def test_a_job_ends_with_the_same_weights_and_states(two: Ranks, strategy: str) -> None:
    text = (
        strategy.replace("offload(outer='", "").replace("')", "").replace("offload", "allgather")
    )
    here = two.run(trained, text)
    there = two.run(apart, trained, strategy)
    assert [bits for bits, _ in here] == [bits for bits, _ in there]
    assert all(on_host for _, on_host in there)
    assert not any(on_host for _, on_host in here)


@pytest.mark.parametrize(
    "strategy", first(["dgc(0.1) | gtopk", "topk(0.1)+ef | zen", "none | columns"], 2)
)
def test_lists_of_a_device_travel_from_the_host_s_memory(two: Ranks, strategy: str) -> None:
    assert two.run(trained, strategy) == two.run(apart, trained, strategy)


@some
def test_the_same_through_ddp(two: Ranks, strategy: str) -> None:
    one, other = two.run(apart, plain_and_ddp, strategy)
    assert one == other
    assert one[:2] == one[2:]


@some
def test_resume_is_the_uninterrupted_run(two: Ranks, strategy: str, tmp_path: Path) -> None:
    two.run(apart, resumed, strategy, str(tmp_path))


@some
def test_one_bad_number_spoils_all_and_leaves_states(two: Ranks, strategy: str) -> None:
    assert len(set(two.run(apart, spoiled, strategy, "a"))) == 1


def moved() -> str:
    """Plans alternate between device and host, and residuals go with them."""
    model = small()
    with attached(model, "topk(0.1)+ef | allgather") as handle:
        train(model, range(2))
        texts = ("topk(0.1)+ef | offload", "bf16+ef | offload", "topk(0.1)+ef | allgather")
        for turn, text in enumerate(texts):
            dense = Strategy.parse("none | allreduce")
            strategies = [
                dense if s.feedback is None else Strategy.parse(text)
                for s in handle.plan.strategies
            ]
            handle.adopt(Plan(handle.plan.buckets, tuple(strategies), handle.plan.lanes))
            train(model, range(2 + turn, 3 + turn))
    return fingerprint(model.parameters())


def test_plans_move_it_between_device_and_host(two: Ranks) -> None:
    assert len({*two.run(moved), *two.run(apart, moved)}) == 1


def own_views(swaps: bool) -> list[float]:
    """Some weights after steps of AdamW, where ranks compute at their own views."""
    kept = own_view.swaps
    own_view.swaps = lambda weights, residual: swaps and kept(weights, residual)
    try:
        model = small()
        optimizer = gradwire.optim.AdamW(model.parameters(), lr=1e-2)
        with attached(model, "lloyd(2)+adam | offload(outer='alltoall')", optimizer=optimizer):
            for step in range(6):
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()
        return [x for p in model.parameters() for x in p.detach().flatten()[:20].tolist()]
    finally:
        own_view.swaps = kept


def test_ranks_compute_at_their_own_views_of_residuals_elsewhere(two: Ranks) -> None:
    one, other = two.run(apart, own_views, False)
    assert one == other, "ranks share their weights"
    swapped, _ = two.run(own_views, True)
    assert one == pytest.approx(swapped, rel=1e-4, abs=1e-5)


def by_gloo_too(name: str, strategy: str) -> tuple[str, str, int]:
    """The backends for the memory of host and device in a lane's group, whose parent supports the
    device alone, and the sum of what both ranks send from the host's memory."""
    parent = dist.new_group(backend=name)
    device = torch.device("cuda")
    text = Strategy.parse(strategy)
    assert not_carried([(None, text)], parent, device) == text
    kept, process_groups.wait_for_all = process_groups.wait_for_all, lambda group, device: None
    group = process_groups.make_group(parent, 60.0, device, by_host=True)
    process_groups.wait_for_all = kept
    assert not_carried([(None, text)], group, device) is None
    own = torch.ones(1)
    dist.all_reduce(own, group=group)
    return backend_of(group, CPU), backend_of(group, device), int(own)


def test_a_lane_brings_its_own_gloo_where_its_parent_has_none(two: Ranks) -> None:
    assert two.run(by_gloo_too, "cuda:fake", "topk(0.1) | zen") == [("gloo", "fake", 2)] * 2


def carried() -> tuple[str, str, bool]:
    """The backend for processors and for a device that none supports, and whether a performer
    serves its own device itself."""
    group = dist.group.WORLD
    assert group is not None
    plan = Plan.make(describe(dict(small().named_parameters())), "none | offload")
    check_carried(zip(plan.buckets, plan.strategies), group, torch.device("meta"))
    performer = Performer(group)
    same = performer.at(torch.device("cpu")) is performer
    performer = Performer(group, {}, torch.device("meta"))
    twin = performer.at(torch.device("cpu"))
    assert twin is performer.at(torch.device("cpu"))
    assert twin is not performer
    assert twin.group is group
    return (
        backend_of(group, torch.device("cpu")), backend_of(group, torch.device("meta")), same
    )  # fmt: skip


def test_what_carries_the_host_s_memory(two: Ranks) -> None:
    assert two.run(carried) == [("gloo", "", True)] * 2
