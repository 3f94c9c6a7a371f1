"""Sums of lists of rows: of those with one id in one list, and of those of all lists."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.native import core_for
from gradwire.kernels.sparse import check_divisor, quotient
from gradwire.kernels.tensors import CODES, check_memory, check_same_device, pointer


def _check_lists(ids: Sequence[Tensor], rows: Sequence[Tensor], result: torch.dtype) -> None:
    if result not in CODES:
        raise KernelError(
            f"sums are rounded to float32, bfloat16 or float16, not {result}; choose one"
        )
    if not rows or len(ids) != len(rows):
        raise KernelError(
            f"each list of rows has ids, and there is one at least, but there are {len(ids)} "
            f"and {len(rows)}; pass lists of equal length"
        )
    width, dtype = rows[0].shape[-1] if rows[0].dim() else 0, rows[0].dtype
    for number, (own, x) in enumerate(zip(ids, rows)):
        check_same_device(rows[0], ids=own, rows=x)
        good = own.dtype in (torch.int32, torch.int64) and own.dim() == 1
        if not good or x.shape != (own.numel(), width) or x.dtype != dtype or dtype not in CODES:
            raise KernelError(
                f"list {number}: ids must be int32 or int64, (k,), and rows (k, {width}) of one "
                f"dtype, float32, bfloat16 or float16, not {own.dtype} of shape "
                f"{tuple(own.shape)} and {x.dtype} of shape {tuple(x.shape)}; make them alike"
            )
        check_memory("ids", own)
        check_memory("rows", x)


def sum_rows(
    ids: Sequence[Tensor], rows: Sequence[Tensor], divisor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Which ids any list has, (u,), ascending, and the sums of their rows, divided: (u, width).

    ids: (k,) int32 or int64 each, in any order, any of them several times. rows: (k, width) each,
    of one dtype: fp32, bf16 or fp16. The sum of an id is taken list after list, within a list in
    its order, in fp32, from zero, and rounded once to dtype, one of these. Raises KernelError.
    """
    by = check_divisor(divisor)
    found = core_for(*rows)
    if found is None:
        return sum_rows_twin(ids, rows, divisor, dtype)
    _check_lists(ids, rows, dtype)
    core, which = found
    rows = [x.contiguous() for x in rows]
    width, row_bytes = rows[0].shape[1], rows[0].shape[1] * rows[0].element_size()
    ordered, order = torch.cat(list(ids)).sort(stable=True)
    union, counts = torch.unique_consecutive(ordered, return_counts=True)
    lie_at = [torch.arange(len(x)) * row_bytes + pointer(x) for x in rows]
    addresses, ends = torch.cat(lie_at)[order], counts.cumsum(0)
    out = torch.empty(union.numel(), width, dtype=dtype)
    core.sum_runs(
        which, CODES[rows[0].dtype], pointer(addresses), pointer(ends), union.numel(), width, by,
        CODES[dtype], pointer(out),
    )  # fmt: skip
    return union, out


def sum_rows_twin(
    ids: Sequence[Tensor], rows: Sequence[Tensor], divisor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`sum_rows` in torch."""
    by = check_divisor(divisor)
    _check_lists(ids, rows, dtype)
    union, place = torch.unique(torch.cat(list(ids)), return_inverse=True)
    total = torch.zeros(union.numel(), rows[0].shape[1], device=union.device)
    for own, x in zip(torch.split(place, [len(x) for x in rows]), rows):
        total.index_add_(0, own, x.float())
    return union, quotient(total, by).to(dtype)
