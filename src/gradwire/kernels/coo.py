"""Gradients as rows and their ids, in torch's COO layout, as nn.Embedding(sparse=True) makes them.

size (1000, 4)   indices [[7, 2, 7]]   values 3 × 4: row 7 appears twice, and means the sum
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.rows import sum_rows


def is_rows(x: Tensor) -> bool:
    """Whether x is in COO layout, with whole rows and one id for each."""
    return x.layout == torch.sparse_coo and x.sparse_dim() == 1 and x.dense_dim() > 0


def no_rows(like: Tensor) -> Tensor:
    """Returns zero in COO layout, without rows, with the shape, dtype and device of like. like: of
    any layout, with two dimensions at least."""
    values = torch.empty(0, *like.shape[1:], dtype=like.dtype, device=like.device)
    return as_rows(torch.empty(0, dtype=torch.int64, device=like.device), values, like.shape)


def rows_of(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns the ids of x's rows, (k,) int32, ascending, each once; and the rows, (k, width), in
    that dtype.

    x: COO, ids in any order; rows with the same id are summed in their order, in fp32. A row may
    be all zeros. Raises KernelError.
    """
    if not is_rows(x):
        raise KernelError(
            f"a sparse gradient must be rows with one id each; got {x.layout} with "
            f"{x.sparse_dim()} sparse of {x.dim()} dimensions. Use "
            "torch.sparse_coo_tensor(ids[None], rows)"
        )
    width = math.prod(x.shape[1:])
    ids = x._indices()[0]
    rows = x._values().reshape(ids.numel(), width)
    if x.is_coalesced():
        return ids.int(), rows.to(dtype).contiguous()
    once, sums = sum_rows([ids], [rows], 1.0, dtype)
    return once.int(), sums


def write_rows(x: Tensor, ids: Tensor, rows: Tensor) -> None:
    """Sets x, COO, to these rows, (k, width), of its dtype. ids: (k,), ascending, each once.

    x shares the memory of rows afterwards: a copy would take as long as the sum that made them.
    """
    x.data = as_rows(ids.long(), rows.view(ids.numel(), *x.shape[1:]), x.shape)


def fill_nan(x: Tensor) -> None:
    """Fills x with NaN; in COO layout x then has its first row alone, if there is one, of NaN."""
    if x.layout == torch.strided:
        x.fill_(math.nan)
        return
    ids = torch.arange(min(1, x.shape[0]), device=x.device)
    width = math.prod(x.shape[1:])
    write_rows(x, ids, torch.full((ids.numel(), width), math.nan, dtype=x.dtype, device=x.device))


def as_rows(ids: Tensor, values: Tensor, size: Sequence[int]) -> Tensor:
    """Returns a COO tensor of that size, marked as coalesced. ids: (k,) int64, ascending, each
    once; values: (k, …), whose memory it shares."""
    return torch.sparse_coo_tensor(
        ids[None], values, tuple(size), is_coalesced=True, check_invariants=False
    )
