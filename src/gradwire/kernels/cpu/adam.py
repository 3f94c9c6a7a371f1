"""Adam's step by the extension."""

from collections.abc import Sequence

from torch import Tensor

from gradwire.kernels.core import AdamRow
from gradwire.kernels.cpu.codes import add_codes, encode_codes
from gradwire.kernels.cpu.status import raise_unless
from gradwire.kernels.native import chosen
from gradwire.kernels.segments import AdamCodes
from gradwire.kernels.tensors import CODES, pointer
from gradwire.kernels.values import AdamStep, Moments


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


def adam_codes(segments: Sequence[AdamCodes], status: Tensor) -> None:
    fused = [(one.g.contiguous(), one) for one in segments if not one.form.knows_late]
    raise_unless(chosen.core.adam_codes(chosen.number, [_row(*both) for both in fused]), status)
    for one in segments:
        if one.form.knows_late:
            adam(one.g, one.moments, one.v, one.how, status)
            encode_codes(one.form, one.v, one.codes, one.scales, status, one.noise, one.clip)
            add_codes(one.form, one.v, one.codes, one.scales, -1.0)


def _row(g: Tensor, one: AdamCodes) -> AdamRow:
    """Returns a segment's arguments for the extension. g: its gradient, contiguous."""
    m, q = one.moments
    return (
        one.form.number, CODES[g.dtype], g.data_ptr(), m.data_ptr(), q.data_ptr(),
        one.v.data_ptr(), g.numel(), one.how, one.noise, one.codes.data_ptr(),
        one.scales.data_ptr(),
    )  # fmt: skip
