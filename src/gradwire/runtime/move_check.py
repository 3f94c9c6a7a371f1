"""Checks a move before it is performed, so that lockstep refuses what a job cannot perform."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import MoveError
from gradwire.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Exchange,
    Gather,
    Reduce,
    ReduceScatter,
)

KNOWN = AllGather, AllReduce, AllToAll, Broadcast, Exchange, Gather, Reduce, ReduceScatter


def check_move(move: object, world: int) -> None:
    """Raises MoveError unless it is a move of `gradwire.moves` that a rank can make. world: the
    number of ranks, for a move of all."""
    if not isinstance(move, KNOWN):
        raise MoveError(
            "a collective must yield the moves of gradwire.moves, of the kinds "
            f"{', '.join(kind.__name__ for kind in KNOWN)}; got {move!s:.80}. Yield one."
        )
    n = len(move.group.ranks) if move.group else world
    wrong = next(_wrong(move, n), None)
    if wrong is not None:
        raise MoveError(f"{wrong}, in {move} among {n} ranks. Correct the collective.")


def _wrong(move: Any, n: int) -> Iterator[str]:
    """Yields each broken rule, with the value."""
    if isinstance(move, Exchange):
        for r in (*move.sends, *move.receives):
            if not 0 <= r < n:
                yield f"ranks in an exchange must be from 0 to {n - 1}; got {r}"
        for data in move.sends.values():
            if data.dtype != torch.uint8:
                yield f"an exchange's messages must be uint8; got {data.dtype}"
            yield from _not_flat(data)
        if move.alike and not len(move.sends) == len(move.receives) == n - 1:
            yield f"an exchange that is alike must be with all {n - 1} other ranks"
        if move.alike and len({id(data) for data in move.sends.values()}) > 1:
            yield "an exchange that is alike must send one tensor to all"
        return
    yield from _not_flat(move.data)
    if isinstance(move, AllToAll | ReduceScatter):
        sizes, many = move.sizes, len(move.data)
        if len(sizes) != n or min(sizes) < 0 or sum(sizes) != many:
            yield (
                f"sizes must be {n} numbers of at least 0 that add up to the data's {many} "
                f"elements; got {[*sizes]}"
            )
    if isinstance(move, AllToAll) and (len(move.arriving) != n or min(move.arriving) < 0):
        yield f"arriving must be {n} numbers of at least 0; got {[*move.arriving]}"
    if isinstance(move, Broadcast | Gather | Reduce) and not 0 <= move.root < n:
        yield f"root must be a rank from 0 to {n - 1}; got {move.root}"


def _not_flat(data: Tensor) -> Iterator[str]:
    if data.dim() != 1 or not data.is_contiguous():
        strides = f" and strides {[*data.stride()]}" if data.layout == torch.strided else ""
        yield f"data of a move must be 1-D and contiguous; got shape {[*data.shape]}{strides}"
