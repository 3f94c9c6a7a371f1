"""Signs by the extension."""

from collections.abc import Sequence

from torch import Tensor

from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import CODES, goes_around, pointer
from gradwire.kernels.values import SILENCE, Noise, Payload, SignSums


def pack_signs(x: Tensor, bits: Tensor, noise: Noise | None) -> SignSums:
    x, dice = x.contiguous(), noise or SILENCE
    return SignSums(
        *chosen.core.pack_signs(
            chosen.number, CODES[x.dtype], pointer(x), x.numel(), dice, noise is not None,
            pointer(bits),
        )
    )  # fmt: skip


def accumulate_signs(out: Tensor, payloads: Sequence[Payload], divisor: float) -> None:
    chosen.core.accumulate_signs(
        chosen.number, CODES[out.dtype], pointer(out), out.numel(),
        [(pointer(bits), pointer(values), values.numel()) for bits, values in payloads],
        divisor, goes_around(out),
    )  # fmt: skip


def add_signs(v: Tensor, bits: Tensor, values: Tensor, factor: float) -> None:
    n, count = v.numel(), values.numel()
    chosen.core.add_signs(
        chosen.number, pointer(v), n, pointer(bits), pointer(values), count, factor
    )


def largest(x: Tensor, squares: bool) -> tuple[float, float]:
    x = x.contiguous()
    return chosen.core.largest(chosen.number, CODES[x.dtype], pointer(x), x.numel(), squares)
