"""Adam's step by the extension."""

from torch import Tensor

from gradwire.kernels.cpu.status import raise_unless
from gradwire.kernels.formats import Format
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import CODES, pointer
from gradwire.kernels.values import AdamStep, Moments, Noise


def adam(g: Tensor, moments: Moments, v: Tensor, how: AdamStep, status: Tensor) -> None:
    g = g.contiguous()
    m, q = map(pointer, moments)
    finite = chosen.core.adam(
        chosen.number, CODES[g.dtype], pointer(g), m, q, pointer(v), g.numel(), how
    )
    raise_unless(finite, status)


def undo_adam(g: Tensor, moments: Moments, v: Tensor, how: AdamStep) -> None:
    g = g.contiguous()
    m, q = map(pointer, moments)
    chosen.core.undo_adam(
        chosen.number, CODES[g.dtype], pointer(g), m, q, pointer(v), g.numel(), how
    )


def adam_codes(
    form: Format, g: Tensor, moments: Moments, v: Tensor, how: AdamStep, codes: Tensor,
    scales: Tensor, noise: Noise, status: Tensor,
) -> None:  # fmt: skip
    g = g.contiguous()
    m, q = map(pointer, moments)
    finite = chosen.core.adam_codes(
        chosen.number, form.number, CODES[g.dtype], pointer(g), m, q, pointer(v), g.numel(), how,
        noise, pointer(codes), pointer(scales),
    )  # fmt: skip
    raise_unless(finite, status)
