"""Conversions between fp32, bf16 and fp16, copies of fp64, and a check that all is finite."""

from collections.abc import Sequence

import torch

from gradwire.errors import KernelError
from gradwire.kernels.known import Known
from gradwire.kernels.rooms import exact_room_of, room_of
from gradwire.kernels.segments import CastInto
from gradwire.kernels.status import check_status, check_word
from gradwire.kernels.tensors import (
    are_doubles,
    check_buffer,
    check_contiguous,
    check_float,
    check_memory,
    check_same_device,
    doubles_apart,
    facts_of,
    finite_number,
)


def _check(source: torch.Tensor, target: torch.Tensor) -> None:
    double = are_doubles(source, target)
    check_float("source", source, double=double)
    check_float("target", target, double=double)
    check_contiguous("target", target)
    check_same_device(source, target=target)
    if source.shape != target.shape:
        raise KernelError(
            f"target must have the shape of source, {tuple(source.shape)}, not "
            f"{tuple(target.shape)}; allocate it with that shape"
        )


def _check_told(source: torch.Tensor, target: torch.Tensor, status: torch.Tensor | None) -> None:
    _check(source, target)
    check_word(status, source)


def cast(source: torch.Tensor, target: torch.Tensor, status: torch.Tensor | None = None) -> None:
    """Writes source to target in target's dtype, rounded to nearest even; NaN stays NaN, overflow
    becomes inf. With a status, neither may be written: it is raised, and target is all zeros.

    source: (n,) fp32, bf16 or fp16. target: (n,) of one of them, contiguous, written. Or both are
    fp64. Raises KernelError.
    """
    _check_told(source, target, status)
    exact_room_of(source).cast(source, target, status)


def cast_many(
    segments: Sequence[CastInto], status: torch.Tensor | None = None, known: Known | None = None
) -> None:
    """Runs `cast` for each segment. known: earlier steps' checks. Raises KernelError."""

    def check() -> None:
        if status is not None:  # also checked when there are no segments
            check_status(status, status)
        for source, target in segments:
            _check_told(source, target, status)

    for source, _ in segments:
        check_memory("source", source)
    facts, targets = [facts_of(source) for source, _ in segments], [to for _, to in segments]
    (known or Known()).check("cast", facts, [status, *targets], check)
    for own in doubles_apart(segments):
        exact_room_of(own[0].source).cast_many(own, status)


def add_cast(v: torch.Tensor, source: torch.Tensor, factor: float) -> None:
    """Computes v += factor · source. v: (n,) fp32, contiguous; source: (n,) fp32, bf16 or fp16.

    Raises KernelError.
    """
    _check(source, v)
    check_buffer("v", v, torch.float32, v.numel())
    by = finite_number("factor", factor)
    room_of(v).add_cast(v, source, by)


def is_finite(x: torch.Tensor) -> bool:
    """Whether x, (n,) fp32, bf16, fp16 or fp64, has neither inf nor NaN. Raises KernelError."""
    check_float("x", x, double=True)
    return exact_room_of(x).is_finite(x)
