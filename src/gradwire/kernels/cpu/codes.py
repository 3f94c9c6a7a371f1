"""Quantizers by the extension."""

import math
from collections.abc import Sequence

from torch import Tensor

from gradwire.kernels.cpu.journal import begun
from gradwire.kernels.cpu.signs import largest
from gradwire.kernels.cpu.status import raise_unless
from gradwire.kernels.cpu.update import mode_of
from gradwire.kernels.formats import Format
from gradwire.kernels.journal import Journal
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import CODES, goes_around, pointer
from gradwire.kernels.values import Noise, Payload


def encode_codes(
    form: Format, x: Tensor, codes: Tensor, scales: Tensor, status: Tensor, noise: Noise,
    clip: float | None,
) -> None:  # fmt: skip
    x, given = x.contiguous(), 0.0
    if form.one_scale:
        given = _one_scale(x, clip)
        if not math.isfinite(given):
            raise_unless(False, status)
            return
        scales.fill_(given)
    finite = chosen.core.encode(
        chosen.number, form.number, CODES[x.dtype], pointer(x), x.numel(), noise, given,
        pointer(codes), pointer(scales), goes_around(codes),
    )  # fmt: skip
    raise_unless(finite, status)


def _one_scale(x: Tensor, clip: float | None) -> float:
    """The largest magnitude, cut to so many root mean squares, if these are in fp32's range."""
    most, squares = largest(x, squares=clip is not None)
    if clip is None or not 0.0 < squares < math.inf:
        return most
    return min(most, clip * math.sqrt(squares / x.numel()))


def update_codes(
    form: Format, gradient: Tensor, velocity: Tensor | None, residual: Tensor, codes: Tensor,
    scales: Tensor, noise: Noise, status: Tensor, *, momentum: float | None, nesterov: bool,
    scale: float, decay: float, hint: float, journal: Journal | None,
) -> None:  # fmt: skip
    gradient = gradient.contiguous()
    mode, m = mode_of(momentum, nesterov, decay)
    finite = chosen.core.update_codes(
        chosen.number, form.number, CODES[gradient.dtype], pointer(gradient), pointer(velocity),
        pointer(residual), gradient.numel(), (mode, m, scale), noise, pointer(codes),
        pointer(scales), hint, begun(journal),
    )  # fmt: skip
    raise_unless(finite, status)


def accumulate_codes(
    form: Format, out: Tensor, payloads: Sequence[Payload], divisor: float
) -> None:
    chosen.core.accumulate_codes(
        chosen.number, form.number, CODES[out.dtype], pointer(out), out.numel(),
        [(pointer(codes), pointer(scales)) for codes, scales in payloads], divisor,
        goes_around(out),
    )  # fmt: skip


def add_codes(form: Format, v: Tensor, codes: Tensor, scales: Tensor, factor: float) -> None:
    n = v.numel()
    chosen.core.add_codes(
        chosen.number, form.number, pointer(v), n, pointer(codes), pointer(scales), factor
    )
