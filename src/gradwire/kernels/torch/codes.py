"""Quantizers in torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.formats import LEAST_SCALED, Format
from gradwire.kernels.held import held_by
from gradwire.kernels.segments import EncodeCodes, SumCodes, UpdateCodes, without_codes
from gradwire.kernels.tensors import quotient
from gradwire.kernels.torch.formats import decode_rows, encode_rows, means_of
from gradwire.kernels.torch.noise import random_bits
from gradwire.kernels.torch.signs import decode_signs, lane_sum, pack_signs
from gradwire.kernels.torch.status import raise_unless
from gradwire.kernels.torch.update import update_topk
from gradwire.kernels.values import SILENCE, Noise


def encode_codes(
    form: Format, x: Tensor, codes: Tensor, scales: Tensor, status: Tensor,
    noise: Noise = SILENCE, clip: float | None = None,
) -> None:  # fmt: skip
    """Encodes block by block."""
    if form.signs:
        pack_signs(x, codes, scales, status, noise)
        return
    x = x.detach().float()
    raise_unless(x.isfinite().all(), status)
    x = torch.nan_to_num(x, 0.0, 0.0, 0.0)  # no code stands for inf or NaN
    if form.in_all and x.numel():
        scales.copy_(_one_scale(x, clip))
    random = random_bits(noise, x.numel(), device=x.device)
    byte = scale = 0
    for rows, dice in zip(_blocks(form, x), _blocks(form, random)):
        top = means_of(rows) if form.mean else rows.abs().amax(1, keepdim=True)
        raise_unless(top.isfinite().all(), status)
        if form.in_all:
            top = scales.expand_as(top)
        scaled = top >= LEAST_SCALED
        steps = torch.full_like(top, form.steps)
        inverse = torch.where(scaled, top if form.mean else steps * form.one / top, 0.0)
        written = encode_rows(form, rows, inverse, dice)
        codes[byte : byte + written.numel()] = written.flatten()
        byte += written.numel()
        if form.in_all is None:
            step = top if form.mean else top / steps
            here = torch.where(scaled, step.clamp(max=form.most_scale), 0.0)
            scales[scale : scale + len(rows)] = here.flatten()
            scale += len(rows)


def encode_many_codes(segments: Sequence[EncodeCodes], status: Tensor) -> None:
    for form, x, codes, scales, noise, clip in segments:
        encode_codes(form, x, codes, scales, status, noise, clip)


def _one_scale(x: Tensor, clip: float | None) -> Tensor:
    """Returns the largest magnitude, cut to `clip` root mean squares if the sum of squares is
    above 0 and finite."""
    most = x.abs().max()
    if clip is None:
        return most
    squares = lane_sum(x * x)
    cut = torch.minimum(most.double(), clip * (squares / x.numel()).sqrt()).float()
    return torch.where((squares > 0.0) & squares.isfinite(), cut, most)


def update_codes(segments: Sequence[UpdateCodes], status: Tensor) -> None:
    """Updates and encodes segment by segment."""
    for one in segments:
        update_topk(without_codes([one]), status)
        encode_codes(one.form, one.residual, one.codes, one.scales, status, one.noise, one.clip)
        add_codes(one.form, one.residual, one.codes, one.scales, -1.0)


def decode_codes(
    form: Format, codes: Tensor, scales: Tensor, n: int, factor: float = 1.0
) -> Tensor:
    """Returns the decoded codes with their scales times factor: (n,) fp32."""
    if form.signs:
        return decode_signs(codes, scales, n) * factor
    out, byte, scale = [], 0, 0
    for rows, m in ((n // form.block, form.block), (1, n % form.block)):
        if rows == 0 or m == 0:
            continue
        size = form.block_bytes(m)
        here = codes[byte : byte + rows * size].view(rows, size)
        byte += rows * size
        if form.in_all == 0:
            by = torch.full((rows, 1), factor, device=codes.device, dtype=torch.float32)
        else:
            by = scales[:1] if form.in_all else scales[scale : scale + rows]
            by = (by * factor).view(-1, 1).expand(rows, 1)
            scale += rows
        out.append(decode_rows(form, here, m, by).flatten())
    return torch.cat(out) if out else torch.zeros(0, device=codes.device, dtype=torch.float32)


def _accumulate_codes(segments: Sequence[SumCodes]) -> int:
    for number, (form, out, payloads, divisor) in enumerate(segments):
        total = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
        for codes, scales in payloads:
            if (~(scales.abs() <= form.most_scale)).any():  # also true for NaN
                return number
            total = total + decode_codes(form, codes, scales, out.numel())
        out.copy_(quotient(total, divisor))
    return len(segments)


def add_codes(form: Format, v: Tensor, codes: Tensor, scales: Tensor, factor: float) -> None:
    v += decode_codes(form, codes, scales, v.numel(), factor)


def _blocks(form: Format, x: Tensor) -> list[Tensor]:
    """Splits (n,) into the whole blocks, (blocks, block), and the rest, (1, rest); an empty part
    is left out."""
    whole = x.numel() // form.block * form.block
    parts = [x[:whole].view(-1, form.block), x[whole:].view(1, -1)]
    return [part for part in parts if part.numel()]


def accumulate_codes(segments: Sequence[SumCodes], status: Tensor | None = None) -> int:
    return held_by(status, _accumulate_codes, segments)
