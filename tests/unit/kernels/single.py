"""Operations on one parameter: the tests' way to call those that take segments."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire import kernels
from gradwire.kernels import AdamCodes, Noise, SumCoded, SumCodes, UpdateCodes, adam
from gradwire.kernels.formats import Format
from gradwire.kernels.journal import Journal
from gradwire.kernels.values import AdamStep, Hint, Moments, Payload


def update_codes(
    form: Format, gradient: Tensor, velocity: Tensor | None, residual: Tensor, codes: Tensor,
    scales: Tensor, noise: Noise, status: Tensor, *, momentum: float | None,
    nesterov: bool = False, scale: float = 1.0, decay: float = 1.0, hint: Hint = 0.0,
    journal: Journal | None = None, clip: float | None = None,
) -> None:  # fmt: skip
    one = UpdateCodes(
        form, gradient, velocity, residual, codes, scales, noise, momentum, nesterov, scale,
        decay, hint, journal, clip,
    )  # fmt: skip
    kernels.update_codes([one], status)


def adam_codes(
    form: Format, g: Tensor, moments: Moments, v: Tensor, how: AdamStep, codes: Tensor,
    scales: Tensor, noise: Noise, status: Tensor, clip: float | None = None,
) -> None:  # fmt: skip
    adam.adam_codes([AdamCodes(form, g, moments, v, how, codes, scales, noise, clip)], status)


def accumulate_codes(
    form: Format, out: Tensor, payloads: Sequence[Payload], divisor: float
) -> None:
    kernels.accumulate_codes([SumCodes(form, out, payloads, divisor)])


def accumulate_coded(
    out: Tensor, codes: Sequence[str], sections: list[Tensor], values: list[Tensor],
    divisor: float,
) -> None:  # fmt: skip
    kernels.accumulate_coded([SumCoded(out, codes, sections, values, divisor)])
