"""Sums of rows in torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.tensors import quotient


def sum_rows(
    ids: Sequence[Tensor], rows: Sequence[Tensor], divisor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    union, place = torch.unique(torch.cat(list(ids)), return_inverse=True)
    total = torch.zeros(union.numel(), rows[0].shape[1], device=union.device)
    for own, x in zip(torch.split(place, [len(x) for x in rows]), rows):
        total.index_add_(0, own, x.float())
    return union, quotient(total, divisor).to(dtype)
