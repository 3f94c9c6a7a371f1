"""Moves performed by torch.distributed: any backend, one process group per lane."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import accumulate
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire import kernels
from gradwire.errors import MoveError, PeerError
from gradwire.groups import Group
from gradwire.moves import AllGather, AllReduce, AllToAll, Exchange, Move

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # since 2.13

DIRECT_BYTES = 256 * 1024
"""Gloo: an all-reduce for which a rank would send this much goes as an all-gather and a local sum.

The reduction's 2(n-1) dependent steps each hand over between threads on both sides. Four ranks on
two cores, 1 Gbit/s, 80 KB: 8.0 ms as an all-reduce, 2.5 ms as an all-gather (benchmarks/moves).
"""


_GRACE = timedelta(seconds=1)  # for all that is under way, once something failed
_LINE = 64  # bytes: what arrives from each rank begins at a cache line


class Performer:
    """One lane's way to the network. Blocks the calling thread, never uses futures.

    parts: process groups for the moves that only some of its ranks make.
    """

    def __init__(
        self, group: dist.ProcessGroup, parts: Mapping[Group, dist.ProcessGroup] | None = None
    ) -> None:
        self.group = group
        self._parts = {name: Performer(part) for name, part in (parts or {}).items()}
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._gloo = dist.get_backend(group) == "gloo"
        self._scratch = kernels.Scratch()

    def perform(self, move: Move, label: str) -> Tensor | dict[int, Tensor]:
        """What arrives. The memory is reused by the next move of the same size.

        Raises:
            PeerError: another rank failed or did not answer within the group's timeout.
        """
        part = self._part(move)
        try:
            if isinstance(move, AllReduce):
                return part._all_reduce(move.data)
            if isinstance(move, AllGather):
                return part._all_gather(move.data)
            if isinstance(move, AllToAll):
                return part._all_to_all(move)
            if isinstance(move, Exchange):
                return part._exchange(move)
        except (RuntimeError, ConnectionError) as error:
            raise PeerError(
                f"every rank must take part in {move} of {label}; "
                f"{silent_ranks(self.group, move.group)} Look at that rank's own log. "
                f"(The backend says: {str(error).splitlines()[0]})"
            ) from error
        raise MoveError(f"torch.distributed performs the moves of gradwire.moves; got {move}.")

    def _part(self, move: Move) -> Performer:
        """Who performs it: of all ranks, or of some."""
        if move.group is None:
            return self
        if move.group not in self._parts:
            raise MoveError(f"a lane has the groups that its plan asks for; got {move}.")
        return self._parts[move.group]

    def close(self) -> None:
        """Give the groups' threads and sockets back; not collective."""
        # A name that only some ranks made would be given again, its old addresses in the store.
        named_by_all = dist.is_initialized() and self.world == dist.get_world_size()
        for performer in (*self._parts.values(), self):
            if named_by_all:
                with suppress(ValueError):  # it went with a default group before this one
                    dist.destroy_process_group(performer.group)
            del performer.group  # the last reference: sockets close with it

    def _all_reduce(self, data: Tensor) -> Tensor:
        if self._is_direct(data):
            parts = self._all_gather(data)
            total = data.copy_(parts[0])
            for part in parts[1:]:
                total += part
            return total
        dist.all_reduce(data, group=self.group)
        return data

    def _is_direct(self, data: Tensor) -> bool:
        traffic = (self.world - 1) * data.numel() * data.element_size()
        return self._gloo and self.world > 1 and traffic <= DIRECT_BYTES

    def bytes_sent(self, move: Move) -> float:
        """Bytes this rank puts on the wire for the move, the way it is performed here."""
        part = self._part(move)
        if isinstance(move, AllReduce) and part._is_direct(move.data):
            return float((part.world - 1) * move.bytes)
        return move.bytes_sent(part.world)

    def _all_gather(self, data: Tensor) -> Tensor:
        arrived = self._buffer(data, (self.world, data.numel()))
        all_gather(arrived.view(-1), data, group=self.group)
        return arrived

    def _all_to_all(self, move: AllToAll) -> Tensor:
        arrived = self._buffer(move.data, (sum(move.arriving),))
        sizes, arriving = list(move.sizes), list(move.arriving)
        dist.all_to_all_single(arrived, move.data, arriving, sizes, group=self.group)
        return arrived

    def _exchange(self, move: Exchange) -> dict[int, Tensor]:
        """Receives are posted first; each rank begins with its right neighbour."""
        device = torch.device("cpu") if self._gloo else torch.device("cuda")
        starts = [0, *accumulate(-(-size // _LINE) * _LINE for size in move.receives.values())]
        room = self._scratch.room("exchanged", starts[-1], torch.uint8, device)
        arrived = {
            by: room[start : start + size]
            for start, (by, size) in zip(starts, move.receives.items())
        }
        operations = [
            (call, data, self._global(peer))
            for call, parts in ((dist.irecv, arrived), (dist.isend, move.sends))
            for peer, data in sorted(parts.items(), key=self._distance)
            if data.numel()
        ]
        if self._gloo:
            self._each(operations)
        elif operations:
            for work in dist.batch_isend_irecv([dist.P2POp(*o, self.group) for o in operations]):
                work.wait()
        return arrived

    def _each(self, operations: Sequence[tuple[Any, Tensor, int]]) -> None:
        """All of them. If one fails, who is alive gets what it waits for, or soon hears of the
        failure: Gloo closes all connections where a wait passes its limit. So it can tell
        others that it is alive, and they name those who are not.
        """
        works: list[Any] = []
        errors: list[Exception] = []
        for call, data, peer in operations:
            with _remembered(errors):
                works.append(call(data, peer, self.group))
        deadline = None
        for work in works:
            if errors and deadline is None:
                deadline = monotonic() + _GRACE.total_seconds()
            with _remembered(errors):
                work.wait() if deadline is None else work.wait(_left(deadline))
        if errors:
            raise errors[0]

    def _distance(self, peer: tuple[int, Tensor]) -> int:
        return (peer[0] - self.rank) % self.world

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank)

    def _buffer(self, data: Tensor, shape: tuple[int, ...]) -> Tensor:
        """One room for all moves, as large as the largest: lengths may differ every step."""
        n = math.prod(shape)
        return self._scratch.room("arrived", n, data.dtype, data.device).view(shape)


@contextmanager
def _remembered(errors: list[Exception]) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ConnectionError) as error:
        errors.append(error)


def _left(deadline: float) -> timedelta:
    return timedelta(seconds=max(0.01, deadline - monotonic()))


def silent_ranks(
    group: dist.ProcessGroup, part: Group | None = None, patience_seconds: float = 3.0
) -> str:
    """A sentence naming the ranks that did not report the same failure; not collective.

    Every rank that sees a failure says so in the group's store; whoever stays silent is dead or
    stuck. If the store itself is gone, so is the process that hosts it.
    part: the ranks that moved, if not all did: they are looked at first.
    """
    rank, everybody = dist.get_rank(group), range(dist.get_world_size(group))
    try:
        store = dist.distributed_c10d._get_process_group_store(group)
        store.set(f"gradwire/failed/{rank}", "1")
        missing = _missing(store, part.ranks if part else everybody, patience_seconds)
        missing = missing or _missing(store, everybody, 0.0)
    except Exception:
        return "the rank that hosts the rendezvous store (rank 0 under torchrun) is gone."
    if not missing:
        return "every rank is alive but some did not answer in time."
    return f"rank {', '.join(map(str, missing))} died or is stuck."


def _missing(store: Any, ranks: Sequence[int], patience_seconds: float) -> list[int]:
    """Asks again and again: waiting with a time limit fails differently in every store."""
    deadline = monotonic() + patience_seconds
    missing = list(ranks)
    while True:
        missing = [r for r in missing if not store.check([f"gradwire/failed/{r}"])]
        if not missing or monotonic() > deadline:
            return missing
        sleep(0.05)
