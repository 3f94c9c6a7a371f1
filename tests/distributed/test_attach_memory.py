"""The memory that attaching takes beyond the gradients: two fp32 buffers for dgc, one for ef."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks
from small import attached, loss_of, small
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

KINDS = {"dgc(0.001) | allgather": 2, "topk(0.001)+ef | allgather": 1}


def reachable(roots: list[Any]) -> dict[int, int]:
    """Bytes of every tensor storage reachable from the roots through our own objects."""
    seen, storages, todo = set(), {}, list(roots)
    while todo:
        x = todo.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, Tensor):
            storage = x.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(x, dict):
            todo += [*x.values()]
        elif isinstance(x, list | tuple | set):
            todo += [*x]
        elif type(x).__module__.startswith("gradwire"):
            todo += [*vars(x).values()] if hasattr(x, "__dict__") else []
    return storages


def model_of(elements: int) -> nn.Module:
    """Two layers. With 20 M elements each takes over 32 MiB, which malloc always maps and
    unmaps."""
    side = int((elements / 2) ** 0.5)
    return nn.Sequential(nn.Linear(side, side), nn.Linear(side, side, bias=False))


def added(strategy: str) -> tuple[float, float]:
    """(bytes held by the handle beyond parameters and gradients) / (bytes of gradient)."""
    model = model_of(400_000)
    with attached(model, strategy, bucket_bytes=1 << 20) as handle:
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(2, model[0].in_features)).square().mean().backward()
        own = reachable([*model.parameters(), *(p.grad for p in model.parameters())])
        held = reachable([handle])
        given = handle.stats()["bytes_given"]
        extra = sum(size for place, size in held.items() if place not in own)
        model.zero_grad(set_to_none=True)
        gc.collect()
        left = reachable([handle])
        parameters = reachable(list(model.parameters()))
        after = sum(size for place, size in left.items() if place not in parameters)
    return extra / given, after / given


@pytest.mark.parametrize("strategy", KINDS)
def test_buffers(three: Ranks, strategy: str) -> None:
    for extra, after in three.run(added, strategy):
        assert extra <= KINDS[strategy] * 1.05
        assert after <= KINDS[strategy] * 1.05  # zero_grad(set_to_none=True) frees the gradients


def dropped(ddp: bool) -> list[bool]:
    """Whether a parameter and its residual are still in memory after model and handle are
    dropped."""
    model = small()
    whole: nn.Module = DistributedDataParallel(model) if ddp else model
    with attached(whole, "topk(0.1)+ef | allgather") as handle:
        loss_of(whole).backward()
        waits = handle._session.ledger.memory["one.weight"]["residual"]
        watched = [weakref.ref(model.one.weight), weakref.ref(waits)]
    del model, whole, handle, waits
    gc.collect()
    return [x() is not None for x in watched]


@pytest.mark.parametrize("ddp", [False, True])
def test_a_detached_model_is_freed(three: Ranks, ddp: bool) -> None:
    assert three.run(dropped, ddp) == [[False, False]] * 3


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measured(strategy: str) -> tuple[float, float]:
    """Growth of the resident set at the end and at its peak, in multiples of the gradients'
    bytes."""
    model = model_of(20_000_000)
    given = 4 * sum(p.numel() for p in model.parameters())
    x = torch.randn(2, model[0].in_features)  # type: ignore[index, arg-type]
    for _ in range(2):
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
    gc.collect()
    before, peak = resident(), 0
    with attached(model, strategy):
        for _ in range(4):
            model.zero_grad(set_to_none=False)
            model(x).square().mean().backward()
            peak = max(peak, resident())
        gc.collect()
        now = resident()
    return (now - before) / given, (peak - before) / given


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc/self/statm")
def test_resident_set(tmp_path: Path) -> None:
    with Ranks(2, tmp_path) as ranks:
        for strategy, buffers in KINDS.items():
            for now, peak in ranks.run(measured, strategy):
                assert buffers * 0.9 <= now <= buffers * 1.15
                assert peak <= buffers * 1.15
