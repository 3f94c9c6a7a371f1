"""One bit per element with two reconstruction values, and what they are made of.

The sums are taken over blocks of 4096 elements in fp32, element i in lane i mod 64 and the lanes
pairwise, and over the blocks in order in fp64: the same bits whatever the instruction set.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from gradwire.kernels.codes import check_payload_scales
from gradwire.kernels.formats import pack_bits, unpack_bits
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
)

_LANES = 64
_BLOCK = 4096


class SignSums(NamedTuple):
    """Of one vector. finite: False also where the sum of magnitudes leaves fp32's range."""

    below: float  # sum of the negative elements
    above: float  # sum of the others
    count_below: int
    finite: bool


def sign_bytes(n: int) -> int:
    """Bytes of n signs."""
    return -(-n // 8)


def pack_signs(x: torch.Tensor, bits: torch.Tensor, noise: Noise | None = None) -> SignSums:
    """bits = (x < 0), eight to a byte, the first in the lowest bit.

    x: (n,) fp32, bf16 or fp16. bits: (ceil(n / 8),) uint8, written. noise: throws the dice for
    zeros, which then may count as below; None: they count as above. Raises KernelError.
    """
    check_float("x", x)
    check_buffer("bits", bits, torch.uint8, sign_bytes(x.numel()))
    check_same_device(x, bits=bits)
    if noise is not None:
        check_noise(noise)
    found = core_for(x)
    if found is None:
        return pack_signs_twin(x, bits, noise)
    core, which = found
    x, dice = x.contiguous(), noise or Noise(0, 0)
    return SignSums(
        *core.pack_signs(
            which, CODES[x.dtype], pointer(x), x.numel(), dice, noise is not None, pointer(bits)
        )
    )


def accumulate_signs(
    out: torch.Tensor, payloads: Sequence[tuple[torch.Tensor, torch.Tensor]], divisor: float
) -> None:
    """out = (sum of the payloads) / divisor; out is overwritten, whatever it held.

    out: (n,) fp32, bf16 or fp16, contiguous. payloads: (bits, values). values: fp32 with none
    (-1 and 1), one (-v and v) or two elements (where the bit is set, where it is not). The sum is
    taken in list order in fp32, from zero. Raises PayloadError, with out untouched, for values
    that are not finite; KernelError for out and divisor.
    """
    by = check_target(out, divisor)
    for number, (bits, values) in enumerate(payloads):
        _check_payload(out, bits, values)
        check_payload_scales(number, values)
    found = core_for(out)
    if found is None:
        _accumulate_twin(out, payloads, by)
        return
    core, which = found
    core.accumulate_signs(
        which, CODES[out.dtype], pointer(out), out.numel(),
        [(pointer(bits), pointer(values), values.numel()) for bits, values in payloads],
        by, goes_around(out),
    )  # fmt: skip


def add_signs(v: torch.Tensor, bits: torch.Tensor, values: torch.Tensor, factor: float) -> None:
    """v += factor · what the signs say. v: (n,) fp32, contiguous. Raises KernelError."""
    check_buffer("v", v, torch.float32, v.numel())
    _check_payload(v, bits, values)
    by = finite_number("factor", factor)
    found = core_for(v)
    if found is None:
        add_signs_twin(v, bits, values, by)
        return
    core, which = found
    core.add_signs(
        which, pointer(v), v.numel(), pointer(bits), pointer(values), values.numel(), by
    )


def largest(x: torch.Tensor, squares: bool = False) -> tuple[float, float]:
    """The largest magnitude of x, and the sum of its squares if it is wanted.

    x: (n,) fp32, bf16 or fp16. inf or NaN if x is not finite. Raises KernelError.
    """
    check_float("x", x)
    found = core_for(x)
    if found is None:
        return largest_twin(x, squares)
    core, which = found
    x = x.contiguous()
    return core.largest(which, CODES[x.dtype], pointer(x), x.numel(), squares)


def _check_payload(target: torch.Tensor, bits: torch.Tensor, values: torch.Tensor) -> None:
    check_buffer("bits", bits, torch.uint8, sign_bytes(target.numel()))
    check_buffer("values", values, torch.float32, min(values.numel(), 2))
    check_same_device(target, bits=bits, values=values)


# -- in torch ----------------------------------------------------------------------------------


def pack_signs_twin(x: torch.Tensor, bits: torch.Tensor, noise: Noise | None = None) -> SignSums:
    """`pack_signs` in torch."""
    x = x.detach().float()
    negative = x < 0
    if noise is not None:
        coins = random_bits_twin(noise, x.numel(), device=x.device) >= 2**31
        negative |= (x == 0) & coins
    zero = torch.zeros((), device=x.device)
    below = lane_sum_twin(torch.where(negative, x, zero))
    above = lane_sum_twin(torch.where(negative, zero, x))
    bits.copy_(pack_bits(negative))
    return SignSums(below, above, int(negative.sum()), above - below < math.inf)


def lane_sum_twin(x: torch.Tensor) -> float:
    """The sum in the order that is documented above. x: (n,) fp32."""
    padded = x.new_zeros(-(-x.numel() // _BLOCK) * _BLOCK)
    padded[: x.numel()] = x
    rows = padded.view(-1, _BLOCK // _LANES, _LANES)
    lanes = padded.new_zeros((rows.shape[0], _LANES))
    for row in rows.unbind(1):
        lanes = lanes + row
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    total = 0.0
    for block in lanes.flatten().tolist():
        total += block
    return total


def decode_signs_twin(bits: torch.Tensor, values: torch.Tensor, n: int) -> torch.Tensor:
    """What the signs say: (n,) fp32."""
    given = values.tolist()
    low, high = (-1.0, 1.0) if not given else (-given[0], given[0]) if len(given) == 1 else given
    negative = unpack_bits(bits, n)
    return torch.where(negative, low, high).float()


def _accumulate_twin(
    out: torch.Tensor, payloads: Sequence[tuple[torch.Tensor, torch.Tensor]], divisor: float
) -> None:
    total = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
    for bits, values in payloads:
        total = total + decode_signs_twin(bits, values, out.numel())
    out.copy_(quotient(total, divisor))


def add_signs_twin(
    v: torch.Tensor, bits: torch.Tensor, values: torch.Tensor, factor: float
) -> None:
    """`add_signs` in torch."""
    v += factor * decode_signs_twin(bits, values, v.numel())


def largest_twin(x: torch.Tensor, squares: bool = False) -> tuple[float, float]:
    """`largest` in torch."""
    x = x.detach().float()
    top = float(x.abs().max()) if x.numel() else 0.0
    return top, lane_sum_twin(x * x) if squares else 0.0
