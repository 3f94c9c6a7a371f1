"""Rows, stripes and sums of rows by the extension."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.core import IdsAt
from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import CODES, pointer


def nonzero_rows(x: Tensor, ids_out: Tensor) -> int:
    rows, columns = x.shape
    row_bytes = columns * x.element_size()
    return chosen.core.nonzero_rows(pointer(x), rows, row_bytes, pointer(ids_out))


def _in_bytes(x: Tensor, ids: Tensor, bounds: Sequence[int]) -> tuple[int, int, int, list[int]]:
    """Returns ids' address and count, a row's bytes, and the bounds in bytes."""
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
    ids, rows = [own.contiguous() for own in ids], [x.contiguous() for x in rows]
    width, row_bytes = rows[0].shape[1], rows[0].shape[1] * rows[0].element_size()
    each, addresses, ends = torch.empty(
        3, sum(len(x) for x in rows), dtype=torch.int64, device="cpu"
    )
    count = chosen.core.order_rows(
        _given(ids), [pointer(x) for x in rows], row_bytes, pointer(each), pointer(addresses),
        pointer(ends),
    )  # fmt: skip
    out = torch.empty(count, width, dtype=dtype, device="cpu")
    chosen.core.sum_runs(
        chosen.number, CODES[rows[0].dtype], pointer(addresses), pointer(ends), count, width,
        divisor, CODES[dtype], pointer(out),
    )  # fmt: skip
    wide = any(own.dtype == torch.int64 for own in ids)
    return each[:count] if wide else each[:count].int(), out


def single_ids(ids: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    ids = [own.contiguous() for own in ids]
    entries = sum(own.numel() for own in ids)
    union, at = (
        torch.empty(entries, dtype=dtype, device="cpu") for dtype in (torch.int32, torch.int64)
    )
    single = torch.empty(entries, dtype=torch.bool, device="cpu")
    count = chosen.core.single_ids(_given(ids), pointer(union), pointer(single), pointer(at))
    return union[:count], single[:count], at


def _given(ids: Sequence[Tensor]) -> list[IdsAt]:
    """Returns lists of ids, all contiguous, as the extension takes them."""
    return [(pointer(own), own.numel(), own.dtype == torch.int64) for own in ids]
