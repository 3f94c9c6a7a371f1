"""Compares whole strategies on CUDA tensors with the same on the CPU: results and states, bit for
bit, over steps of which one is spoiled by infinity; what is undone then, up to rounding.

Two ranks run in one process, one after the other up to each move.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire import Strategy
from gradwire.bench.rooms import alike
from gradwire.buckets import Bucket, Parameter
from gradwire.runtime.contexts import make_context
from gradwire.runtime.lockstep import drive
from gradwire.strategy import StepInfo
from gradwire.trace import Trace

STRATEGIES = (
    "none | allreduce", "bf16 | allreduce", "fp16 | allgather", "topk(0.01) | allgather",
    "topk(0.01)+ef | allgather", 'topk(0.01, values="bf16")+ef | allgather',
    "dgc(0.01) | allgather", "topk(0.01)+ef | alltoall", "topk(0.01)+ef | zen",
    "topk(0.01)+ef | gtopk", "threshold(2.0)+ef | allgather", "randk(0.01)+ef | allreduce",
    "int8+ef | allgather", "int8 | alltoall", "qsgd(4)+ef | allgather", "terngrad | allgather",
    "natural | allgather", "fp8 | allgather", "sign(scaled=True)+ef | allgather",
    "onebit+ef | alltoall", "signum | vote", "lloyd(2)+adam(beta2=0.99) | allgather",
    "lloyd(1)+ef | allgather", "int8+ef21 | allgather", "powersgd(2)", "int8+ef | hierarchical",
)  # fmt: skip
ROUNDED = {"lloyd(2)+adam(beta2=0.99) | allgather", "powersgd(2)"}
"""Strategies that use torch's own operations, reductions and matrix products, whose order of
additions differs on a device: alike up to rounding."""
SHAPES = {"a": (7000,), "b": (30, 50), "c": (70_001,), "d": (1,)}
WORLD, STEPS, SPOILED = 2, 5, 3


def drawn(step: int, rank: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(10 * step + rank)
    made = [torch.randn(shape, generator=generator).flatten() for shape in SHAPES.values()]
    if (step, rank) == (SPOILED, 1):
        made[2][5] = torch.inf
    return [x.to(device) for x in made]


def run(text: str, device: torch.device) -> tuple[list[list[Tensor]], list[dict[str, Tensor]]]:
    """Returns the results of every step and rank, and the states before the spoiled step and after
    all; on the CPU."""
    strategy = Strategy.parse(text)
    bucket = Bucket(tuple(Parameter(name, shape) for name, shape in SHAPES.items()))
    memories: list[dict[str, dict[str, Tensor]]] = [{} for _ in range(WORLD)]
    contexts = [
        make_context(strategy, bucket, rank, WORLD, memories[rank], device=device)
        for rank in range(WORLD)
    ]
    results, states = [], []
    for step in range(STEPS):
        given = [drawn(step, rank, device) for rank in range(WORLD)]
        for context, own in zip(contexts, given):
            context.begin(own, own, StepInfo(step))
        drive([context.rounds() for context in contexts], Trace(WORLD))
        skipped = not all(context.finite for context in contexts)
        for context in contexts:
            context.end(skipped)
        results += [[x.cpu() for x in own] for own in given]
        if step in (SPOILED - 1, STEPS - 1):
            states.append(_told(memories))
    return results, states


def _told(memories: list[dict[str, dict[str, Tensor]]]) -> dict[str, Tensor]:
    return {
        f"{key} of {name} on rank {rank}": x.clone().cpu()
        for rank, memory in enumerate(memories)
        for name, state in memory.items()
        for key, x in state.items()
    }


def difference(text: str, device: torch.device) -> str:
    """Returns what differs from the CPU, or the error that stops it; "" if nothing does."""
    try:
        return _difference(text, device)
    except Exception as error:
        return f"{text}: {type(error).__name__}: {str(error)[:300]}"


def _difference(text: str, device: torch.device) -> str:
    mine, states = run(text, device)
    wanted, known = run(text, torch.device("cpu"))
    rounded = text in ROUNDED
    for at, (own, theirs) in enumerate(zip(mine, wanted)):
        step = at // WORLD  # after the spoiled step, state is restored up to rounding
        for name, x, y in zip(SHAPES, own, theirs):
            if not _are_alike(x, y, exact=step <= SPOILED and not rounded):
                by = float((x - y).abs().max())
                return f"{text}: {name} in step {step} differs by {by}"
    for now, other, is_last in zip(states, known, (False, True)):
        if now.keys() != other.keys():
            return f"{text}: states {sorted(now.keys() ^ other.keys())}"
        for name, x in now.items():
            if not _are_alike(x, other[name], exact=not (is_last or rounded)):
                return f"{text}: {name} differs"
    return ""


def _are_alike(x: Tensor, y: Tensor, exact: bool) -> bool:
    if exact:
        return alike(x, y)
    return torch.allclose(x.float(), y.float(), atol=1e-4, equal_nan=True)
