"""Quantizers: n floats as codes of a few bits with scales, and sums of such payloads."""

from collections.abc import Sequence

import torch

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.formats import Format
from gradwire.kernels.known import Known
from gradwire.kernels.noise import check_noise
from gradwire.kernels.rooms import room_of
from gradwire.kernels.segments import AdamCodes, EncodeCodes, SumCodes, UpdateCodes
from gradwire.kernels.selection import hint_of
from gradwire.kernels.sparse import check_target
from gradwire.kernels.status import check_status, check_word, told_to
from gradwire.kernels.tensors import (
    check_buffer,
    check_float,
    check_memory_of_all,
    check_same_device,
    divided,
    facts_of_all,
    finite_number,
)
from gradwire.kernels.update import (
    are_rounded,
    check_gradient,
    check_journals,
    check_kept,
    gradients_of,
    recurrence_of,
)
from gradwire.kernels.values import SILENCE, Noise


def encode_codes(
    form: Format, x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor,
    status: torch.Tensor, noise: Noise = SILENCE, clip: float | None = None,
) -> None:  # fmt: skip
    """Writes the codes and scales of x.

    x: (n,) fp32, bf16 or fp16. codes: (form.code_bytes(n),) uint8. scales: (form.scales(n),)
    fp32. status: raised if x is not finite, or if, with signs, the sum of its magnitudes overflows
    fp32; what was written is then worthless. noise: the dice; SILENCE: none, and zeros count as
    positive in formats of signs. clip: for a format with one scale for all elements, the scale is
    at most so many root mean squares; None: the largest magnitude. Raises KernelError.
    """
    check_float("x", x)
    _check_encoding(form, x, status, codes, scales)
    check_noise(noise)
    check_clip(clip)
    room_of(x).encode_codes(form, x, codes, scales, status, noise, clip and float(clip))


def encode_many_codes(
    segments: Sequence[EncodeCodes], status: torch.Tensor, known: Known | None = None
) -> None:
    """Runs `encode_codes` for each segment. known: earlier steps' checks.

    Raises KernelError.
    """
    room = told_to(status)

    def check() -> None:
        for form, x, codes, scales, *_ in segments:
            check_float("x", x)
            _check_encoding(form, x, status, codes, scales)

    check_noise_and_clip(segments)
    facts = [one.form for one in segments], gradients_of([one.x for one in segments])
    kept = [part for one in segments for part in (one.codes, one.scales)]
    (known or Known()).check("encode_codes", facts, [status, *kept], check)
    room.encode_many_codes(segments, status)


def _check_encoding(
    form: Format, x: torch.Tensor, status: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
) -> None:
    check_codes(form, x.numel(), codes, scales)
    check_same_device(x, codes=codes, scales=scales)
    check_status(x, status)


def update_codes(
    segments: Sequence[UpdateCodes], status: torch.Tensor, known: Known | None = None
) -> None:
    """Runs `update_topk` with k = 0 for each segment, encodes the residual as `encode_codes` does,
    and subtracts the decoded codes from it. It works chunk by chunk in the cache, so that memory
    is passed over once; formats that know their scales late run the three one after the other. An
    element that would not be finite keeps its velocity and residual, and raises the status.
    known: earlier steps' checks. Raises KernelError."""
    room = told_to(status)

    def check() -> None:
        for form, x, u, v, codes, scales, _, m, *_ in segments:
            check_gradient(x, v)
            check_kept(u, v, None, 0, m)
            check_codes(form, v.numel(), codes, scales)
            check_same_device(status, residual=v, codes=codes, scales=scales)

    check_noise_and_clip(segments)
    columns = list(zip(*segments)) or [()] * 8
    forms, gradients, us, vs, codes, scales, _, momenta, *_ = columns
    facts = forms, momenta, gradients_of(gradients)
    kept = (status, *us, *vs, *codes, *scales)
    (known or Known()).check("update_codes", facts, kept, check)
    check_journals(segments)
    given = segments if are_rounded(segments) else [_rounded(one) for one in segments]
    room.update_codes(given, status)


def _rounded(one: UpdateCodes) -> UpdateCodes:
    """Returns the segment with its numbers rounded to fp32."""
    m, d, s = recurrence_of(one.momentum, one.scale, one.decay)
    # Positional arguments take a third of the time of `_replace`.
    return UpdateCodes(*one[:7], m, one.nesterov, s, d, hint_of(one.hint), *one[12:])


def accumulate_codes(
    segments: Sequence[SumCodes], status: torch.Tensor | None = None, known: Known | None = None
) -> None:
    """Writes all averages, up to the first segment with a bad payload, if there is one: then
    raises PayloadError, with that out untouched, for scales that no encoder writes: not finite, or
    so large that what encoders write is decoded to numbers that are not. Codes are not checked, as
    the values of other payloads are not: those that no encoder writes, such as 0x7C of E5M2 or
    0xFF of POWERS, may be decoded to infinity or NaN. Raises KernelError for out and divisor.
    status, known: as in `add_up`."""

    def check() -> None:
        for form, out, payloads, by in segments:
            check_target(out, by)
            for codes, scales in payloads:
                check_codes(form, out.numel(), codes, scales)
                check_same_device(out, codes=codes, scales=scales)

    checked, outs = divided(segments), [one.out for one in segments]
    check_memory_of_all("out", outs)
    facts = facts_of_all(outs), [(one.form, len(one.payloads)) for one in segments]
    parts = [part for one in segments for payload in one.payloads for part in payload]
    (known or Known()).check("sum_codes", facts, parts, check)
    check_word(status, *(one.out for one in checked[:1]))
    bad = room_of(*(one.out for one in checked[:1])).accumulate_codes(checked, status)
    if bad < len(checked):
        for number, (_, scales) in enumerate(checked[bad].payloads):
            check_payload_scales(number, scales, checked[bad].form.most_scale)


def add_codes(
    form: Format, v: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, factor: float
) -> None:
    """Adds factor times the decoded codes to v. v: (n,) fp32, contiguous. Raises KernelError."""
    check_buffer("v", v, torch.float32, v.numel())
    check_codes(form, v.numel(), codes, scales)
    check_same_device(v, codes=codes, scales=scales)
    by = finite_number("factor", factor)
    room_of(v).add_codes(form, v, codes, scales, by)


def check_codes(form: Format, n: int, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Raises KernelError unless these are codes and scales of n elements."""
    check_buffer("codes", codes, torch.uint8, form.code_bytes(n))
    check_buffer("scales", scales, torch.float32, form.scales(n))


def check_noise_and_clip(segments: Sequence[EncodeCodes | UpdateCodes | AdamCodes]) -> None:
    """Raises KernelError unless both are valid in all segments."""
    for one in segments:
        if one.noise is not SILENCE:
            check_noise(one.noise)
        if one.clip is not None:
            check_clip(one.clip)


def check_clip(clip: float | None) -> None:
    """Raises KernelError unless clip is None or a finite number above 0 (root mean squares)."""
    if clip is not None and not finite_number("clip", clip) > 0.0:
        raise KernelError(f"clip must be above 0 in float32, not {clip}; pass None for no clip")


def check_payload_scales(
    number: int, scales: torch.Tensor, most: float = torch.finfo(torch.float32).max
) -> None:
    """Raises PayloadError unless all scales of a received payload are finite, and at most `most`
    in magnitude."""
    if scales.numel() == 0:
        return
    low, high = torch.stack(scales.aminmax()).tolist()
    if -most <= low and high <= most:  # false for NaN
        return
    raise PayloadError(
        f"payload {number}: scales must be finite and at most {most:.8g}, but "
        f"{int((~(scales.abs() <= most)).sum())} of {scales.numel()} are not; the message is "
        "damaged or belongs to another parameter"
    )
