"""Attaching does not change training: gradients are DDP's, ranks are equal, bits are
lockstep's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import STRATEGIES, attached, entry, fingerprint, from_all, gradients, loss_of, small
from small import local_gradients as local
from torch.nn.parallel import DistributedDataParallel

import gradwire
from suites import first

SIZES = ((1, 257), (3, 1000), (1, 1 << 20), (3, 1))  # lanes, bucket_bytes


def like_ddp(ddp: bool, lanes: int, bucket_bytes: int) -> float:
    """The largest relative distance between our gradients and DDP's, over three steps."""
    reference = DistributedDataParallel(small())
    model = DistributedDataParallel(small()) if ddp else small()
    worst = 0.0
    with attached(model, "none | allreduce", lanes=lanes, bucket_bytes=bucket_bytes):
        for step in range(3):
            for module in (reference, model):
                module.zero_grad()
                loss_of(module, step).backward()
            theirs, ours = gradients(reference), gradients(model)
            assert list(theirs) == list(ours)
            for name, g in theirs.items():
                distance = (ours[name] - g).norm() / g.norm()
                worst = max(worst, float(distance))
    return worst


@pytest.mark.parametrize("ddp", [False, True], ids=["plain", "ddp"])
def test_gradients_are_those_of_ddp(three: Ranks, ddp: bool) -> None:
    for lanes, bucket_bytes in SIZES:
        assert max(three.run(like_ddp, ddp, lanes, bucket_bytes)) < 1e-6


def trained(strategy: str, ddp: bool, lanes: int, bucket_bytes: int, steps: int) -> list[str]:
    """Fingerprints of the parameters: before, after 1 step, after all."""
    model = small()
    marks = [fingerprint(model.parameters())]
    wrapped = DistributedDataParallel(model) if ddp else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with attached(wrapped, strategy, lanes=lanes, bucket_bytes=bucket_bytes):
        for step in range(steps):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss_of(wrapped, step).backward()
            optimizer.step()
            if step in (0, steps - 1):
                marks.append(fingerprint(model.parameters()))
    return marks


@pytest.mark.parametrize("strategy", first(STRATEGIES[::-1], 2))
def test_ranks_end_bitwise_equal(three: Ranks, strategy: str) -> None:
    ends = set()
    for ddp in (False, True):
        for lanes, bucket_bytes in SIZES[:2]:
            marks = three.run(trained, strategy, ddp, lanes, bucket_bytes, 12)
            assert marks[0] == marks[1] == marks[2]
            assert len(set(marks[0])) == 3  # the weights did change
            ends.add(marks[0][-1])
    assert len(ends) == 1  # nor do DDP, the lanes and the grouping make a difference


def against_lockstep(strategy: str, ddp: bool, lanes: int) -> None:
    """Every parameter's average is, bit for bit, that of N ranks in one process, for eight
    steps."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    wrapped = DistributedDataParallel(model) if ddp else model
    twin = copy.deepcopy(model)
    states: dict[str, list[dict[str, torch.Tensor]]] = {}
    with attached(wrapped, strategy, lanes=lanes, bucket_bytes=500) as handle:
        for step in range(8):
            twin.load_state_dict(model.state_dict())
            mine = local(twin, step)
            optimizer.zero_grad()
            loss_of(wrapped, step).backward()
            for name, p in model.named_parameters():
                memory = states.setdefault(name, [{} for _ in range(dist.get_world_size())])
                wanted, _ = gradwire.lockstep(
                    handle.plan.strategy_of(name), from_all(mine[name]), step=step, state=memory
                )
                assert p.grad is not None
                assert torch.equal(wanted[0], p.grad), (step, name)
            optimizer.step()
        ours = entry(handle)["state"]
        rank = dist.get_rank()
        for name, memory in states.items():
            assert set(memory[rank]) == set(ours[name])  # type: ignore[index]
            for key, value in memory[rank].items():
                assert torch.equal(value, ours[name][key]), (name, key)  # type: ignore[index]


@pytest.mark.once
@pytest.mark.parametrize("strategy", [*STRATEGIES, "bf16+ef | allreduce", "none+dgc | allgather"])
@pytest.mark.parametrize(("ddp", "lanes"), [(True, 3), (False, 1)])
def test_results_are_those_of_lockstep(three: Ranks, strategy: str, ddp: bool, lanes: int) -> None:
    three.run(against_lockstep, strategy, ddp, lanes)


def broadcast() -> None:
    """All ranks get rank 0's weights and buffers, of whatever dtype."""
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    model[0].to(memory_format=torch.channels_last)
    model.register_buffer("flags", torch.tensor([dist.get_rank() == 0, True]))
    model.register_buffer("short", torch.full((3,), float(dist.get_rank()), dtype=torch.float16))
    model[1].num_batches_tracked.fill_(dist.get_rank() + 7)
    model[0].bias.requires_grad_(False)
    with attached(model, "none | allreduce"):
        state = model.state_dict()
        for name, x in state.items():
            parts = from_all(x.view(torch.uint8) if x.dtype == torch.bool else x)
            assert all(torch.equal(parts[0], p) for p in parts), name
        assert state["1.num_batches_tracked"] == 7
        assert state["flags"].tolist() == [True, True]


def test_parameters_and_buffers_of_rank_0_are_everybodys(three: Ranks) -> None:
    three.run(broadcast)


def alone() -> None:
    for strategy in (*STRATEGIES[:1], "topk(1.0)+ef | allgather"):
        model = small()
        with attached(model, strategy, lanes=2) as handle:
            for step in range(3):
                model.zero_grad()
                expected = local(model, step)
                loss_of(model, step).backward()
                for name, g in gradients(model).items():
                    assert torch.equal(g, expected[name])
            assert handle.stats()["bytes_sent"] == 0.0
    model = small()
    wrapped = DistributedDataParallel(model)
    with attached(wrapped, "dgc(0.1) | allgather") as handle:
        loss_of(wrapped).backward()
        assert handle.stats()["steps"] == 1


def test_a_world_of_one(one: Ranks) -> None:
    one.run(alone)
