"""Saving, resuming and reporting: state_dict, load_state_dict, stats."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, brief, entry, fingerprint, loss_of, raised, residuals, small
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire import Warmup
from gradwire.errors import PlanError
from gradwire.layout.message import HEADER_BYTES

LISTED = 'topk(0.1, index="int32")+ef | allgather'
"""It sends 8 bytes for each element, which is easy to count."""


def train(model: nn.Module, steps: range) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def resumed(strategy: str, directory: str, first_ddp: bool, then_ddp: bool) -> None:
    """Four steps, a checkpoint and four more give the bits of eight. The grouping may change."""
    whole = small()
    with attached(whole, strategy) as handle:
        train(whole, range(8))
        wanted, kept = fingerprint(whole.parameters()), residuals(handle)
    path = Path(directory) / f"{dist.get_rank()}.pt"
    model = small()
    wrapped = DistributedDataParallel(model) if first_ddp else model
    with attached(wrapped, strategy, lanes=2, bucket_bytes=300) as handle:
        train(wrapped, range(4))
        torch.save({"model": model.state_dict(), "gradwire": handle.state_dict()}, path)
    saved = torch.load(path, weights_only=True)
    model = small(seed=9)
    model.load_state_dict(saved["model"])
    wrapped = DistributedDataParallel(model) if then_ddp else model
    with attached(wrapped, strategy, lanes=1, bucket_bytes=1000) as handle:
        handle.load_state_dict(saved["gradwire"])
        train(wrapped, range(4, 8))
        assert fingerprint(model.parameters()) == wanted
        for name, value in residuals(handle).items():
            assert torch.equal(value, kept[name])
        assert handle.state_dict()["step"] == 8


@pytest.mark.once
@pytest.mark.parametrize(("first_ddp", "then_ddp"), [(False, True), (True, False), (False, False)])
@pytest.mark.parametrize(
    "strategy",
    [
        "topk(0.1)+ef | allgather",
        "dgc(0.1) | allgather",
        "bf16+ef | allreduce",
        "none | allreduce",
    ],
)
def test_resume_is_the_uninterrupted_run(
    three: Ranks, strategy: str, first_ddp: bool, then_ddp: bool, tmp_path: Path
) -> None:
    three.run(resumed, strategy, str(tmp_path), first_ddp, then_ddp)


def saved_amid_a_backward(ddp: bool, plan: str) -> None:
    """A hook saves, as a handler of signals may; the step goes on, and a state can be saved."""
    model, told = small(), list[str]()
    net = DistributedDataParallel(model, bucket_cap_mb=0.0001) if ddp else model
    with brief(), attached(net, plan) as handle:
        train(net, range(2))
        model.conv.weight.register_hook(lambda _: told.append(raised(handle.state_dict)))  # type: ignore[no-untyped-call]
        train(net, range(2, 3))
        assert handle.state_dict()["step"] == 3
    (text,) = told
    assert "the exchange of step 2 is under way" in text
    assert "set a flag" in text


@pytest.mark.parametrize("ddp", [False, True])
@pytest.mark.parametrize("plan", ["topk(0.1)+ef | allgather", "auto"])
def test_amid_a_backward_there_is_no_state_to_save(three: Ranks, ddp: bool, plan: str) -> None:
    three.run(saved_amid_a_backward, ddp, plan)


def shapes() -> None:
    """The state has the parameters' names and shapes."""
    model = small()
    with attached(model, "dgc(0.1) | allgather") as handle:
        assert entry(handle)["state"] == {n: {} for n, _ in model.named_parameters()}
        train(model, range(2))
        state: Any = entry(handle)["state"]
        for name, p in model.named_parameters():
            keys = {"velocity", "residual"} if p.dim() > 1 else {"velocity"}
            assert set(state[name]) == keys
            assert all(x.shape == p.shape for x in state[name].values())


def test_state_has_names_and_shapes(three: Ranks) -> None:
    three.run(shapes)


def misfits() -> None:
    model = small()
    with attached(model, "topk(0.1)+ef | allgather") as handle:
        train(model, range(2))
        good: Any = handle.state_dict()
        me = f"{dist.get_rank()}"
        own = {**entry(handle), "state": {n: dict(v) for n, v in entry(handle)["state"].items()}}
        good = {**good, "ranks": {me: own}}

        def kept(state: dict[str, Any]) -> dict[str, Any]:
            count = sum(map(len, state.values()))
            return {**good, "ranks": {me: {**own, "state": state, "tensors": count}}}

        before = {n: x.clone() for n, x in residuals(handle).items()}
        wrong: list[tuple[dict[str, Any], str]] = [
            ({}, "format"),
            ({**good, "format": 99}, "99"),
            ({**good, "step": "2"}, "step must be a whole number"),
            ({**good, "world": 7}, "saved with 7 ranks and loaded with 3"),
            ({**good, "ranks": {"5": own}}, "each rank must load the state it saved"),
            ({**good, "plan": {"none | allreduce": ["nobody"]}}, "nobody"),
            ({**good, "ranks": {me: {**own, "state": {}}}}, "fills only"),
            (kept({"nobody": {"residual": torch.zeros(3)}}), "nobody"),
            (kept({"one.weight": {"residual": torch.zeros(13, 44)}}), "one.weight"),
        ]
        for state, part in wrong:
            with pytest.raises(PlanError, match=part):
                handle.load_state_dict(state)
        for name, value in residuals(handle).items():
            assert torch.equal(value, before[name])  # nothing was taken over
        train(model, range(2, 3))


def test_state_that_does_not_fit_is_refused(three: Ranks) -> None:
    three.run(misfits)


def otherwise(saved: dict[str, Any], loaded: dict[str, Any]) -> str:
    """Loads the state of three steps into a model that was attached differently; returns the
    error."""
    model = small()
    with attached(model, **saved) as handle:
        train(model, range(3))
        state = torch.load(_file(handle.state_dict()))
    with attached(model, **loaded) as handle:
        try:
            handle.load_state_dict(state)
        except PlanError as error:
            assert not residuals(handle)
            assert entry(handle)["tensors"] == 0
            handle.load_state_dict(state, strict=False)
            train(model, range(3, 5))
            return str(error)
        return "loaded"


def _file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


@pytest.mark.once
@pytest.mark.parametrize("warmup", [None, Warmup(8, (0.3,)), Warmup(8, (1.0,))])
@pytest.mark.parametrize("other", ["topk(0.2)+ef | allgather", "qsgd(4)+ef | allgather"])
def test_another_density_is_refused_amid_a_warm_up_too(
    three: Ranks, warmup: Warmup | None, other: str
) -> None:
    plan = "topk(0.1)+ef | allgather"
    if warmup and warmup.densities == (0.3,) and other.startswith("qsgd"):
        pytest.skip("qsgd has no density to warm up by")
    options = {"warmup": warmup}
    told = three.run(otherwise, {"plan": plan, **options}, {"plan": other, **options})
    assert all("a state must be loaded with the strategies" in said for said in told)
    assert all(f"has '{other[:4]}" in said for said in told)


def test_another_seed_is_refused(three: Ranks) -> None:
    plan = "randk(0.1)+ef | allreduce"
    told = three.run(otherwise, {"plan": plan, "seed": 3}, {"plan": plan, "seed": 4})
    assert all("Attach with seed=3" in said for said in told)
    told = three.run(otherwise, {"plan": plan, "seed": 3}, {"plan": plan, "seed": 3})
    assert told == ["loaded"] * 3


def emptied() -> None:
    """After a reset training goes on as if attached anew, but for the number of the step."""
    model, twin = small(), small()
    with attached(model, "dgc(0.1) | allgather", clip_norm=1.0, clip_overlap=True) as handle:
        train(model, range(3))
        handle.reset()
        own = entry(handle)
        assert not any(own["state"].values())
        assert not {"rates", "gradient_norm", "leftovers"} & set(own)
        assert handle.state_dict()["step"] == 3
        twin.load_state_dict(model.state_dict())
        train(model, range(3, 6))
    with attached(twin, "dgc(0.1) | allgather", clip_norm=1.0, clip_overlap=True):
        train(twin, range(3, 6))
    assert fingerprint(model.parameters()) == fingerprint(twin.parameters())


def test_reset(three: Ranks) -> None:
    three.run(emptied)


def aligned(size: int) -> int:
    """The next multiple of 16."""
    return -(-size // 16) * 16


def numbers(width: int, sizes: Mapping[str, int]) -> int:
    """Bytes of the numbers without headers: the last parameter first, each at a multiple of 16."""
    *others, last = (width * k for k in reversed(sizes.values()))
    return sum(map(aligned, others)) + last


def told(strategy: str) -> None:
    model = small()
    world = dist.get_world_size()
    with attached(model, strategy) as handle:
        fresh = handle.stats()
        assert fresh["steps"] == fresh["bytes_sent"] == fresh["residual_norm"] == 0.0
        began = perf_counter()
        train(model, range(5))
        seconds = perf_counter() - began
        stats, trace = handle.stats(), handle.trace
        sizes = {n: p.numel() for n, p in model.named_parameters()}
        assert stats["steps"] == 5
        assert stats["bytes_given"] == 4 * sum(sizes.values())
        small_ones = {
            n: k for n, k in sizes.items() if dict(model.named_parameters())[n].dim() < 2
        }
        if strategy.startswith("topk"):
            sent = {n: math.ceil(0.1 * k) for n, k in sizes.items() if n not in small_ones}
            message = HEADER_BYTES + 2 * sum(aligned(4 * k) for k in sent.values())
            wanted = (world - 1) * (message + numbers(4, small_ones))
            elements = sum(sent.values()) + sum(small_ones.values())
        else:
            width = 2 if strategy.startswith("bf16") else 4
            # So small that Gloo's all-reduce goes as a direct exchange (`DIRECT_BYTES`).
            wanted = (world - 1) * numbers(width, sizes)
            elements = sum(sizes.values())
        assert stats["bytes_sent"] == pytest.approx(wanted)
        assert stats["density"] == pytest.approx(elements / sum(sizes.values()))
        assert sum(trace.bytes_sent) == pytest.approx(wanted)  # of the last step alone
        assert trace.bytes_sent[dist.get_rank()] == pytest.approx(wanted)
        for key in ("encode_seconds", "wire_seconds", "decode_seconds", "exposed_seconds"):
            assert 0.0 < stats[key] < seconds, f"{key}: of one step, not more than of five"
        assert 0.0 <= stats["overlap"] <= 1.0
        kept = [x.norm() for x in residuals(handle).values()]
        norm = float(torch.stack(kept).norm()) if kept else 0.0
        assert stats["residual_norm"] == pytest.approx(norm, rel=1e-5)
        assert (norm > 0) == strategy.startswith("topk")
        with handle.no_sync():
            model.zero_grad()
            loss_of(model).backward()
        assert handle.stats() == stats


@pytest.mark.parametrize("strategy", [LISTED, "none | allreduce", "bf16 | allreduce"])
def test_stats(three: Ranks, strategy: str) -> None:
    three.run(told, strategy)


def counted() -> tuple[float, object]:
    """Counts after three steps, of which the third has the warm-up's second density."""
    model = small()
    with attached(model, LISTED, warmup=Warmup(4, (0.5, 0.25))) as handle:
        train(model, range(3))
        return handle.stats()["steps"], handle.state_dict()["step"]


def test_stats_are_of_the_plan_in_force_and_the_state_counts_all(one: Ranks) -> None:
    assert one.run(counted) == [(1.0, 3)]
