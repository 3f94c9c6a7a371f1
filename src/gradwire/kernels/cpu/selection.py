"""Exact selections by the extension."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.cpu.status import raise_unless
from gradwire.kernels.memory import kept, scratch
from gradwire.kernels.native import chosen
from gradwire.kernels.segments import Reach
from gradwire.kernels.tensors import CODES, pointer
from gradwire.kernels.values import Hint, Reaching, number_of

_SLACK = 128  # the extension may write so many elements beyond the last: csrc/kernels.hpp


def fallbacks() -> int:
    return chosen.core.fallbacks()


def topk(x: Tensor, k: int, indices: Tensor, values: Tensor, status: Tensor, hint: Hint) -> Hint:
    x = x.contiguous()
    n, type_, places = x.numel(), CODES[x.dtype], pointer(indices)
    found, finite = chosen.core.topk(
        chosen.number, type_, pointer(x), n, k, places, pointer(values), number_of(hint)
    )
    raise_unless(finite, status)
    return found


def reach(segments: Sequence[Reach], status: Tensor) -> list[Reaching]:
    found = list[Reaching]()
    for x, least in segments:
        places, values = _reaching(x, least, status)
        if len(segments) > 1:  # the next one writes to the same buffers
            places, values = places.clone(), values.clone()
        found.append(Reaching(places, values))
    return found


def _reaching(x: Tensor, least: float, status: Tensor) -> Reaching:
    """Searches again if more elements are found than this thread's buffer holds."""
    x = x.contiguous()
    n, type_ = x.numel(), CODES[x.dtype]
    room = max(kept("reaching", torch.int32, x.device) - _SLACK, 0)
    while True:
        places = scratch("reaching", room + _SLACK, torch.int32, x.device)
        values = scratch("reaching", room + _SLACK, torch.float32, x.device)
        k, finite = chosen.core.reaching(
            chosen.number, type_, pointer(x), n, least, room, pointer(places), pointer(values)
        )
        if k <= room:
            raise_unless(finite, status)
            return Reaching(places[:k], values[:k])
        room = min(n, k + k // 4)  # the next step finds a few more or less
