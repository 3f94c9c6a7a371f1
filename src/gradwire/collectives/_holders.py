"""Which ranks hold which rows of a table, once all have told: what all ranks work out alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire import kernels


class Holders:
    """Rows that are worth an owner, and rows that their holders send to everybody.

        rank 0   2  5     9            2 and 9: one holder, sent whole to all, n-1 transfers
        rank 1      5  6               5 and 6: an owner adds them up, m held rows cost
        rank 2      5  6               (n-1)·(1 + m/n) instead of m·(n-1)

    lists: each rank's rows, (k,) int32, ascending.
    """

    def __init__(self, lists: Sequence[Tensor]) -> None:
        n = len(lists)
        self.lists = lists
        self.union, holders = torch.unique(torch.cat(list(lists)), return_counts=True)
        self.shared = self.union[holders * (n - 1) > n]
        masks = [self._is_shared(ids) for ids in lists]
        self.shared_at = [mask.nonzero().flatten().int() for mask in masks]
        self.single_at = [(~mask).nonzero().flatten().int() for mask in masks]

    def _is_shared(self, ids: Tensor) -> Tensor:
        mask = torch.empty(ids.numel(), dtype=torch.bool, device=ids.device)
        kernels.contained(ids, self.shared, mask)
        return mask

    def shared_of(self, rank: int) -> Tensor:
        """Which rows a rank sends to owners."""
        return self.lists[rank][self.shared_at[rank].long()]

    def single_of(self, rank: int) -> Tensor:
        """Which rows a rank sends to everybody."""
        return self.lists[rank][self.single_at[rank].long()]
