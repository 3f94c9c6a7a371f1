"""Adam's step of one rank, added to what waits, and encoded: in one pass over memory.

With d the scaled gradient, m and q its moments, v what waits, each operation rounded to fp32:

    m = beta1·m + (1 - beta1)·d    q = beta2·q + (1 - beta2)·d²
    v = v + factor · m / (root·√q + eps)

A pass reads the gradient and reads and writes three fp32 vectors: 28 bytes an element, and the
codes. Source: Kingma and Ba 2015, algorithm 1; root and factor hold both corrections of bias.
"""

from typing import NamedTuple

import torch

from gradwire.kernels.codes import add_codes, check_codes, encode_codes
from gradwire.kernels.formats import Format
from gradwire.kernels.native import core_for
from gradwire.kernels.noise import Noise, check_noise
from gradwire.kernels.tensors import (
    CODES,
    check_buffer,
    check_float,
    check_same_device,
    finite_number,
    pointer,
)


class AdamStep(NamedTuple):
    """The numbers of a step, as they are multiplied with."""

    scale: float
    beta1: float
    rest1: float
    beta2: float
    rest2: float
    root: float
    eps: float
    factor: float

    @staticmethod
    def of(
        steps: int, beta1: float, beta2: float, eps: float, *, factor: float = 1.0,
        scale: float = 1.0,
    ) -> "AdamStep":  # fmt: skip
        """Of the so many-th step, from 1. factor: of the noise. scale: what the gradient is
        multiplied by first."""
        root, by = (1 - beta2**steps) ** -0.5, factor / (1 - beta1**steps)
        return AdamStep(scale, beta1, 1 - beta1, beta2, 1 - beta2, root, eps, by)


Moments = tuple[torch.Tensor, torch.Tensor]


def adam(g: torch.Tensor, moments: Moments, v: torch.Tensor, how: AdamStep) -> bool:
    """Advance the moments and v by a gradient. Returns whether all was finite.

    g: (n,) fp32, bf16 or fp16. moments, v: (n,) fp32, updated. An element of which something would
    not be finite keeps all three. Raises KernelError.
    """
    _check(g, moments, v, how)
    found = core_for(g)
    if found is None:
        return adam_twin(g, moments, v, how)
    core, which = found
    g = g.contiguous()
    m, q = map(pointer, moments)
    return core.adam(which, CODES[g.dtype], pointer(g), m, q, pointer(v), g.numel(), how)


def undo_adam(g: torch.Tensor, moments: Moments, v: torch.Tensor, how: AdamStep) -> None:
    """Take a step back, to rounding. Raises KernelError."""
    _check(g, moments, v, how)
    found = core_for(g)
    if found is None:
        undo_adam_twin(g, moments, v, how)
        return
    core, which = found
    g = g.contiguous()
    m, q = map(pointer, moments)
    core.undo_adam(which, CODES[g.dtype], pointer(g), m, q, pointer(v), g.numel(), how)


def adam_codes(
    form: Format, g: torch.Tensor, moments: Moments, v: torch.Tensor, how: AdamStep,
    codes: torch.Tensor, scales: torch.Tensor, noise: Noise,
) -> bool:  # fmt: skip
    """`adam`, `encode_codes` of v, and what was coded out of it, chunk by chunk in the cache.

    Not for formats with one scale in all. Returns whether all was finite. Raises KernelError.
    """
    _check(g, moments, v, how)
    check_noise(noise)
    check_codes(form, g.numel(), codes, scales)
    found = core_for(g)
    if found is None or form.one_scale:
        return adam_codes_twin(form, g, moments, v, how, codes, scales, noise)
    core, which = found
    g = g.contiguous()
    m, q = map(pointer, moments)
    return core.adam_codes(
        which, form.number, CODES[g.dtype], pointer(g), m, q, pointer(v), g.numel(), how, noise,
        pointer(codes), pointer(scales),
    )  # fmt: skip


def _check(g: torch.Tensor, moments: Moments, v: torch.Tensor, how: AdamStep) -> None:
    check_float("gradient", g)
    for name, x in (("first moment", moments[0]), ("second moment", moments[1]), ("v", v)):
        check_buffer(name, x, torch.float32, g.numel())
        check_same_device(g, **{name: x})
    for name, number in zip(AdamStep._fields, how):
        finite_number(name, number)


# -- in torch ----------------------------------------------------------------------------------


def moved_twin(m: torch.Tensor, q: torch.Tensor, how: AdamStep) -> torch.Tensor:
    """The step that the moments say. torch's sqrt of fp32 is not always the nearest number."""
    size = q.double().sqrt().float() * how.root + how.eps
    return m / size * how.factor


def moments_twin(d: torch.Tensor, moments: Moments, how: AdamStep) -> Moments:
    """The moments once d, fp32, is in them."""
    m, q = moments
    return m * how.beta1 + d * how.rest1, q * how.beta2 + d * d * how.rest2


def adam_twin(g: torch.Tensor, moments: Moments, v: torch.Tensor, how: AdamStep) -> bool:
    """`adam` in torch."""
    m, q = moments_twin(g.detach().float() * how.scale, moments, how)
    waits = v + moved_twin(m, q, how)
    good = waits.isfinite() & m.isfinite() & q.isfinite()
    for x, now in ((moments[0], m), (moments[1], q), (v, waits)):
        x.copy_(torch.where(good, now, x))
    return bool(good.all())


def undo_adam_twin(g: torch.Tensor, moments: Moments, v: torch.Tensor, how: AdamStep) -> None:
    """`undo_adam` in torch."""
    d, (m, q) = g.detach().float() * how.scale, moments
    again = moments_twin(d, moments, how)
    waited = v - moved_twin(m, q, how)
    good = waited.isfinite() & again[0].isfinite() & again[1].isfinite()
    m0 = (m - d * how.rest1) / how.beta1
    q0 = (q - d * d * how.rest2) / how.beta2
    m0 = torch.where(m0.isfinite(), m0, 0.0)
    q0 = torch.where(q0.isfinite() & ~q0.signbit(), q0, 0.0)
    for x, before in ((m, m0), (q, q0), (v, waited)):
        x.copy_(torch.where(good, before, x))


def adam_codes_twin(
    form: Format, g: torch.Tensor, moments: Moments, v: torch.Tensor, how: AdamStep,
    codes: torch.Tensor, scales: torch.Tensor, noise: Noise,
) -> bool:  # fmt: skip
    """`adam_codes`, one after the other."""
    finite = adam(g, moments, v, how)
    encode_codes(form, v, codes, scales, noise)
    add_codes(form, v, codes, scales, -1.0)
    return finite
