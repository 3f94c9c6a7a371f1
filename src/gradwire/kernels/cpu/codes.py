"""Quantizers by the extension."""

import math
from collections.abc import Sequence
from itertools import groupby

from torch import Tensor

from gradwire.kernels.core import CodesRow
from gradwire.kernels.cpu.signs import add_signs, largest, pack_signs, sum_signs
from gradwire.kernels.cpu.status import raise_unless
from gradwire.kernels.cpu.update import begun, mode_of, update_topk
from gradwire.kernels.formats import Format
from gradwire.kernels.held import held_by
from gradwire.kernels.native import chosen
from gradwire.kernels.segments import EncodeCodes, SumCodes, UpdateCodes, without_codes
from gradwire.kernels.tensors import CODES, goes_around, pointer
from gradwire.kernels.values import Noise, number_of


def encode_codes(
    form: Format, x: Tensor, codes: Tensor, scales: Tensor, status: Tensor, noise: Noise,
    clip: float | None,
) -> None:  # fmt: skip
    x, given = x.contiguous(), 0.0
    if form.signs:
        pack_signs(x, codes, scales, status, noise)
        return
    if form.in_all:
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


def encode_many_codes(segments: Sequence[EncodeCodes], status: Tensor) -> None:
    for form, x, codes, scales, noise, clip in segments:
        encode_codes(form, x, codes, scales, status, noise, clip)


def _one_scale(x: Tensor, clip: float | None) -> float:
    """Returns the largest magnitude, cut to `clip` root mean squares if the sum of squares is
    above 0 and finite."""
    most, squares = largest(x, squares=clip is not None)
    if clip is None or not 0.0 < squares < math.inf:
        return most
    return min(most, clip * math.sqrt(squares / x.numel()))


def update_codes(segments: Sequence[UpdateCodes], status: Tensor) -> None:
    fused = [
        (one.gradient.contiguous(), one, begun(one.journal))  # all must outlive the call
        for one in segments
        if not one.form.knows_late
    ]
    rows = [_row(x, one, at) for x, one, (_, at) in fused]
    raise_unless(chosen.core.update_codes(chosen.number, rows), status)
    late = [one for one in segments if one.form.knows_late]
    if late:
        update_topk(without_codes(late), status)
    for one in late:
        encode_codes(one.form, one.residual, one.codes, one.scales, status, one.noise, one.clip)
        add_codes(one.form, one.residual, one.codes, one.scales, -1.0)


def _row(x: Tensor, one: UpdateCodes, journal: int) -> CodesRow:
    """Returns a segment's arguments for the extension. x: its gradient, contiguous."""
    return (
        one.form.number, CODES[x.dtype], x.data_ptr(), pointer(one.velocity),
        one.residual.data_ptr(), x.numel(),
        (*mode_of(one.momentum, one.nesterov, one.decay), one.scale), one.noise,
        one.codes.data_ptr(), one.scales.data_ptr(), number_of(one.hint), journal,
    )  # fmt: skip


def _accumulate_codes(segments: Sequence[SumCodes]) -> int:
    """Sums segments, signs separately; returns how many are valid."""
    done = 0
    for signs, group in groupby(segments, key=lambda one: one.form.signs):
        own = list(group)
        well = sum_signs(own) if signs else _sum_blocks(own)
        done += well
        if well < len(own):
            break
    return done


def _sum_blocks(segments: Sequence[SumCodes]) -> int:
    return chosen.core.accumulate_codes(
        chosen.number,
        [
            (
                one.form.number, CODES[one.out.dtype], one.out.data_ptr(), one.out.numel(),
                [(codes.data_ptr(), scales.data_ptr()) for codes, scales in one.payloads],
                one.form.scales(one.out.numel()), one.form.most_scale, one.divisor,
                goes_around(one.out),
            )
            for one in segments
        ],
    )  # fmt: skip


def add_codes(form: Format, v: Tensor, codes: Tensor, scales: Tensor, factor: float) -> None:
    if form.signs:
        add_signs(v, codes, scales, factor)
        return
    n = v.numel()
    chosen.core.add_codes(
        chosen.number, form.number, pointer(v), n, pointer(codes), pointer(scales), factor
    )


def accumulate_codes(segments: Sequence[SumCodes], status: Tensor | None = None) -> int:
    return held_by(status, _accumulate_codes, segments)
