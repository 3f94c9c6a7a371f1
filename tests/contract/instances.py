"""The members under contract, each with a few parameter sets, and what they cost by hand.

A member that a family exports and that has no instance here fails `test_tables.py`.
n: elements of a parameter. world: ranks. b: bytes of one rank's contribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gradwire import Strategy
from gradwire.collectives import AllGatherSum, AllReduceSum
from gradwire.compressors import (
    QSGD,
    BFloat16,
    Float8,
    Float16,
    Identity,
    Int8,
    Natural,
    OneBit,
    Sign,
    TernGrad,
    TopK,
)
from gradwire.errors import StrategyError
from gradwire.feedback import EF21, ErrorFeedback, Momentum, MomentumCorrection, ServerMomentum
from gradwire.strategy import Collective, Compressor, Feedback

COMPRESSORS: tuple[Compressor, ...] = (
    Identity(),
    Float16(),
    BFloat16(),
    Int8(),
    Float8(),
    Float8("e5m2"),
    QSGD(2),
    QSGD(4),
    QSGD(8),
    Natural(),
    TernGrad(),
    TernGrad(clip=2.5),
    Sign(),
    Sign(scaled=True),
    OneBit(),
    TopK(0.001),
    TopK(0.1),
    TopK(0.5),
    TopK(1.0),
)
FEEDBACK: tuple[Feedback, ...] = (
    ErrorFeedback(),
    ErrorFeedback(decay=0.9),
    *(
        MomentumCorrection(momentum, nesterov, mask)
        for momentum in (0.9, 0.0)
        for nesterov in (False, True)
        for mask in (True, False)
    ),
    EF21(),
    Momentum(0.9),
    Momentum(0.0),
    ServerMomentum(0.9),
    ServerMomentum(0.5, nesterov=True),
)
COLLECTIVES: tuple[Collective, ...] = (AllReduceSum(), AllGatherSum())
WORLDS = (1, 2, 3, 5, 8)

# -- by hand, not by claims --------------------------------------------------------------------

PAYLOAD_BYTES: dict[str, Callable[[Compressor, int, int], int]] = {
    "none": lambda c, n, item: item * n,
    "fp16": lambda c, n, item: 2 * n,
    "bf16": lambda c, n, item: 2 * n,
    "int8": lambda c, n, item: n + 4 * blocks(n, 256),
    "fp8": lambda c, n, item: n + 4 * blocks(n, 256),
    "qsgd": lambda c, n, item: -(-n * c.bits // 8) + 4 * blocks(n, 512),  # type: ignore[attr-defined]
    "natural": lambda c, n, item: n + blocks(n, 8),
    "terngrad": lambda c, n, item: blocks(n, 5) + 4 * min(n, 1),
    "sign": lambda c, n, item: blocks(n, 8) + 4 * min(n, int(c.scaled)),  # type: ignore[attr-defined]
    "onebit": lambda c, n, item: blocks(n, 8) + 8 * min(n, 1),
    "topk": lambda c, n, item: 8 * min(n, math.ceil(c.density * n)),  # type: ignore[attr-defined]
}
"""Bytes of one payload; item: bytes of an element of the gradient."""


def blocks(n: int, size: int) -> int:
    return -(-n // size)


def message_bytes(payload: int) -> int:
    """With its header of 32 bytes, padded to a multiple of 8."""
    return 32 + -(-payload // 8) * 8


BYTES_SENT: dict[str, Callable[[int, int], float]] = {
    "allreduce": lambda world, payload: 2 * (world - 1) / world * payload,
    "allgather": lambda world, payload: (world - 1) * message_bytes(payload),
}
"""Bytes one of `world` ranks puts on the wire for one payload."""

# The inputs a compressor is exact on: its own class.
OWN_CLASS: dict[str, Callable[[Compressor, Tensor], Tensor]] = {
    "none": lambda c, x: x,
    "fp16": lambda c, x: x.half().to(x.dtype),
    "bf16": lambda c, x: x.bfloat16().to(x.dtype),
    "int8": lambda c, x: on_grid(x, 127),
    "fp8": lambda c, x: on_grid(x, 7) if c.variant == "e4m3" else on_grid(x, 3),  # type: ignore[attr-defined]
    "qsgd": lambda c, x: on_grid(x, 2 ** (c.bits - 1) - 1),  # type: ignore[attr-defined]
    "natural": lambda c, x: torch.sign(x) * 2.0 ** (x.float().abs() * 3).round().to(x.dtype),
    "terngrad": lambda c, x: torch.sign(x) if c.clip is None else torch.zeros_like(x),  # type: ignore[attr-defined]
    "sign": lambda c, x: torch.where(x < 0, -1.0, 1.0).to(x.dtype),
    "onebit": lambda c, x: torch.where(x < 0, -2.0, 0.5).to(x.dtype),
    "topk": lambda c, x: k_sparse(x, min(len(x), math.ceil(c.density * len(x)))),  # type: ignore[attr-defined]
}


def on_grid(x: Tensor, top: int) -> Tensor:
    """Whole numbers up to top; the first of every 256 is top, so that every scale is 1."""
    whole = (x.float() * top / 3).round().clamp(-top, top)
    whole[::256] = top
    return whole.to(x.dtype)


def k_sparse(x: Tensor, k: int) -> Tensor:
    """x with all but k random elements set to zero."""
    kept = torch.randperm(len(x), generator=torch.Generator().manual_seed(len(x)))[:k]
    return torch.zeros_like(x).index_copy(0, kept, x[kept])


def strategies(feedback: tuple[Feedback | None, ...] = (None, *FEEDBACK)) -> list[Strategy]:
    """Every combination that is not refused."""
    made = []
    for compressor in COMPRESSORS:
        for memory in feedback:
            for collective in COLLECTIVES:
                try:
                    made.append(Strategy(compressor, collective, memory))
                except StrategyError:
                    continue
    return made


def ids(members: object) -> str:
    """Members and strategies are their own test ids."""
    return str(members)
