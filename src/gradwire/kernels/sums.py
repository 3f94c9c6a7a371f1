"""Sums of many parameters' payloads of any kind, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from gradwire.kernels.coded import accumulate_coded
from gradwire.kernels.codes import accumulate_codes
from gradwire.kernels.known import Known
from gradwire.kernels.segments import SumCoded, SumCodes, SumDense
from gradwire.kernels.sparse import accumulate_many_dense

SumSegment: TypeAlias = "SumCodes | SumCoded | SumDense"

_MANY: dict[type[SumSegment], Callable[[Sequence[Any], Tensor | None, Known | None], None]] = {
    SumCodes: accumulate_codes,
    SumCoded: accumulate_coded,
    SumDense: accumulate_many_dense,
}


def add_up(
    segments: Sequence[SumSegment], status: Tensor | None = None, known: Known | None = None
) -> None:
    """Writes all averages, in one call per kind. Raises KernelError; PayloadError if a payload is
    bad: then some averages are written. With a status nothing is written if it is raised, and a
    bad payload raises it by DAMAGED instead of an error. known: earlier steps' checks."""
    for kind, many in _MANY.items():
        own = [segment for segment in segments if type(segment) is kind]
        if own:
            many(own, status, known)
