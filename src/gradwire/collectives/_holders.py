"""Which ranks hold which rows of a table, once all have told: what all ranks work out alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from gradwire import kernels

Number = TypeVar("Number", int, float)


def most_singles(counts: Sequence[Number]) -> Number:
    """How many rows that no other has a rank may send to all, given how many each has.

    One more costs its sender n-1 rows instead of (n-1)/n, and spares everybody (n-1)/n of an
    average; so the busiest rank gains by it while n-1 ranks have one more: up to the second
    smallest count. Whoever has more sends the rest to owners. Two ranks send all.
    """
    return max(counts) if len(counts) <= 2 else sorted(counts)[1]


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
        several = self.union[holders * (n - 1) > n]
        alone = [ids[~_among(ids, several)] for ids in lists]
        most = most_singles([ids.numel() for ids in alone])
        single = torch.unique(torch.cat([ids[:most] for ids in alone]))
        self.shared = self.union[~_among(self.union, single)]
        masks = [_among(ids, single) for ids in lists]
        self.single_at = [mask.nonzero().flatten().int() for mask in masks]
        self.shared_at = [(~mask).nonzero().flatten().int() for mask in masks]

    def shared_of(self, rank: int) -> Tensor:
        """Which rows a rank sends to owners."""
        return self.lists[rank][self.shared_at[rank].long()]

    def single_of(self, rank: int) -> Tensor:
        """Which rows a rank sends to everybody."""
        return self.lists[rank][self.single_at[rank].long()]


def _among(ids: Tensor, others: Tensor) -> Tensor:
    mask = torch.empty(ids.numel(), dtype=torch.bool, device=ids.device)
    kernels.contained(ids, others, mask)
    return mask
