"""Adam's step by the extension."""

from torch import Tensor

from gradwire.kernels.formats import Format
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import CODES, pointer
from gradwire.kernels.values import AdamStep, Moments, Noise


def adam(g: Tensor, moments: Moments, v: Tensor, how: AdamStep) -> bool:
    g = g.contiguous()
    m, q = map(pointer, moments)
    return chosen.core.adam(
        chosen.number, CODES[g.dtype], pointer(g), m, q, pointer(v), g.numel(), how
    )


def undo_adam(g: Tensor, moments: Moments, v: Tensor, how: AdamStep) -> None:
    g = g.contiguous()
    m, q = map(pointer, moments)
    chosen.core.undo_adam(
        chosen.number, CODES[g.dtype], pointer(g), m, q, pointer(v), g.numel(), how
    )


def adam_codes(
    form: Format, g: Tensor, moments: Moments, v: Tensor, how: AdamStep, codes: Tensor,
    scales: Tensor, noise: Noise,
) -> bool:  # fmt: skip
    g = g.contiguous()
    m, q = map(pointer, moments)
    return chosen.core.adam_codes(
        chosen.number, form.number, CODES[g.dtype], pointer(g), m, q, pointer(v), g.numel(), how,
        noise, pointer(codes), pointer(scales),
    )  # fmt: skip
