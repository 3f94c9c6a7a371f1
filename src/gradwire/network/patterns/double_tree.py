"""All-reduce by two binary trees, half of the bytes each: inner ranks of one are leaves of the
other (Sanders, Speck and Träff 2009)."""

from __future__ import annotations

import numpy as np

from gradwire.network.flows import Flows
from gradwire.network.patterns.parts import checked, steps


def double_tree(ranks: int, bytes: int) -> Flows:
    """Returns flows of one step: bytes up and bytes down are cut small, and overlap."""
    checked(ranks, bytes)
    rank = np.arange(ranks)
    parent = np.array([_parent(r, ranks) for r in range(ranks)])
    other = (rank + 1) % ranks if ranks % 2 else ranks - 1 - rank  # its rank in the second tree
    half = np.array([bytes - bytes // 2, bytes // 2])
    rows = []
    for names, size in ((rank, half[0]), (other, half[1])):
        child = rank[parent >= 0]
        ends = names[child], names[parent[child]]
        rows += [(*ends, np.full(len(child), size)), (*ends[::-1], np.full(len(child), size))]
    source, target, sizes = (np.concatenate(column) for column in zip(*rows))
    return steps([(source, target, sizes)])


def _parent(rank: int, ranks: int) -> int:
    """Returns the parent in a tree with odd ranks as leaves and rank 0 as root, which has -1."""
    if rank == 0:
        return -1
    low = rank & -rank
    up = (rank ^ low) | (low << 1)
    return up if up < ranks else rank ^ low
