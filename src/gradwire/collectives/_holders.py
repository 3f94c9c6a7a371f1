"""The holders of each row of a table, computed alike on all ranks from all lists of rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire import kernels


class Holders:
    """Splits rows into those that owners sum and those that their holders send to everybody.

        rank 0   2  5     9            2 and 9: one holder, sent whole to all, n-1 transfers
        rank 1      5  6               5 and 6: an owner adds them up, m held rows cost
        rank 2      5  6               (n-1)·(1 + m/n) instead of m·(n-1)

    lists: each rank's rows, (k,) int32, ascending. union: the rows of all. single_rows,
    shared_rows: their indices in the union; single_at, shared_at: their indices in each list.
    """

    def __init__(self, lists: Sequence[Tensor]) -> None:
        self.lists = lists
        self.union, is_single, at = kernels.single_ids(lists)
        self.single_rows, self.shared_rows = (_where(x) for x in (is_single, ~is_single))
        masks = torch.split(is_single[at], [ids.numel() for ids in lists])
        self.single_at = [_where(mask) for mask in masks]
        self.shared_at = [_where(~mask) for mask in masks]

    def shared_of(self, rank: int) -> Tensor:
        """Returns the rows that a rank sends to owners."""
        return self.lists[rank][self.shared_at[rank].long()]

    def single_of(self, rank: int) -> Tensor:
        """Returns the rows that a rank sends to everybody."""
        return self.lists[rank][self.single_at[rank].long()]


def _where(mask: Tensor) -> Tensor:
    return mask.nonzero().flatten().int()
