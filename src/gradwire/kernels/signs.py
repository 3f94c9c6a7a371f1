"""One bit per element with two reconstruction values, and what they are made of.

The sums are taken over blocks of 4096 elements in fp32, element i in lane i mod 64 and the lanes
pairwise, and over the blocks in fp64, neighbours pairwise, then pairs of pairs: the same bits
whatever the instruction set, and however many work on it.
"""

from collections.abc import Sequence

import torch

from gradwire.kernels.codes import check_payload_scales
from gradwire.kernels.noise import check_noise
from gradwire.kernels.rooms import room_of
from gradwire.kernels.sparse import check_target
from gradwire.kernels.status import check_status
from gradwire.kernels.tensors import (
    check_buffer,
    check_float,
    check_same_device,
    finite_number,
)
from gradwire.kernels.values import Noise, Payload


def sign_bytes(n: int) -> int:
    """Bytes of n signs."""
    return -(-n // 8)


def pack_signs(
    x: torch.Tensor, bits: torch.Tensor, values: torch.Tensor, status: torch.Tensor,
    noise: Noise | None = None,
) -> None:  # fmt: skip
    """bits = (x < 0), eight to a byte, the first in the lowest bit; and what they stand for.

    x: (n,) fp32, bf16 or fp16. bits: (ceil(n / 8),) uint8, written. values: fp32, written: none;
    one, the mean magnitude; or two, the means of the elements below zero and of the others, 0 of
    none. status: raised, and values are zeros, if x is not finite, or its magnitudes add up to
    more than fp32 can say. noise: throws the dice for zeros, which then may count as below; None:
    they count as above. Raises KernelError.
    """
    check_float("x", x)
    _check_payload(x, bits, values)
    check_status(x, status)
    if noise is not None:
        check_noise(noise)
    room_of(x).pack_signs(x, bits, values, status, noise)


def accumulate_signs(out: torch.Tensor, payloads: Sequence[Payload], divisor: float) -> None:
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
    room_of(out).accumulate_signs(out, payloads, by)


def add_signs(v: torch.Tensor, bits: torch.Tensor, values: torch.Tensor, factor: float) -> None:
    """v += factor · what the signs say. v: (n,) fp32, contiguous. Raises KernelError."""
    check_buffer("v", v, torch.float32, v.numel())
    _check_payload(v, bits, values)
    by = finite_number("factor", factor)
    room_of(v).add_signs(v, bits, values, by)


def largest(x: torch.Tensor, squares: bool = False) -> tuple[float, float]:
    """The largest magnitude of x, and the sum of its squares if it is wanted.

    x: (n,) fp32, bf16 or fp16. inf or NaN if x is not finite. Raises KernelError.
    """
    check_float("x", x)
    return room_of(x).largest(x, squares)


def _check_payload(target: torch.Tensor, bits: torch.Tensor, values: torch.Tensor) -> None:
    check_buffer("bits", bits, torch.uint8, sign_bytes(target.numel()))
    check_buffer("values", values, torch.float32, min(values.numel(), 2))
    check_same_device(target, bits=bits, values=values)
