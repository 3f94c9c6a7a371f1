"""Sums of lists of rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.rows import add_rows
from gradwire.kernels.sparse import quotient


def merge_rows(
    ids: Sequence[Tensor], rows: Sequence[Tensor], divisor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Which rows any list has, (u,) int32, ascending, and their sums, divided: (u, width).

    ids: (k,) int32 each, strictly ascending. rows: (k, width) of a float dtype each. The sum is
    taken in list order in fp32, from zero, and rounded to dtype.
    """
    union = torch.unique(torch.cat(list(ids)))
    total = torch.zeros(union.numel(), rows[0].shape[1], device=union.device)
    for own, x in zip(ids, rows):
        add_rows(total, torch.searchsorted(union, own, out_int32=True), x)
    return union, quotient(total, divisor).to(dtype)
