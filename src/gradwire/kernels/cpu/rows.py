"""Rows, stripes and sums of rows by the extension."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import CODES, pointer


def nonzero_rows(x: Tensor, ids_out: Tensor) -> int:
    rows, columns = x.shape
    row_bytes = columns * x.element_size()
    return chosen.core.nonzero_rows(pointer(x), rows, row_bytes, pointer(ids_out))


def _in_bytes(x: Tensor, ids: Tensor, bounds: Sequence[int]) -> tuple[int, int, int, list[int]]:
    """The addresses and sizes of rows."""
    size = x.element_size()
    return pointer(ids), ids.numel(), x.shape[1] * size, [size * b for b in bounds]


def gather_stripes(x: Tensor, ids: Tensor, bounds: Sequence[int], out: Tensor) -> None:
    ids = ids.contiguous()
    chosen.core.gather_stripes(pointer(x), *_in_bytes(x, ids, bounds), pointer(out))


def scatter_stripes(x: Tensor, ids: Tensor, bounds: Sequence[int], stripes: Tensor) -> None:
    ids = ids.contiguous()
    chosen.core.scatter_stripes(pointer(x), *_in_bytes(x, ids, bounds), pointer(stripes))


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
