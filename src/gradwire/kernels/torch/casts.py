"""Casts in torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.segments import CastInto
from gradwire.kernels.torch.status import raise_unless


def cast(source: Tensor, target: Tensor, status: Tensor | None = None) -> None:
    target.copy_(source.detach().to(target.dtype))
    if status is not None:
        finite = target.isfinite().all()
        raise_unless(finite, status)
        target.masked_fill_(~finite, 0.0)


def cast_many(segments: Sequence[CastInto], status: Tensor | None) -> None:
    for source, target in segments:
        cast(source, target, status)


def add_cast(v: Tensor, source: Tensor, factor: float) -> None:
    v += source.detach().float() * factor


def is_finite(x: Tensor) -> bool:
    return bool(x.isfinite().all())


def flag_non_finite(x: Tensor, status: Tensor) -> None:
    raise_unless(x.isfinite().all(), status)


def finite_part(x: Tensor, status: Tensor | None) -> Tensor:
    if status is not None:
        flag_non_finite(x, status)
    return torch.nan_to_num(x, 0.0, 0.0, 0.0)
