"""Adam's step in torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.segments import AdamCodes
from gradwire.kernels.torch.codes import add_codes, encode_codes
from gradwire.kernels.torch.status import raise_unless
from gradwire.kernels.values import AdamStep, Moments


def moved(m: Tensor, q: Tensor, how: AdamStep) -> Tensor:
    """Returns the moments' step. The root is in fp64: torch's of fp32 is not always rounded
    correctly."""
    size = q.double().sqrt().float() * how.root + how.eps
    return m / size * how.factor


def moments_with(d: Tensor, moments: Moments, how: AdamStep) -> Moments:
    """Returns the moments updated by d, the scaled gradient in fp32."""
    m, q = moments
    return m * how.beta1 + d * how.rest1, q * how.beta2 + d * d * how.rest2


def adam(g: Tensor, moments: Moments, v: Tensor, how: AdamStep, status: Tensor) -> None:
    m, q = moments_with(g.detach().float() * how.scale, moments, how)
    waits = v + moved(m, q, how)
    good = waits.isfinite() & m.isfinite() & q.isfinite()
    for x, now in ((moments[0], m), (moments[1], q), (v, waits)):
        x.copy_(torch.where(good, now, x))
    raise_unless(good.all(), status)


def undo_adam(g: Tensor, moments: Moments, v: Tensor, how: AdamStep) -> None:
    d, (m, q) = g.detach().float() * how.scale, moments
    again = moments_with(d, moments, how)
    waited = v - moved(m, q, how)
    good = waited.isfinite() & again[0].isfinite() & again[1].isfinite()
    m0 = (m - d * how.rest1) / how.beta1
    q0 = (q - d * d * how.rest2) / how.beta2
    m0 = torch.where(m0.isfinite(), m0, 0.0)
    q0 = torch.where(q0.isfinite() & ~q0.signbit(), q0, 0.0)
    for x, before in ((m, m0), (q, q0), (v, waited)):
        x.copy_(torch.where(good, before, x))


def adam_codes(segments: Sequence[AdamCodes], status: Tensor) -> None:
    """Steps and encodes segment by segment."""
    for form, g, moments, v, how, codes, scales, noise, clip in segments:
        adam(g, moments, v, how, status)
        encode_codes(form, v, codes, scales, status, noise, clip)
        add_codes(form, v, codes, scales, -1.0)
