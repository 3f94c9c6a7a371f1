"""Sums of lists of rows: of those with one id in one list, and of those of all lists."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.rooms import room_of
from gradwire.kernels.tensors import CODES, check_divisor, check_memory, check_same_device


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
    room = room_of(*rows)
    _check_lists(ids, rows, dtype)
    return room.sum_rows(ids, rows, by, dtype)
