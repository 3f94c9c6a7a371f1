"""The codes that a quantizer writes, format by format: the truth in the tests of the kernels."""

import torch

from gradwire.kernels.formats import (
    E4M3,
    E5M2,
    INNER,
    INT8,
    LEVELS8,
    LLOYD1,
    OUTER,
    POWERS,
    TERNARY,
    THRESHOLD,
    Format,
    bits_of,
    parts_of_eight,
)
from gradwire.kernels.torch.microscaling import decode_shared, encode_shared
from gradwire.kernels.torch.noise import unit


def encode_rows(
    form: Format, x: torch.Tensor, inverse: torch.Tensor, random: torch.Tensor
) -> torch.Tensor:
    """Encodes blocks. x: (blocks, m) fp32. inverse: (blocks, 1), form.one over the scale, or the
    mean itself. random: like x, int64."""
    if form is INT8:
        return (x * inverse).round().to(torch.int8).view(torch.uint8)
    if form in (E4M3, E5M2):
        return (x * inverse).to(_float8(form)).view(torch.uint8)
    if form is POWERS:
        return _encode_powers(x, random)
    if form.mantissa is not None:
        return encode_shared(form, x)
    if form.mean:
        return _pack(form, _lloyd_codes(form, x, inverse))
    if form is TERNARY:
        digit = (unit(random) < x.abs() * inverse).long()
        return _pack_digits(1 + torch.where(x < 0, -digit, digit))
    chosen = ((x.abs() * inverse).long() + (random >> 8) >> 24).clamp(max=int(form.steps))
    level = torch.where(x < 0, -chosen, chosen)
    if form is LEVELS8:
        return level.to(torch.int8).view(torch.uint8)
    return _pack(form, level + int(form.steps))


def decode_rows(form: Format, codes: torch.Tensor, m: int, scale: torch.Tensor) -> torch.Tensor:
    """Decodes (blocks, bytes) to (blocks, m) fp32. scale: (blocks, 1)."""
    if form in (INT8, LEVELS8):
        return codes.view(torch.int8).float() * scale
    if form in (E4M3, E5M2):  # the kernels convert by way of fp16, which matters at range ends
        up = 256.0 if form is E4M3 else 1.0
        return (_decode_float8(form, codes) / up) * (scale * up)
    if form is POWERS:
        return _decode_powers(codes, m) * scale
    if form.mantissa is not None:
        return decode_shared(form, codes, m, scale)
    if form is TERNARY:
        return (_digits(codes, m) - 1).float() * scale
    if form.mean:
        levels = [-1.0, 1.0] if form is LLOYD1 else [-OUTER, -INNER, INNER, OUTER]
        every = torch.tensor(levels, dtype=torch.float32, device=codes.device)
        return every[_levels(form, codes, m)] * scale
    return (_levels(form, codes, m) - int(form.steps)).float() * scale


def _float8(form: Format) -> torch.dtype:
    return torch.float8_e4m3fn if form is E4M3 else torch.float8_e5m2


def _decode_float8(form: Format, codes: torch.Tensor) -> torch.Tensor:
    """Decodes 8-bit floats. e4m3's NaN, which no encoder writes, becomes the number that the bits
    would otherwise mean: 480."""
    values = codes.view(_float8(form)).float()
    if form is E5M2:
        return values
    return torch.where(values.isnan(), torch.where(codes < 128, 480.0, -480.0).float(), values)


def _parts(values: torch.Tensor, parts: int) -> torch.Tensor:
    """Reshapes (blocks, m) to (blocks, parts, ceil(m / parts)), padded with zeros."""
    blocks, m = values.shape
    size = -(-m // parts)
    padded = values.new_zeros((blocks, parts * size))
    padded[:, :m] = values
    return padded.view(blocks, parts, size)


def means_of(x: torch.Tensor) -> torch.Tensor:
    """Returns the mean magnitude of each block, (blocks, 1), summed in 64 interleaved lanes; the
    elements are scaled by 2^-9 first, so that no sum overflows. x is finite, and so is the mean,
    even if it is rounded up."""
    blocks, m = x.shape
    lanes = torch.nn.functional.pad(x.abs() * 2.0**-9, (0, -m % 64)).view(blocks, -1, 64)
    total = torch.zeros_like(lanes[:, 0])
    for j in range(lanes.shape[1]):
        total = total + lanes[:, j]
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    whole = torch.tensor(512.0, device=x.device, dtype=torch.float32) / m
    return (total * whole).clamp(max=torch.finfo(torch.float32).max)


def _lloyd_codes(form: Format, x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Returns codes whose order is that of the values that they stand for."""
    if form is LLOYD1:
        return torch.where(x < 0, 0, 1)
    limit = mean * torch.tensor(THRESHOLD, device=x.device, dtype=torch.float32)
    far = (x.abs() > limit).long()
    return torch.where(x < 0, 1 - far, 2 + far)


def _pack(form: Format, code: torch.Tensor) -> torch.Tensor:
    count = 8 // form.bits
    parts = _parts(code, count)
    shifts = torch.arange(count, device=code.device).view(1, count, 1) * form.bits
    return (parts << shifts).sum(1).to(torch.uint8)


def _levels(form: Format, codes: torch.Tensor, m: int) -> torch.Tensor:
    count = 8 // form.bits
    shifts = torch.arange(count, device=codes.device).view(1, count, 1) * form.bits
    parts = codes.long().unsqueeze(1) >> shifts & (1 << form.bits) - 1
    return parts.flatten(1)[:, :m]


def _interleaved(size: int, device: torch.device) -> torch.Tensor:
    """Returns the byte of element j of a part in a whole block: 32 bytes hold 0, 16, 1, 17, …"""
    j = torch.arange(size, device=device)
    return j // 32 * 32 + j % 16 * 2 + j // 16 % 2


def _pack_digits(digits: torch.Tensor) -> torch.Tensor:
    """Packs five digits of base 3 into a byte: their fraction, in 256ths, rounded up."""
    parts = _parts(digits, 5)
    worth = torch.tensor([81, 27, 9, 3, 1], device=digits.device, dtype=torch.int64).view(1, 5, 1)
    codes = ((parts * worth).sum(1) * 256 + 242) // 243
    if digits.shape[1] == TERNARY.block:
        codes = torch.empty_like(codes).index_copy(
            1, _interleaved(codes.shape[1], codes.device), codes
        )
    return codes.to(torch.uint8)


def _digits(codes: torch.Tensor, m: int) -> torch.Tensor:
    fraction = codes.long()
    if m == TERNARY.block:
        fraction = fraction[:, _interleaved(codes.shape[1], codes.device)]
    parts = []
    for _ in range(5):
        parts.append(3 * fraction >> 8)
        fraction = 3 * fraction & 255
    return torch.cat(parts, 1)[:, :m]


def _encode_powers(x: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    bits = x.contiguous().view(torch.int32).long()
    exponent = ((bits & 0x7FFFFFFF) + (random & 0x7FFFFF) >> 23).clamp(max=254)
    signs = parts_of_eight(bits < 0)
    return torch.cat([exponent.to(torch.uint8), signs], 1)


def _decode_powers(codes: torch.Tensor, m: int) -> torch.Tensor:
    magnitude = (codes[:, :m].int() << 23).view(torch.float32)
    return torch.where(bits_of(codes[:, m:], m), -magnitude, magnitude)
