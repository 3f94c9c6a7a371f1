"""Signs in torch."""

import math

import torch
from torch import Tensor

from gradwire.kernels.formats import pack_bits, unpack_bits
from gradwire.kernels.torch.noise import random_bits
from gradwire.kernels.torch.status import raise_unless
from gradwire.kernels.values import SILENCE, Noise

_LANES = 64
_BLOCK = 4096


def pack_signs(
    x: Tensor, bits: Tensor, values: Tensor, status: Tensor, noise: Noise = SILENCE
) -> None:
    """Does the work of `encode_codes` for formats of signs."""
    x = x.detach().float()
    as_bits = x.view(torch.int32)  # where subnormals count as zero for arithmetic, they are none
    is_zero = as_bits & 0x7FFFFFFF == 0
    negative = (as_bits < 0) & ~is_zero
    if noise != SILENCE:
        coins = random_bits(noise, x.numel(), device=x.device) >= 2**31
        negative |= is_zero & coins
    zero = torch.zeros((), device=x.device, dtype=torch.float32)
    below = lane_sum(torch.where(negative, x, zero))
    above = lane_sum(torch.where(negative, zero, x))
    bits.copy_(pack_bits(negative))
    finite = above - below < math.inf
    raise_unless(finite, status)
    count, n = negative.sum(), x.numel()
    both = [below / count.clamp(min=1), above / (n - count).clamp(min=1)]
    means = {0: [], 1: [(above - below) / max(n, 1)], 2: both}[values.numel()]
    for i, mean in enumerate(means):
        values[i] = torch.where(finite, mean, 0.0)


def lane_sum(x: Tensor) -> Tensor:
    """Returns the sum, () fp64, in the order that kernels/signs.py documents. x: (n,) fp32."""
    padded = x.new_zeros(-(-x.numel() // _BLOCK) * _BLOCK)
    padded[: x.numel()] = x
    rows = padded.view(-1, _BLOCK // _LANES, _LANES)
    lanes = padded.new_zeros((rows.shape[0], _LANES))
    for row in rows.unbind(1)[: -(-x.numel() // _LANES)]:  # any further ones are 0
        lanes = lanes + row
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    blocks = lanes.flatten().double()
    while blocks.numel() > 1:
        blocks = torch.nn.functional.pad(blocks, (0, blocks.numel() % 2))
        blocks = blocks[0::2] + blocks[1::2]
    return blocks.sum()  # of one element or none


def decode_signs(bits: Tensor, values: Tensor, n: int) -> Tensor:
    """Returns the decoded signs: (n,) fp32."""
    given = values if values.numel() else values.new_ones(1)
    low, high = given if given.numel() == 2 else (-given[0], given[0])
    return torch.where(unpack_bits(bits, n), low, high)


def largest(x: Tensor, squares: bool = False) -> tuple[float, float]:
    x = x.detach().float()
    top = float(x.abs().max()) if x.numel() else 0.0
    return top, float(lane_sum(x * x)) if squares else 0.0
