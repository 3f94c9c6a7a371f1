"""Adam's step of one rank, added to the residual, and encoded: in one pass over memory.

With d the scaled gradient, m and q its moments, v the residual, each operation rounded to fp32:

    m = beta1·m + (1 - beta1)·d    q = beta2·q + (1 - beta2)·d²
    v = v + factor · m / (root·√q + eps)

A pass reads the gradient and reads and writes three fp32 vectors: 28 bytes an element, and the
codes. Source: Kingma and Ba 2015, algorithm 1; root and factor hold both corrections of bias.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch

from gradwire.kernels.codes import check_codes, check_noise_and_clip
from gradwire.kernels.known import Known
from gradwire.kernels.rooms import room_of
from gradwire.kernels.segments import AdamCodes
from gradwire.kernels.status import check_status, told_to
from gradwire.kernels.tensors import (
    check_buffer,
    check_float,
    check_same_device,
    finite_number,
)
from gradwire.kernels.update import gradients_of
from gradwire.kernels.values import AdamStep, Moments

_LEAST_EPS = torch.finfo(torch.float32).tiny


def adam(
    g: torch.Tensor, moments: Moments, v: torch.Tensor, how: AdamStep, status: torch.Tensor
) -> None:
    """Advance the moments and the residual v by a gradient.

    g: (n,) fp32, bf16 or fp16. moments, v: (n,) fp32, updated. Where a new moment or v would not
    be finite, the element keeps all three, and raises the status. Raises KernelError.
    """
    how = _checked(g, moments, v, how)
    check_status(g, status)
    room_of(g).adam(g, moments, v, how, status)


def undo_adam(g: torch.Tensor, moments: Moments, v: torch.Tensor, how: AdamStep) -> None:
    """Undo the step of `adam`, exactly but for rounding. Raises KernelError."""
    how = _checked(g, moments, v, how)
    room_of(g).undo_adam(g, moments, v, how)


def adam_codes(
    segments: Sequence[AdamCodes], status: torch.Tensor, known: Known | None = None
) -> None:
    """Runs `adam` for each segment, encodes v as `encode_codes` does, and subtracts the decoded
    codes from v, chunk by chunk in the cache. Formats that know their scales late run the three
    one after the other. known: earlier steps' checks. Raises KernelError."""
    room = told_to(status)

    def check() -> None:
        for form, g, moments, v, _, codes, scales, *_ in segments:
            check_float("gradient", g)
            _check_kept(g, moments, v)
            check_codes(form, g.numel(), codes, scales)
            check_same_device(status, gradient=g, codes=codes, scales=scales)

    check_noise_and_clip(segments)
    facts = [one.form for one in segments], gradients_of([one.g for one in segments])
    kept = [x for one in segments for x in (*one.moments, one.v, one.codes, one.scales)]
    (known or Known()).check("adam_codes", facts, [status, *kept], check)
    room.adam_codes([AdamCodes(*one[:4], _numbers(one.how), *one[5:]) for one in segments], status)


def _checked(g: torch.Tensor, moments: Moments, v: torch.Tensor, how: AdamStep) -> AdamStep:
    check_float("gradient", g)
    _check_kept(g, moments, v)
    return _numbers(how)


def _check_kept(g: torch.Tensor, moments: Moments, v: torch.Tensor) -> None:
    for name, x in (("first moment", moments[0]), ("second moment", moments[1]), ("v", v)):
        check_buffer(name, x, torch.float32, g.numel())
        check_same_device(g, **{name: x})


@lru_cache(maxsize=64)  # all parameters have the same
def _numbers(how: AdamStep) -> AdamStep:
    """Returns the numbers as floats: an int may be too large for a torch scalar. A zero has no
    sign, as the cache cannot tell -0.0 from 0.0. An eps below the least normal fp32 number becomes
    that number: where the moments are 0, 0 is divided by eps."""
    for name, number in zip(AdamStep._fields, how):
        finite_number(name, number)
    made = AdamStep._make(float(number) + 0.0 for number in how)
    return made if abs(made.eps) >= _LEAST_EPS else made._replace(eps=_LEAST_EPS)
