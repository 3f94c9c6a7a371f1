"""Signs by the extension."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.cpu.status import raise_unless
from gradwire.kernels.native import chosen
from gradwire.kernels.segments import SumCodes
from gradwire.kernels.tensors import CODES, goes_around, pointer
from gradwire.kernels.values import SILENCE, Noise


def pack_signs(x: Tensor, bits: Tensor, values: Tensor, status: Tensor, noise: Noise) -> None:
    """Does the work of `encode_codes` for formats of signs. x: contiguous."""
    n, throws = x.numel(), noise != SILENCE
    below, above, count, finite = chosen.core.pack_signs(
        chosen.number, CODES[x.dtype], pointer(x), n, noise, throws, pointer(bits)
    )
    raise_unless(finite, status)
    if not finite:
        values.zero_()
    elif values.numel() == 1:
        values.fill_((above - below) / max(n, 1))
    elif values.numel() == 2:
        means = below / max(count, 1), above / max(n - count, 1)
        values.copy_(values.new_tensor(means))


def sum_signs(segments: Sequence[SumCodes]) -> int:
    """Does the work of `accumulate_codes` for formats of signs."""
    for number, (_, out, payloads, divisor) in enumerate(segments):
        every = [values for _, values in payloads if values.numel()]
        if every and not torch.cat(every).isfinite().all():
            return number
        chosen.core.accumulate_signs(
            chosen.number, CODES[out.dtype], pointer(out), out.numel(),
            [(pointer(bits), pointer(values), values.numel()) for bits, values in payloads],
            divisor, goes_around(out),
        )  # fmt: skip
    return len(segments)


def add_signs(v: Tensor, bits: Tensor, values: Tensor, factor: float) -> None:
    """Does the work of `add_codes` for formats of signs."""
    n, count = v.numel(), values.numel()
    chosen.core.add_signs(
        chosen.number, pointer(v), n, pointer(bits), pointer(values), count, factor
    )


def largest(x: Tensor, squares: bool) -> tuple[float, float]:
    x = x.contiguous()
    return chosen.core.largest(chosen.number, CODES[x.dtype], pointer(x), x.numel(), squares)
