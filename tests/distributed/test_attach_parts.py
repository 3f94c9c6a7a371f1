"""A backward pass that comes in parts is one exchange, and loses nothing.

The law: weights never move, and after T steps the averages and `flush` together are T times the
mean gradient. A step that ends too early sends zeros for gradients that have not come yet, and
loses them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, mean, raised
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

TOPK = "topk(0.1)+ef | allgather"
STEPS, WIDTH = 3, 8


class Layers(nn.Module):
    """Six matrices. run: the forward, given them, the input, and what recomputes a part of
    them."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.run, self.recomputes = run, True

    def forward(self, x: Tensor) -> Any:
        return self.run(*self.parts, x=x, again=self._again)

    def _again(self, part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if not self.recomputes:
            return part(x)
        with warnings.catch_warnings():  # torch's, of nested ones: the inner forward has no grad
            warnings.simplefilter("ignore")
            y: Tensor = checkpoint(part, x, use_reentrant=True)
        return y


def blocks(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, x: Tensor, again: Any) -> Tensor:
    """Recomputes pairs of layers, as transformers do; head and embedding are outside."""
    y: Tensor = f(again(lambda z: e(d(z)), again(lambda z: c(b(z)), a(x))))
    return y


def nested(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, x: Tensor, again: Any) -> Tensor:
    y: Tensor = f(again(lambda z: e(again(d, again(c, b(z)))), a(x.requires_grad_())))
    return y


def all_of_it(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, x: Tensor, again: Any) -> Tensor:
    y = again(lambda z: c(b(a(z))), x.requires_grad_())
    out: Tensor = again(lambda z: f(e(d(z))), y)
    return out


def shared(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, x: Tensor, again: Any) -> Tensor:
    """Uses some layers twice."""
    y: Tensor = f(again(e, again(e, again(d, d(c(b(a(x))))))))
    return y


def branches(
    a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, x: Tensor, again: Any
) -> tuple[Tensor, Tensor]:
    """Two losses that share nothing."""
    return f(e(d(x))), c(again(b, a(x)))


def unused(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, x: Tensor, again: Any) -> Tensor:
    """Rank 1 leaves out a part."""
    y = c(b(a(x)))
    return f(y) if dist.get_rank() == 1 else f(e(d(y)))


def backward(model: nn.Module, step: int, share: float = 1.0) -> None:
    """Runs backward for each output's loss by itself."""
    dice = torch.Generator().manual_seed(9 * step + dist.get_rank())
    outputs = model(torch.randn(3, WIDTH, generator=dice))
    for y in outputs if isinstance(outputs, tuple) else (outputs,):
        (share * y.square().mean()).backward()


def lost(wrap: Any, run: Callable[..., Any], accumulated: bool) -> tuple[float, float]:
    """The share of the gradients that arrived neither as averages nor by flush; and exchanges."""
    model, twin = Layers(run), Layers(run)
    twin.recomputes = False
    module = wrap(model)
    wanted, arrived = dict[str, Tensor](), dict[str, Tensor]()
    with attached(module, TOPK, bucket_bytes=600, lanes=1) as handle:
        for step in range(STEPS):
            model.zero_grad()
            twin.zero_grad()
            if accumulated:
                with handle.no_sync():
                    backward(module, step + 100, 0.5)
                backward(twin, step + 100, 0.5)
            backward(module, step)
            backward(twin, step)
            _add(wanted, {n: mean(g) for n, g in _all_gradients(twin).items()})
            _add(arrived, _all_gradients(model))
        exchanges = handle.stats()["steps"]
        model.zero_grad()
        handle.flush()
        _add(arrived, _all_gradients(model))
    whole = torch.cat([g.flatten() for g in wanted.values()])
    rest = whole - torch.cat([g.flatten() for g in arrived.values()])
    return float(rest.norm() / whole.norm()), exchanges


def _all_gradients(model: nn.Module) -> dict[str, Tensor]:
    named = model.named_parameters()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in named}


def _add(total: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    for name, g in more.items():
        total[name] = total[name] + g if name in total else g


def plain(model: nn.Module) -> nn.Module:
    return model


def ddp(**options: Any) -> Any:
    """DDP with about one layer in each of its buckets, so that they do not end where parts do."""
    return partial(DistributedDataParallel, **{"bucket_cap_mb": 0.0003, **options})


WRAPPERS = {
    "plain": plain,
    "ddp": ddp(),
    "ddp-view": ddp(gradient_as_bucket_view=True),
    "ddp-static": ddp(static_graph=True),
    "ddp-unused": ddp(find_unused_parameters=True),
}


@pytest.mark.parametrize(
    ("wrapper", "run", "accumulated"),
    [
        ("plain", blocks, False), ("plain", nested, True), ("ddp", blocks, False),
        ("ddp", nested, True), ("ddp", all_of_it, False), ("ddp", branches, True),
        ("ddp-view", blocks, False), ("ddp-static", all_of_it, False),
        ("ddp-static", shared, False), ("ddp-unused", unused, True),
    ],
)  # fmt: skip
def test_a_backward_in_parts_is_one_exchange(
    two: Ranks, wrapper: str, run: Callable[..., Any], accumulated: bool
) -> None:
    for share, exchanges in two.run(lost, WRAPPERS[wrapper], run, accumulated):
        assert share < 1e-6
        assert exchanges == STEPS


def refused(wrap: Any, run: Callable[..., Any]) -> str:
    return raised(lambda: lost(wrap, run, False))


@pytest.mark.parametrize(
    ("run", "says"),
    [(all_of_it, "Reentrant checkpointing counts"), (branches, "one backward() per step")],
)
def test_a_plain_module_refuses_several(two: Ranks, run: Callable[..., Any], says: str) -> None:
    """Several are refused where a plain module's `.grad` cannot tell whether more is to come."""
    assert all(says in said for said in two.run(refused, plain, run))


def never_over() -> tuple[str, str]:
    """In the second step the loss leaves out parts, and DDP was not told to look for such
    parts."""
    module: Any = ddp(bucket_cap_mb=0.00025)(Layers(blocks))  # a layer each: the first one comes
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    with attached(module, TOPK):
        backward(module, 0)
        optimizer.step()
        optimizer.zero_grad()
        module.module.run = lambda a, b, c, d, e, f, x, again: f(d(x))
        backward(module, 1)
        return raised(optimizer.step), raised(lambda: backward(module, 2), RuntimeError)


def test_a_step_that_ddp_did_not_end(two: Ranks) -> None:
    """DDP itself reports it only in the next forward."""
    for ours, theirs in two.run(never_over):
        assert "find_unused_parameters=True" in ours
        assert "finished reduction in the prior iteration" in theirs
