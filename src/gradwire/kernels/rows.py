"""Matrices with few nonzero rows: finding these, dealing their columns to owners, and sums.

Owner j has the columns bounds[j] ... bounds[j+1]-1 of every row, a stripe. Stripes of k rows are
stored owner after owner, each (k, width) row-major, so that each owner's part is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.rooms import room_of
from gradwire.kernels.sparse import check_ascending
from gradwire.kernels.table import Room
from gradwire.kernels.tensors import (
    CODES,
    check_apart,
    check_buffer,
    check_contiguous,
    check_divisor,
    check_index_range,
    check_memory,
    check_places,
    check_same_device,
)


def _check_matrix(x: Tensor) -> None:
    if x.dim() != 2 or x.dtype not in CODES:
        raise KernelError(
            f"x must be float32, bfloat16 or float16 with two dimensions, not {x.dtype} of "
            f"shape {tuple(x.shape)}; pass rows of the table"
        )
    check_memory("x", x)
    check_contiguous("x", x)
    check_index_range(x.shape[0])


def nonzero_rows(x: Tensor, ids_out: Tensor) -> int:
    """Writes the ids of the rows that are not all zeros, ascending; returns how many.

    x: (r, d) fp32, bf16 or fp16, contiguous. NaN and -0 do not count as zero, so every omitted row
    is zero to the bit. ids_out: (r,) int32, contiguous; its content beyond the result is
    undefined. Raises KernelError.
    """
    room = room_of(x)
    _check_matrix(x)
    check_buffer("ids_out", ids_out, torch.int32, x.shape[0])
    check_same_device(x, ids_out=ids_out)
    return room.nonzero_rows(x, ids_out)


def _check_stripes(
    x: Tensor,
    ids: Tensor,
    bounds: Sequence[int],
    name: str,
    stripes: Tensor,
    room: Room,
) -> None:
    _check_matrix(x)
    edges = [0, *bounds, x.shape[1]]
    if not bounds or any(edge > after for edge, after in pairwise(edges)):
        raise KernelError(
            f"bounds must ascend within 0 ... {x.shape[1]}, the number of columns, but are "
            f"{list(bounds)}; pass the first column of each owner, and the end"
        )
    check_buffer(name, stripes, x.dtype, ids.numel() * (bounds[-1] - bounds[0]))
    check_same_device(x, ids=ids, stripes=stripes)
    check_places("ids", ids, "check the sender's format", PayloadError)
    check_ascending("ids", ids, x.shape[0], room)
    check_apart(name, stripes, ids, x)
    check_apart("x", x, ids)


def gather_stripes(x: Tensor, ids: Tensor, bounds: Sequence[int], out: Tensor) -> None:
    """Writes the stripes of some rows, owner after owner, to out.

    x: (r, d) fp32, bf16 or fp16, contiguous. ids: (k,) int32, strictly ascending within
    0 ... r-1. bounds: the first column of each owner and the end, ascending within 0 ... d. out:
    (k * (bounds[-1] - bounds[0]),) of x's dtype, contiguous, written, apart from x.
    Raises PayloadError, with out untouched, naming the entry; KernelError for the rest.
    """
    room = room_of(x)
    _check_stripes(x, ids, bounds, "out", out, room)
    room.gather_stripes(x, ids, bounds, out)


def scatter_stripes(x: Tensor, ids: Tensor, bounds: Sequence[int], stripes: Tensor) -> None:
    """The inverse of `gather_stripes`: writes the stripes to the rows of x, and nothing else.

    Raises PayloadError, with x untouched, naming the entry; KernelError for the rest.
    """
    room = room_of(x)
    _check_stripes(x, ids, bounds, "stripes", stripes, room)
    room.scatter_stripes(x, ids, bounds, stripes)


def single_ids(ids: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the union of the lists, (u,) int32, ascending; whether each of its ids is single,
    (u,) bool; and the position in the union of each entry, list after list, (entries,) int64.

    An id that m of n lists have is alone if m·(n-1) <= n. In each list the first ids that are
    alone are single, as many as `most_singles` returns. ids: (k,) int32 each, in any order, no id
    twice in a list. Raises KernelError.
    """
    if not ids or any(own.dtype != torch.int32 or own.dim() != 1 for own in ids):
        found = ", ".join(f"{own.dtype} of shape {tuple(own.shape)}" for own in ids) or "none"
        raise KernelError(
            f"ids must be one or more lists of int32, (k,), not {found}; pass one list for each "
            "list of rows"
        )
    room = room_of(*ids)
    for own in ids:
        check_same_device(ids[0], ids=own)
        check_memory("ids", own)
    return room.single_ids(ids)


def _check_lists(ids: Sequence[Tensor], rows: Sequence[Tensor], result: torch.dtype) -> None:
    if result not in CODES:
        raise KernelError(
            f"sums can be rounded to float32, bfloat16 or float16, not to {result}; choose one of "
            "these"
        )
    if not rows or len(ids) != len(rows):
        raise KernelError(
            "each list of rows needs its ids, and at least one must be given, but there are "
            f"{len(ids)} and {len(rows)}; pass lists of equal length"
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
    """Returns the union of the ids, (u,), ascending, and the sums of their rows, divided by the
    divisor: (u, width).

    ids: (k,) int32 or int64 each, in any order, repetitions allowed. rows: (k, width) each, of one
    dtype: fp32, bf16 or fp16. The sum of an id is taken list after list, within a list in its
    order, in fp32, from zero, and rounded once to dtype, one of these. Raises KernelError.
    """
    by = check_divisor(divisor)
    room = room_of(*rows)
    _check_lists(ids, rows, dtype)
    return room.sum_rows(ids, rows, by, dtype)
