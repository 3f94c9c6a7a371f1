"""Sums of payloads by the extension."""

from collections.abc import Sequence

from torch import Tensor

from gradwire.kernels.core import CodedSumRow
from gradwire.kernels.cpu.streams import given
from gradwire.kernels.held import held_by
from gradwire.kernels.index_codes import INDEX_CODES
from gradwire.kernels.native import chosen
from gradwire.kernels.segments import SumCoded, SumDense
from gradwire.kernels.tensors import CODES, goes_around, pointer


def first_violation(indices: Tensor, n: int) -> int:
    indices = indices.contiguous()
    return chosen.core.first_violation(pointer(indices), indices.numel(), n)


def accumulate(out: Tensor, indices: list[Tensor], values: list[Tensor], divisor: float) -> None:
    held = [(i.contiguous(), v.contiguous()) for i, v in zip(indices, values)]
    payloads = [given(i, v) for i, v in held]
    chosen.core.accumulate(
        chosen.number, CODES[out.dtype], pointer(out), out.numel(), payloads, divisor,
        goes_around(out),
    )  # fmt: skip


def _accumulate_coded(segments: Sequence[SumCoded]) -> int:
    held = [
        [(s.contiguous(), v.contiguous()) for s, v in zip(one.sections, one.values)]
        for one in segments
    ]
    rows = [_coded_row(one, payloads) for one, payloads in zip(segments, held)]
    return chosen.core.accumulate_coded(chosen.number, rows)


def _coded_row(one: SumCoded, held: Sequence[tuple[Tensor, Tensor]]) -> CodedSumRow:
    """Returns a segment's arguments for the extension. held: sections and values, contiguous."""
    payloads = [
        (INDEX_CODES.index(code), s.data_ptr(), s.nbytes, v.data_ptr(), v.numel(), CODES[v.dtype])
        for code, (s, v) in zip(one.codes, held)
    ]
    out = one.out
    return (
        CODES[out.dtype], pointer(out), out.numel(), payloads, one.divisor, goes_around(out),
    )  # fmt: skip


def accumulate_dense(out: Tensor, payloads: list[Tensor], divisor: float) -> None:
    held = [p.contiguous() for p in payloads]
    pairs = [(pointer(p), CODES[p.dtype]) for p in held]
    chosen.core.accumulate_dense(
        chosen.number, CODES[out.dtype], pointer(out), out.numel(), pairs, divisor,
        goes_around(out),
    )  # fmt: skip


def accumulate_many_dense(segments: Sequence[SumDense], status: Tensor | None = None) -> None:
    for one in segments if status is None or not status else ():
        accumulate_dense(*one)


def add(v: Tensor, indices: Tensor, values: Tensor, factor: float) -> None:
    indices = indices.contiguous()
    chosen.core.add(pointer(v), pointer(indices), pointer(values), indices.numel(), factor)


def accumulate_coded(segments: Sequence[SumCoded], status: Tensor | None = None) -> int:
    return held_by(status, _accumulate_coded, segments)
