"""Indices split among owners by hash tables, as published: a reference for `split_stream`.

            owner 0: parallel ........ serial ..    index 7 ── hash 0 ──► owner 1
            owner 1: .7...... ..                            ── hashes 1 … k ──► slots of its table,
            owner 2: ........ ..                               the first empty one; else serial

Slots hold index + 1, so that 0 means empty and index 0 is kept. A slot is taken by compare and
swap: reading back what was written, as published, loses an index when a late store lands after
another thread's read. A table that overflows is doubled and filled again, so nothing is dropped.
Source: Wang et al. 2025, "Zen", algorithm 1, section 3.2.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.rooms import room_of
from gradwire.kernels.tensors import (
    check_apart,
    check_buffer,
    check_places,
    check_same_device,
)
from gradwire.kernels.values import Partition

_MOST_OWNERS, _MOST_THREADS, _MOST_SLOTS = 1 << 16, 256, 1 << 31
_LEAST_SLOTS = 64
_SERIAL_SHARE = 10  # a serial slot for so many parallel ones


def slots_for(k: int, owners: int) -> tuple[int, int]:
    """Returns the parallel and serial slots of each owner's table: 2·k/owners and a tenth of it,
    but at least 64 each."""
    parallel = max(_LEAST_SLOTS, 2 * k // owners)
    return parallel, max(_LEAST_SLOTS, parallel // _SERIAL_SHARE)


def hash_partition(
    indices: Tensor,
    owners: int,
    seeds: Sequence[int],
    indices_out: Tensor,
    slots: tuple[int, int] | None = None,
    threads: int = 1,
) -> Partition:
    """Writes the indices of each owner, owner after owner, in the order of the table's slots
    (unsorted).

    indices: (k,) int32, from 0, distinct. seeds: 32 bits each: the owners', the same on all ranks,
    then one for each try (published: three). indices_out: (k,), written, not the input. slots: the
    initial parallel and serial slots of each table; None: `slots_for`. threads: how many insert
    concurrently; with more than one the order within an owner's part depends on timing.
    Raises KernelError. Memory: 4 bytes per slot, kept per thread.
    """
    room = room_of(indices, indices_out)
    check_places("indices", indices)
    if indices.numel() and (least := int(indices.min())) < 0:
        raise KernelError(f"indices must be 0 or more, but one is {least}; leave it out")
    check_buffer("indices_out", indices_out, torch.int32, indices.numel())
    check_same_device(indices, indices_out=indices_out)
    check_apart("indices_out", indices_out, indices)
    if len(seeds) < 2 or not all(0 <= seed < 2**32 for seed in seeds):
        raise KernelError(
            f"seeds must be two or more numbers of 32 bits, not {list(seeds)}; pass the owners' "
            "seed and one for each try"
        )
    if not 1 <= owners <= _MOST_OWNERS or not 1 <= threads <= _MOST_THREADS:
        raise KernelError(
            f"owners must be 1 to {_MOST_OWNERS} and threads 1 to {_MOST_THREADS}, not {owners} "
            f"and {threads}; pass such counts"
        )
    slots = slots or slots_for(indices.numel(), owners)
    if slots[0] < 1 or slots[1] < 0 or owners * sum(slots) > _MOST_SLOTS:
        raise KernelError(
            f"slots must be at least 1 parallel and 0 serial, and at most {_MOST_SLOTS} of all "
            f"owners together, not {slots} of {owners} owners; leave them out"
        )
    return room.hash_partition(indices, owners, seeds, indices_out, slots, threads)
