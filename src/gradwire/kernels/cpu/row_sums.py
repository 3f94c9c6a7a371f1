"""Sums of rows by the extension, of ids that torch has sorted."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import CODES, pointer


def sum_rows(
    ids: Sequence[Tensor], rows: Sequence[Tensor], divisor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    rows = [x.contiguous() for x in rows]
    width, row_bytes = rows[0].shape[1], rows[0].shape[1] * rows[0].element_size()
    ordered, order = torch.cat(list(ids)).sort(stable=True)
    union, counts = torch.unique_consecutive(ordered, return_counts=True)
    lie_at = [torch.arange(len(x)) * row_bytes + pointer(x) for x in rows]
    addresses, ends = torch.cat(lie_at)[order], counts.cumsum(0)
    out = torch.empty(union.numel(), width, dtype=dtype)
    chosen.core.sum_runs(
        chosen.number, CODES[rows[0].dtype], pointer(addresses), pointer(ends), union.numel(),
        width, divisor, CODES[dtype], pointer(out),
    )  # fmt: skip
    return union, out
