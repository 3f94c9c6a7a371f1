"""Indices split by hash tables, by the extension."""

from collections.abc import Sequence

from torch import Tensor

from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import pointer
from gradwire.kernels.values import Partition


def hash_partition(
    indices: Tensor, owners: int, seeds: Sequence[int], indices_out: Tensor,
    slots: tuple[int, int], threads: int,
) -> Partition:  # fmt: skip
    indices, k = indices.contiguous(), indices.numel()
    return Partition(
        *chosen.core.hash_partition(
            pointer(indices), k, owners, list(seeds), *slots, threads, pointer(indices_out)
        )
    )
