"""Casts by the extension."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.cpu.status import raise_unless
from gradwire.kernels.native import chosen
from gradwire.kernels.segments import CastInto
from gradwire.kernels.tensors import CODES, goes_around, pointer


def cast(source: Tensor, target: Tensor, status: Tensor | None) -> None:
    source = source.contiguous()
    n, around = source.numel(), goes_around(target)
    from_, to = CODES[source.dtype], CODES[target.dtype]
    addresses = pointer(source), pointer(target)
    finite = chosen.core.cast(chosen.number, from_, to, *addresses, n, around)
    if status is not None and not finite:
        raise_unless(finite, status)
        target.zero_()


def cast_many(segments: Sequence[CastInto], status: Tensor | None) -> None:
    for source, target in segments:
        cast(source, target, status)


def add_cast(v: Tensor, source: Tensor, factor: float) -> None:
    source = source.contiguous()
    type_ = CODES[source.dtype]
    chosen.core.add_cast(chosen.number, type_, pointer(source), pointer(v), v.numel(), factor)


def is_finite(x: Tensor) -> bool:
    x = x.contiguous()
    return chosen.core.is_finite(chosen.number, CODES[x.dtype], pointer(x), x.numel())


def flag_non_finite(x: Tensor, status: Tensor) -> None:
    raise_unless(is_finite(x), status)


def finite_part(x: Tensor, status: Tensor | None) -> Tensor:
    finite = is_finite(x)
    if status is not None:
        raise_unless(finite, status)
    return x if finite else torch.nan_to_num(x, 0.0, 0.0, 0.0)
