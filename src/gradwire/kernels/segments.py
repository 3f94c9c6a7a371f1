"""The arguments of one parameter in a call of an operation for many parameters.

A call is one crossing into C++, or one launch on a GPU, however many parameters there are: their
segments are its table. All tensors of a call are on one device, and segments share no tensor that
is written. `together` collects segments from the work on the parameters of a bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.kernels.formats import Format
from gradwire.kernels.journal import Journal
from gradwire.kernels.values import AdamStep, Hint, Moments, Noise, Payload


class UpdateTopk(NamedTuple):
    """The arguments of `update_topk`."""

    gradient: Tensor
    velocity: Tensor | None
    residual: Tensor
    k: int
    indices: Tensor
    values: Tensor
    velocities: Tensor | None
    momentum: float | None
    nesterov: bool = False
    mask: bool = True
    scale: float = 1.0
    decay: float = 1.0
    hint: Hint = 0.0
    journal: Journal | None = None


class UndoTopk(NamedTuple):
    """The arguments of `undo_topk`; without a gradient, those of `restore_topk`."""

    gradient: Tensor | None
    velocity: Tensor | None
    residual: Tensor
    indices: Tensor
    values: Tensor
    velocities: Tensor | None
    momentum: float | None
    nesterov: bool = False
    mask: bool = True
    scale: float = 1.0
    decay: float = 1.0
    journal: Journal | None = None


class Reach(NamedTuple):
    """The arguments of `reaching`."""

    x: Tensor
    least: float


class EncodeCodes(NamedTuple):
    """The arguments of `encode_codes`."""

    form: Format
    x: Tensor
    codes: Tensor
    scales: Tensor
    noise: Noise
    clip: float | None = None


class UpdateCodes(NamedTuple):
    """A recurrence, and the codes of the residual after it. codes, scales, clip: as in
    `encode_codes`; all else as in `UpdateTopk`."""

    form: Format
    gradient: Tensor
    velocity: Tensor | None
    residual: Tensor
    codes: Tensor
    scales: Tensor
    noise: Noise
    momentum: float | None
    nesterov: bool = False
    scale: float = 1.0
    decay: float = 1.0
    hint: Hint = 0.0
    journal: Journal | None = None
    clip: float | None = None


def without_codes(segments: Sequence[UpdateCodes]) -> list[UpdateTopk]:
    """Returns their recurrences alone, as updates with k = 0."""
    v = segments[0].residual
    nothing, places = v.new_empty(0), v.new_empty(0, dtype=torch.int32)
    return [
        UpdateTopk(
            one.gradient, one.velocity, one.residual, 0, places, nothing,
            None if one.velocity is None else nothing, one.momentum, one.nesterov, False,
            one.scale, one.decay, one.hint, one.journal,
        )
        for one in segments
    ]  # fmt: skip


class AdamCodes(NamedTuple):
    """The arguments of `adam`, and where the codes of v go, as `encode_codes` writes them."""

    form: Format
    g: Tensor
    moments: Moments
    v: Tensor
    how: AdamStep
    codes: Tensor
    scales: Tensor
    noise: Noise
    clip: float | None = None


class SumCodes(NamedTuple):
    """out = (sum of the payloads) / divisor; out is overwritten, whatever it held.

    out: (n,) fp32, bf16 or fp16, contiguous. payloads: (codes, scales) as `encode_codes` wrote
    them. The sum is taken in list order in fp32, from zero.
    """

    form: Format
    out: Tensor
    payloads: Sequence[Payload]
    divisor: float


class SumCoded(NamedTuple):
    """The arguments of `accumulate` for places that are coded, as `decode_indices` reads them.

    codes: one of INDEX_CODES per payload. sections: the bytes of that code; for "int32" the (k,)
    int32 places themselves. values: one (k,) fp32, bf16 or fp16 per payload.
    """

    out: Tensor
    codes: Sequence[str]
    sections: list[Tensor]
    values: list[Tensor]
    divisor: float


class CastInto(NamedTuple):
    """The arguments of `cast`."""

    source: Tensor
    target: Tensor


class SumDense(NamedTuple):
    """The arguments of `accumulate_dense`."""

    out: Tensor
    payloads: list[Tensor]
    divisor: float


class WriteEntries(NamedTuple):
    """One sparse payload.

    places: (k,) int32, ascending strictly within 0 ... n-1. values: (k,) fp32, finite. section:
    the bytes of the code of the places, uint8, or for "int32" (k,) int32. out: (k,) of a float
    dtype, the values rounded to nearest even and clamped to its range. section and out are
    written, contiguous. sent: (k,) fp32, receives the values of out. residual: (n,) fp32, only
    together with sent: the rounding errors are added to it, and also written to values.
    """

    places: Tensor
    values: Tensor
    n: int
    code: str
    section: Tensor
    out: Tensor
    sent: Tensor | None = None
    residual: Tensor | None = None
