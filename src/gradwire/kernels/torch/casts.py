"""Casts in torch."""

from torch import Tensor


def cast(source: Tensor, target: Tensor) -> bool:
    target.copy_(source.detach().to(target.dtype))
    return is_finite(target)


def add_cast(v: Tensor, source: Tensor, factor: float) -> None:
    v += source.detach().float() * factor


def is_finite(x: Tensor) -> bool:
    return bool(x.isfinite().all())
