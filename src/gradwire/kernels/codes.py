"""Quantizers: n floats as codes of a few bits with scales, and sums of such payloads."""

from collections.abc import Sequence

import torch

from gradwire.errors import PayloadError
from gradwire.kernels import formats
from gradwire.kernels.formats import LEAST_SCALED, POWERS, Format, means_of
from gradwire.kernels.journal import Journal
from gradwire.kernels.native import core_for
from gradwire.kernels.noise import Noise, check_noise, random_bits_twin
from gradwire.kernels.sparse import check_target, quotient
from gradwire.kernels.tensors import (
    CODES,
    check_buffer,
    check_float,
    check_same_device,
    finite_number,
    goes_around,
    pointer,
    real,
)
from gradwire.kernels.update import advance, check_update, recurrence_of

_SILENCE = Noise(0, 0)


def encode_codes(
    form: Format, x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor,
    noise: Noise = _SILENCE, largest: float = 0.0,
) -> bool:  # fmt: skip
    """Write codes, and scales unless the format has one in all. Returns whether x is finite.

    x: (n,) fp32, bf16 or fp16. codes: (form.code_bytes(n),) uint8. scales: (form.scales(n),)
    fp32, untouched with one scale. largest: for a format with one scale, what it stands for; x
    must then be finite. If x is not finite, what was written is worthless. Raises KernelError.
    """
    check_float("x", x)
    check_codes(form, x.numel(), codes, scales)
    check_same_device(x, codes=codes, scales=scales)
    check_noise(noise)
    found = core_for(x)
    if found is None:
        return encode_codes_twin(form, x, codes, scales, noise, largest)
    core, which = found
    x = x.contiguous()
    return core.encode(
        which, form.number, CODES[x.dtype], pointer(x), x.numel(), noise, real(largest),
        pointer(codes), pointer(scales), goes_around(codes),
    )  # fmt: skip


def update_codes(
    form: Format, gradient: torch.Tensor, velocity: torch.Tensor | None, residual: torch.Tensor,
    codes: torch.Tensor, scales: torch.Tensor, noise: Noise, *, momentum: float | None,
    nesterov: bool = False, scale: float = 1.0, decay: float = 1.0, hint: float = 0.0,
    journal: Journal | None = None,
) -> bool:  # fmt: skip
    """`update_topk` of nothing, `encode_codes` of the residual, and what was coded out of it.

    Chunk by chunk in the cache, so that memory is passed over once; not for formats with one
    scale in all. What is not finite keeps its velocity and residual. Returns whether all was.
    Raises KernelError.
    """
    check_noise(noise)
    found = core_for(gradient)
    if found is None or form.one_scale:
        return update_codes_twin(
            form, gradient, velocity, residual, codes, scales, noise, momentum=momentum,
            nesterov=nesterov, scale=scale, decay=decay, hint=hint, journal=journal,
        )  # fmt: skip
    check_update(gradient, velocity, residual, None, 0, momentum)
    check_codes(form, gradient.numel(), codes, scales)
    mode, m, s = recurrence_of(momentum, nesterov, scale, decay)
    core, which = found
    gradient = gradient.contiguous()
    return core.update_codes(
        which, form.number, CODES[gradient.dtype], pointer(gradient), pointer(velocity),
        pointer(residual), gradient.numel(), (mode, m, s), noise, pointer(codes), pointer(scales),
        real(hint), 0 if journal is None else journal.begin(core),
    )  # fmt: skip


def update_codes_twin(
    form: Format, gradient: torch.Tensor, velocity: torch.Tensor | None, residual: torch.Tensor,
    codes: torch.Tensor, scales: torch.Tensor, noise: Noise, *, momentum: float | None,
    nesterov: bool = False, scale: float = 1.0, decay: float = 1.0, hint: float = 0.0,
    journal: Journal | None = None,
) -> bool:  # fmt: skip
    """`update_codes`, one after the other."""
    finite = advance(
        gradient, velocity, residual, momentum=momentum, nesterov=nesterov, scale=scale,
        decay=decay, hint=hint, journal=journal,
    )  # fmt: skip
    encode_codes(form, residual, codes, scales, noise)
    add_codes(form, residual, codes, scales, -1.0)
    return finite


def accumulate_codes(
    form: Format, out: torch.Tensor, payloads: Sequence[tuple[torch.Tensor, torch.Tensor]],
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
    found = core_for(out)
    if found is None:
        _accumulate_twin(form, out, payloads, by)
        return
    core, which = found
    core.accumulate_codes(
        which, form.number, CODES[out.dtype], pointer(out), out.numel(),
        [(pointer(codes), pointer(scales)) for codes, scales in payloads], by, goes_around(out),
    )  # fmt: skip


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
    found = core_for(v)
    if found is None:
        add_codes_twin(form, v, codes, scales, by)
        return
    core, which = found
    core.add_codes(which, form.number, pointer(v), v.numel(), pointer(codes), pointer(scales), by)


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


# -- in torch ----------------------------------------------------------------------------------


def encode_codes_twin(
    form: Format, x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor,
    noise: Noise = _SILENCE, largest: float = 0.0,
) -> bool:  # fmt: skip
    """`encode_codes` in torch, block by block."""
    x = x.detach().float()
    if not form.one_scale and not bool(x.isfinite().all()):
        return False
    random = random_bits_twin(noise, x.numel(), device=x.device)
    byte = scale = 0
    for rows, dice in zip(_blocks(form, x), _blocks(form, random)):
        top = means_of(rows) if form.mean else rows.abs().amax(1, keepdim=True)
        if not form.one_scale and not bool(top.isfinite().all()):
            return False
        if form.one_scale:
            given = torch.tensor(real(largest), dtype=torch.float64, device=x.device)
            top = given.float().expand_as(top)
        scaled = top >= LEAST_SCALED
        steps = torch.full_like(top, form.steps)
        inverse = torch.where(scaled, top if form.mean else steps * form.one / top, 0.0)
        written = formats.encode_rows(form, rows, inverse, dice)
        codes[byte : byte + written.numel()] = written.flatten()
        byte += written.numel()
        if form.scales(1) and not form.one_scale:
            step = top if form.mean else top / steps
            here = torch.where(scaled, step.clamp(max=form.most_scale), 0.0)
            scales[scale : scale + len(rows)] = here.flatten()
            scale += len(rows)
    return True


def decode_codes_twin(
    form: Format, codes: torch.Tensor, scales: torch.Tensor, n: int, factor: float = 1.0
) -> torch.Tensor:
    """What the codes say with their scales times factor: (n,) fp32."""
    out, byte, scale = [], 0, 0
    for rows, m in ((n // form.block, form.block), (1, n % form.block)):
        if rows == 0 or m == 0:
            continue
        size = form.block_bytes(m)
        here = codes[byte : byte + rows * size].view(rows, size)
        byte += rows * size
        if form is POWERS:
            by = torch.full((rows, 1), factor, device=codes.device)
        else:
            by = scales[:1] if form.one_scale else scales[scale : scale + rows]
            by = (by * factor).view(-1, 1).expand(rows, 1)
            scale += rows
        out.append(formats.decode_rows(form, here, m, by).flatten())
    return torch.cat(out) if out else torch.zeros(0, device=codes.device)


def _accumulate_twin(
    form: Format, out: torch.Tensor, payloads: Sequence[tuple[torch.Tensor, torch.Tensor]],
    divisor: float,
) -> None:  # fmt: skip
    total = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
    for codes, scales in payloads:
        total = total + decode_codes_twin(form, codes, scales, out.numel())
    out.copy_(quotient(total, divisor))


def add_codes_twin(
    form: Format, v: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, factor: float
) -> None:
    """`add_codes` in torch."""
    v += decode_codes_twin(form, codes, scales, v.numel(), factor)


def _blocks(form: Format, x: torch.Tensor) -> list[torch.Tensor]:
    """(n,) as the whole blocks, (blocks, block), and the rest, (1, rest); without empty ones."""
    whole = x.numel() // form.block * form.block
    parts = [x[:whole].view(-1, form.block), x[whole:].view(1, -1)]
    return [part for part in parts if part.numel()]
