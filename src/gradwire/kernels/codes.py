"""Quantizers: n floats as codes of a few bits with scales, and sums of such payloads."""

from collections.abc import Sequence

import torch

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.formats import Format
from gradwire.kernels.journal import Journal
from gradwire.kernels.noise import check_noise
from gradwire.kernels.rooms import room_of
from gradwire.kernels.sparse import check_target
from gradwire.kernels.status import check_status
from gradwire.kernels.tensors import (
    check_buffer,
    check_float,
    check_same_device,
    finite_number,
    real,
)
from gradwire.kernels.update import advance, check_update, recurrence_of
from gradwire.kernels.values import SILENCE, Noise, Payload


def encode_codes(
    form: Format, x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor,
    status: torch.Tensor, noise: Noise = SILENCE, clip: float | None = None,
) -> None:  # fmt: skip
    """Write codes and scales.

    x: (n,) fp32, bf16 or fp16. codes: (form.code_bytes(n),) uint8. scales: (form.scales(n),)
    fp32. status: raised if x is not finite; what was written is worthless then. clip: for a format
    with one scale in all, at most so many root mean squares; None: the largest magnitude.
    Raises KernelError.
    """
    check_float("x", x)
    check_codes(form, x.numel(), codes, scales)
    check_same_device(x, codes=codes, scales=scales)
    check_status(x, status)
    check_noise(noise)
    if clip is not None and not finite_number("clip", clip) > 0.0:
        raise KernelError(f"clip must be above 0 in float32, not {clip}; pass None for no clip")
    room_of(x).encode_codes(form, x, codes, scales, status, noise, clip and float(clip))


def update_codes(
    form: Format, gradient: torch.Tensor, velocity: torch.Tensor | None, residual: torch.Tensor,
    codes: torch.Tensor, scales: torch.Tensor, noise: Noise, status: torch.Tensor, *,
    momentum: float | None, nesterov: bool = False, scale: float = 1.0, decay: float = 1.0,
    hint: float = 0.0, journal: Journal | None = None,
) -> None:  # fmt: skip
    """`update_topk` of nothing, `encode_codes` of the residual, and what was coded out of it.

    Chunk by chunk in the cache, so that memory is passed over once; formats with one scale in all
    take the three one after the other. What is not finite keeps its velocity and residual, and
    raises the status. Raises KernelError.
    """
    check_noise(noise)
    if form.one_scale:
        advance(
            gradient, velocity, residual, status, momentum=momentum, nesterov=nesterov,
            scale=scale, decay=decay, hint=hint, journal=journal,
        )  # fmt: skip
        encode_codes(form, residual, codes, scales, status, noise)
        add_codes(form, residual, codes, scales, -1.0)
        return
    room = room_of(gradient)
    check_update(gradient, velocity, residual, None, 0, momentum)
    check_codes(form, gradient.numel(), codes, scales)
    check_status(gradient, status)
    m, d, s = recurrence_of(momentum, scale, decay)
    room.update_codes(
        form, gradient, velocity, residual, codes, scales, noise, status, momentum=m,
        nesterov=nesterov, scale=s, decay=d, hint=real(hint), journal=journal,
    )  # fmt: skip


def accumulate_codes(
    form: Format, out: torch.Tensor, payloads: Sequence[Payload],
    divisor: float,
) -> None:  # fmt: skip
    """out = (sum of the payloads) / divisor; out is overwritten, whatever it held.

    out: (n,) fp32, bf16 or fp16, contiguous. payloads: (codes, scales) as `encode_codes` wrote
    them. The sum is taken in list order in fp32, from zero. Raises PayloadError, with out
    untouched, for scales that no encoder writes: not finite, or so large that the steps are not;
    KernelError for out and divisor.
    """
    by = check_target(out, divisor)
    for number, (codes, scales) in enumerate(payloads):
        check_codes(form, out.numel(), codes, scales)
        check_same_device(out, codes=codes, scales=scales)
        check_payload_scales(number, scales, form.most_scale)
    room_of(out).accumulate_codes(form, out, payloads, by)


def add_codes(
    form: Format, v: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, factor: float
) -> None:
    """v += what the codes say with their scales times factor. v: (n,) fp32, contiguous.

    Raises KernelError.
    """
    check_buffer("v", v, torch.float32, v.numel())
    check_codes(form, v.numel(), codes, scales)
    check_same_device(v, codes=codes, scales=scales)
    by = finite_number("factor", factor)
    room_of(v).add_codes(form, v, codes, scales, by)


def check_codes(form: Format, n: int, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """KernelError unless these are codes and scales of n elements."""
    check_buffer("codes", codes, torch.uint8, form.code_bytes(n))
    check_buffer("scales", scales, torch.float32, form.scales(n))


def check_payload_scales(
    number: int, scales: torch.Tensor, most: float = torch.finfo(torch.float32).max
) -> None:
    """PayloadError unless all scales of a received payload are finite and at most `most`."""
    if scales.numel() == 0:
        return
    low, high = torch.stack(scales.aminmax()).tolist()
    if -most <= low and high <= most:  # NaN is neither
        return
    raise PayloadError(
        f"payload {number}: scales must be finite and at most {most:.8g}, but "
        f"{int((~(scales.abs() <= most)).sum())} of {scales.numel()} are not; the message is "
        "damaged or belongs to another parameter"
    )
