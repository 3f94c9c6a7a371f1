"""Conversions between fp32, bf16 and fp16, copies of fp64, and whether all is finite."""

import torch

from gradwire.errors import KernelError
from gradwire.kernels.native import core_for
from gradwire.kernels.tensors import (
    CODES,
    are_doubles,
    check_buffer,
    check_contiguous,
    check_float,
    check_same_device,
    finite_number,
    goes_around,
    pointer,
)


def _check(source: torch.Tensor, target: torch.Tensor) -> None:
    double = are_doubles(source, target)
    check_float("source", source, double=double)
    check_float("target", target, double=double)
    check_contiguous("target", target)
    check_same_device(source, target=target)
    if source.shape != target.shape:
        raise KernelError(
            f"target must have the shape of source, {tuple(source.shape)}, "
            f"not {tuple(target.shape)}; allocate it so"
        )


def cast(source: torch.Tensor, target: torch.Tensor) -> bool:
    """target = source in target's dtype, rounded to nearest even; NaN stays NaN, overflow becomes
    inf. Returns whether all of target is finite.

    source: (n,) fp32, bf16 or fp16. target: (n,) of one of them, contiguous, written. Or both are
    fp64. Raises KernelError.
    """
    _check(source, target)
    found = core_for(source)
    if found is None or are_doubles(source):
        return cast_twin(source, target)
    core, which = found
    source = source.contiguous()
    n, around = source.numel(), goes_around(target)
    from_, to = CODES[source.dtype], CODES[target.dtype]
    return core.cast(which, from_, to, pointer(source), pointer(target), n, around)


def cast_twin(source: torch.Tensor, target: torch.Tensor) -> bool:
    """`cast` in torch."""
    _check(source, target)
    target.copy_(source.detach().to(target.dtype))
    return is_finite_twin(target)


def add_cast(v: torch.Tensor, source: torch.Tensor, factor: float) -> None:
    """v += factor · source. v: (n,) fp32, contiguous; source: (n,) fp32, bf16 or fp16.

    Raises KernelError.
    """
    _check(source, v)
    check_buffer("v", v, torch.float32, v.numel())
    by = finite_number("factor", factor)
    found = core_for(v)
    if found is None:
        add_cast_twin(v, source, by)
        return
    core, which = found
    source = source.contiguous()
    core.add_cast(which, CODES[source.dtype], pointer(source), pointer(v), v.numel(), by)


def add_cast_twin(v: torch.Tensor, source: torch.Tensor, factor: float) -> None:
    """`add_cast` in torch."""
    v += source.detach().float() * factor


def is_finite(x: torch.Tensor) -> bool:
    """Whether x, (n,) fp32, bf16, fp16 or fp64, has neither inf nor NaN. Raises KernelError."""
    check_float("x", x, double=True)
    found = core_for(x)
    if found is None or are_doubles(x):
        return is_finite_twin(x)
    core, which = found
    x = x.contiguous()
    return core.is_finite(which, CODES[x.dtype], pointer(x), x.numel())


def is_finite_twin(x: torch.Tensor) -> bool:
    """`is_finite` in torch."""
    return bool(x.isfinite().all())
