"""OCP Microscaling: 32 floats of 4, 6 or 8 bits share a power of two."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from gradwire.kernels.formats import LEAST_SCALED, SHARED, Format

_MANTISSA, _LARGEST_EXPONENT = 23, 254


def encode_shared(form: Format, x: Tensor) -> Tensor:
    """Encodes (blocks, m) fp32 to (blocks, form.block_bytes(m)) uint8: scales' exponents, codes.

    A scale is the largest power of two not above the largest magnitude, divided by the largest one
    not above the format's largest number: MX specification v1.0, section 6.3.
    """
    (mantissa, least, top, most), m = _numbers(form), x.shape[1]
    groups = pad(x, (0, -m % SHARED)).view(len(x), -1, SHARED)
    largest = groups.abs().amax(2, keepdim=True)
    exponent = _exponent_of(largest) - top
    inverse = (_LARGEST_EXPONENT - exponent << _MANTISSA).view(torch.float32)
    scaled = largest >= LEAST_SCALED
    y = groups * torch.where(scaled, inverse, 0.0)
    binade = _exponent_of(y).clamp(min=least)
    step = (binade - mantissa << _MANTISSA).view(torch.float32)
    steps = (y.abs() / step).round().int()  # half to even
    size = (steps + (binade - least << mantissa)).clamp(max=most)
    sign = y.signbit().int() << form.bits - 1
    codes = (size | sign).flatten(1)[:, :m]
    exponents = torch.where(scaled, exponent, 0).flatten(1)
    return torch.cat([exponents.to(torch.uint8), *_planes(form, codes)], 1)


def decode_shared(form: Format, written: Tensor, m: int, factor: Tensor) -> Tensor:
    """Decodes to (blocks, m) fp32, times the factor, (blocks, 1). A scale that no encoder writes
    is read as the largest valid one."""
    (mantissa, least, top, _), groups = _numbers(form), -(-m // SHARED)
    exponent = written[:, :groups].int().clamp(max=_LARGEST_EXPONENT - top)
    scale = (exponent << _MANTISSA).view(torch.float32) * factor
    code = _codes(form, written[:, groups:].int(), m)
    size = code & (1 << form.bits - 1) - 1
    binade = (size >> mantissa).clamp(min=1)  # subnormals have the step of the first binade
    steps = size - (binade - 1 << mantissa)
    step = (binade - 1 + least - mantissa << _MANTISSA).view(torch.float32)
    value = steps.float() * step
    value = torch.where(size == code, value, -value)
    return value * scale.repeat_interleave(SHARED, 1)[:, :m]


def _numbers(form: Format) -> tuple[int, int, int, int]:
    """Returns the bits of the mantissa; the least normal number's exponent, as in fp32; the
    largest one's; and the largest code without a sign: all ones, one less for e4m3, where all ones
    are NaN."""
    mantissa = form.mantissa or 0
    top = 1 << form.bits - 2 - mantissa
    return mantissa, 128 - (top - 1), top, (1 << form.bits - 1) - (2 if form.bits == 8 else 1)


def _exponent_of(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32) >> _MANTISSA & 255


def _planes(form: Format, codes: Tensor) -> list[Tensor]:
    """Packs codes plane by plane; part p of a block lies in the same bits of every byte."""
    planes = []
    for lowest, bits in form.planes:
        parts = _parts(codes >> lowest & (1 << bits) - 1, 8 // bits)
        planes.append((parts << _shifts(bits, codes.device)).sum(1).to(torch.uint8))
    return planes


def _codes(form: Format, packed: Tensor, m: int) -> Tensor:
    codes = torch.zeros((len(packed), m), dtype=torch.int32, device=packed.device)
    begin = 0
    for lowest, bits in form.planes:
        size = -(-m * bits // 8)
        own = packed[:, begin : begin + size].unsqueeze(1) >> _shifts(bits, packed.device)
        codes |= (own & (1 << bits) - 1).flatten(1)[:, :m] << lowest
        begin += size
    return codes


def _parts(codes: Tensor, count: int) -> Tensor:
    """Reshapes (blocks, m) to (blocks, count, ceil(m / count)), padded with zeros."""
    return pad(codes, (0, -codes.shape[1] % count)).view(len(codes), count, -1)


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, device=device, dtype=torch.int32).view(1, -1, 1)
