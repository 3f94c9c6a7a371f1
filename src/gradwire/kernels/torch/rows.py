"""Rows, stripes and sums of rows in torch."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gradwire.kernels.dealing import most_singles
from gradwire.kernels.tensors import quotient


def nonzero_rows(x: Tensor, ids_out: Tensor) -> int:
    bits = torch.int32 if x.element_size() == 4 else torch.int16
    ids = x.view(bits).ne(0).any(1).nonzero().flatten()
    ids_out[: ids.numel()] = ids
    return ids.numel()


def gather_stripes(x: Tensor, ids: Tensor, bounds: Sequence[int], out: Tensor) -> None:
    rows = x.detach()[ids.long()]
    pieces = [rows[:, a:b].flatten() for a, b in pairwise(bounds)]
    out.copy_(torch.cat(pieces) if pieces else out)


def scatter_stripes(x: Tensor, ids: Tensor, bounds: Sequence[int], stripes: Tensor) -> None:
    widths = [b - a for a, b in pairwise(bounds)]
    pieces = torch.split(stripes, [ids.numel() * width for width in widths]) if widths else ()
    for begin, width, piece in zip(bounds, widths, pieces):
        x[ids.long(), begin : begin + width] = piece.detach().view(ids.numel(), width)


def single_ids(ids: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    n, sizes = len(ids), [own.numel() for own in ids]
    union, at, times = torch.unique(torch.cat(list(ids)), return_inverse=True, return_counts=True)
    alone = (times * (n - 1) <= n)[at].split(sizes)
    most = most_singles([int(own.sum()) for own in alone])
    first = torch.cat([own & (own.cumsum(0) <= most) for own in alone])
    return union, torch.zeros_like(union, dtype=torch.bool).index_fill(0, at[first], True), at


def sum_rows(
    ids: Sequence[Tensor], rows: Sequence[Tensor], divisor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    union, place = torch.unique(torch.cat(list(ids)), return_inverse=True)
    total = torch.zeros(union.numel(), rows[0].shape[1], device=union.device, dtype=torch.float32)
    for own, x in zip(torch.split(place, [len(x) for x in rows]), rows):
        total.index_add_(0, own, x.detach().float())
    return union, quotient(total, divisor).to(dtype)
