"""Sums of payloads in torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.segments import SumDense
from gradwire.kernels.tensors import quotient


def first_violation(indices: Tensor, n: int) -> int:
    before = torch.cat([indices.new_full((1,), -1), indices[:-1]])
    bad = (indices <= before) | (indices >= n)
    return int(bad.int().argmax()) if bool(bad.any()) else indices.numel()


def accumulate(out: Tensor, indices: list[Tensor], values: list[Tensor], divisor: float) -> None:
    total = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
    for index, value in zip(indices, values):
        total[index.long()] += value.detach().float()
    out.copy_(quotient(total, divisor))


def accumulate_dense(out: Tensor, payloads: list[Tensor], divisor: float) -> None:
    exact = torch.promote_types(out.dtype, torch.float32)
    total = torch.zeros(out.shape, dtype=exact, device=out.device)
    for payload in payloads:
        total = total + payload.detach().to(exact)
    out.copy_(quotient(total, divisor))


def accumulate_many_dense(segments: Sequence[SumDense], status: Tensor | None = None) -> None:
    for one in segments if status is None or not status else ():
        accumulate_dense(*one)


def add(v: Tensor, indices: Tensor, values: Tensor, factor: float) -> None:
    v[indices.long()] += values.detach() * factor
