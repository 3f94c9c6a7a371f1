"""Moves performed by torch.distributed: any backend, one process group per lane."""

from __future__ import annotations

import math
import os
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire import kernels
from gradwire.errors import MoveError, PeerError, UsageError
from gradwire.groups import Group
from gradwire.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Exchange,
    Gather,
    Move,
    Reduce,
    ReduceScatter,
)
from gradwire.runtime.host_copies import CPU, HostCopies
from gradwire.runtime.silent_ranks import PATIENCE_SECONDS, silent_ranks
from gradwire.runtime.waits import Part, Waits

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # since 2.13

DIRECT_BYTES = 256 * 1024
"""With Gloo, up to these bytes each rank sends to all others at once: in a gather, and in a sum,
which every rank then adds up. Beyond them bytes count, and messages get in each other's way.

Each of Gloo's 2(n-1) or n-1 dependent steps hands over between threads on both sides. Four ranks
on two cores, 1 Gbit/s, 80 KB: 6.9 ms as an all-reduce, 3.7 ms as Gloo's all-gather, and 2.6 ms
by pairs of sends and receives (benchmarks/moves).
"""

OWNED_BYTES = 32 * 1024
"""With Gloo, a larger sum is made by owners of parts, in two moves, if each part has at most these
bytes. Eight ranks, 250 Mbit/s, 170 KB: 21.4 ms as an all-reduce, 12.5 ms by owners."""

FAR_SECONDS, _FAR_STEPS, _FAR_BYTES_PER_SECOND = 2e-3, 4, 12.5e6
"""From so long a way on, dependent steps cost more than what all send at once loses at the switch:
four ways' worth of bytes at 100 Mbit/s go by pairs, or by owners. Four ranks, 40 ms one way, 0.4
MB: 499 ms as an all-reduce, 204 by owners; 299 as Gloo's all-gather, 259 by pairs."""

PACED_BYTES = 64 * 1024
"""With Gloo, an exchange of messages from this size on is paced: a rank is at most _AHEAD sends
ahead.

If all are sent at once, the switch decides their order, and links are idle at the end. Eight
hosts, 1 Gbit/s, 0.6 MB to each: 47 ms at once, 41 paced (benchmarks/moves).
"""
_AHEAD = 3
_EVEN = 1.5  # times the mean

_LINE = 64  # bytes: what arrives from each rank begins at a cache line

_PERFORMED = (
    AllGather, AllReduce, AllToAll, Broadcast, Exchange, Gather, Reduce, ReduceScatter
)  # fmt: skip


def backend_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """Returns the name of the backend for tensors of a device in this group, such as "gloo"; "" if
    there is none.

    A group may have several: `init_process_group()` gives each type of device its own."""
    try:
        return str(group._get_backend(device).name()).lower()
    except RuntimeError:
        return ""


class Performer:
    """Performs one lane's moves. Blocks the calling thread, and never uses futures.

    parts: process groups for the moves that only some of its ranks make. device: where data
    arrives if nothing is sent; the thread's current device may be another one. far_seconds: how
    long a message takes from rank to rank, the same on all; machines' own groups are near.
    patience_seconds: how long an error waits for the reports of others, so as to name the lost.
    """

    patience_seconds = PATIENCE_SECONDS

    def __init__(
        self, group: dist.ProcessGroup, parts: Mapping[Group, dist.ProcessGroup] | None = None,
        device: torch.device = CPU, far_seconds: float = 0.0,
    ) -> None:  # fmt: skip
        self.group, self.device, self._process = group, device, os.getpid()
        self._closed = False
        self._parts = {
            n: Performer(part, None, device, 0.0 if n.name == "node" else far_seconds)
            for n, part in (parts or {}).items()
        }
        is_far = far_seconds >= FAR_SECONDS
        self._far_bytes = int(_FAR_STEPS * far_seconds * _FAR_BYTES_PER_SECOND) if is_far else 0
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._gloo = backend_of(group, device) == "gloo"
        by_host = self._gloo and device.type == "cuda"
        self._host = HostCopies(device) if by_host else None
        self._scratch = kernels.Scratch(pinned=by_host)  # what arrives goes up from there
        self._on_host: Performer | None = None

    def at(self, device: torch.device) -> Performer:
        """Returns a performer on the same groups for tensors on that device, which is its own or
        the host's."""
        if device.type == self.device.type:
            return self
        if self._on_host is None:
            self._on_host = self._for_host()
        return self._on_host

    def _forget(self) -> None:
        """Drops its references to groups: the last one closes a group, and an error's traceback
        may keep this object."""
        for performer in (*self._parts.values(), self):
            del performer.group

    def _for_host(self) -> Performer:
        twin = copy(self)
        twin.device, twin._gloo, twin._host = CPU, backend_of(self.group, CPU) == "gloo", None
        twin._scratch = kernels.Scratch()
        twin._parts = {name: part._for_host() for name, part in self._parts.items()}
        return twin

    def perform(self, move: Move, label: str) -> Tensor | dict[int, Tensor]:
        """Performs a move. Returns what arrives, in memory that the next move reuses.

        Raises:
            PeerError: another rank failed or did not answer within the group's timeout.
            UsageError: the group was destroyed.
        """
        part = self._part(move)
        try:
            if isinstance(move, _PERFORMED):
                return part._by_host(move) if part._host is not None else part._directly(move)
        except torch.OutOfMemoryError:
            raise  # it is this rank's own failure
        except (RuntimeError, ConnectionError) as error:
            raise PeerError(
                f"every rank must take part in {move} of {label}; "
                f"{self._silent_ranks(label, move, error)} "
                "Look at that rank's own log. "
                f"(The backend says: {str(error).splitlines()[0]})"
            ) from error
        except ValueError as error:
            if part.group in dist.distributed_c10d._world.pg_map:
                raise
            raise UsageError(
                "the process groups of an attached model must last until it is detached; "
                f"destroy_process_group() has ended them before {move} of {label}. Call detach() "
                "before it, and attach again after the next init_process_group()."
            ) from error
        raise MoveError(
            f"torch.distributed performs only the moves of gradwire.moves; got {move}. Yield one "
            "of these."
        )

    def _silent_ranks(self, label: str, move: Move, error: Exception) -> str:
        """Returns a sentence that names the ranks to blame for an error, as far as is known."""
        silent: Sequence[int] = getattr(error, "silent", ())
        return silent_ranks(self.group, label, move.group, silent, self.patience_seconds)

    def _directly(self, move: Any) -> Tensor | dict[int, Tensor]:
        if isinstance(move, AllReduce):
            return self._all_reduce(move.data)
        if isinstance(move, AllGather):
            return self._all_gather(move.data)
        if isinstance(move, AllToAll):
            return self._all_to_all(move)
        if isinstance(move, Exchange):
            return self._exchange(move)
        if isinstance(move, ReduceScatter):
            return self._reduce_scatter(move)
        return self._rooted(move)

    def _by_host(self, move: Any) -> Tensor | dict[int, Tensor]:
        """Performs a move through host memory, as Gloo needs: copies down, moves, copies up."""
        host = self._host
        assert host is not None
        if isinstance(move, Exchange):
            sends = move.sends
            if move.alike and sends:
                sends = dict.fromkeys(sends, host.down(next(iter(sends.values()))))
            else:
                sends = host.down_all(sends)
            return host.up_all(self._exchange(replace(move, sends=sends)))
        data = move.data
        found = self._directly(replace(move, data=host.down(data)))
        assert isinstance(found, Tensor)
        is_own = found.shape == data.shape and isinstance(move, AllReduce | Broadcast | Reduce)
        return data.copy_(found, non_blocking=True) if is_own else host.up(found)

    def _part(self, move: Move) -> Performer:
        """Returns the performer of the move's group: of all ranks, or of some."""
        if move.group is None:
            return self
        if move.group not in self._parts:
            raise MoveError(
                f"a move's group must be one of those that the plan needs; got {move}."
            )
        return self._parts[move.group]

    def close(self) -> None:
        """Closes the groups' threads and sockets; not collective. A second call does nothing, and
        so does any in a fork of the process that made them: the threads do not exist there, and
        joining them would hang."""
        if self._closed or self._process != os.getpid():
            return
        self._closed = True
        # torch would reuse a name that only some ranks made, with its old addresses in the store.
        named_by_all = dist.is_initialized() and self.world == dist.get_world_size()
        for performer in (*self._parts.values(), self):
            if named_by_all:
                with suppress(ValueError):  # it was destroyed with an earlier default group
                    dist.destroy_process_group(performer.group)
            if performer._on_host is not None:
                performer._on_host._forget()
            del performer.group  # the last reference: sockets close with it

    def _all_reduce(self, data: Tensor) -> Tensor:
        if self._is_direct(data.nbytes):
            parts = self._all_gather(data)
            total = data.copy_(parts[0])
            for part in parts[1:]:
                total += part
            return total
        if self._has_owners(data):
            return self._by_owners(data)
        dist.all_reduce(data, group=self.group)
        return data

    def _by_owners(self, data: Tensor) -> Tensor:
        """Sums in two moves: parts to their owners, and sums to all."""
        each, more = divmod(data.numel(), self.world)
        parts = torch.split(data, [each + (r < more) for r in range(self.world)])
        own = parts[self.rank]
        room = self._buffer(own, (self.world, own.numel()))
        room[self.rank] = own
        self._between_all(parts, list(room), parts[-1].nbytes)
        torch.sum(room, 0, out=own) if own.is_floating_point() else own.copy_(room.sum(0))
        self._between_all([own] * self.world, parts, parts[-1].nbytes)
        return data

    def _has_owners(self, data: Tensor) -> bool:
        """Whether an all-reduce that is not direct is made by owners."""
        most = max(OWNED_BYTES, self._far_bytes)
        return self._gloo and self.world > 2 and data.nbytes <= self.world * most

    def _is_direct(self, bytes_of_each: int) -> bool:
        traffic = (self.world - 1) * bytes_of_each
        return self._gloo and self.world > 1 and traffic <= DIRECT_BYTES

    def bytes_sent(self, move: Move) -> float:
        """Returns the bytes that this rank sends for the move, as it is performed here."""
        part = self._part(move)
        if isinstance(move, AllReduce) and part._is_direct(move.bytes):
            return float((part.world - 1) * move.bytes)
        return move.bytes_sent(part.world)

    def _all_gather(self, data: Tensor) -> Tensor:
        arrived = self._buffer(data, (self.world, data.numel()))
        if not self._gloo:
            all_gather(arrived.view(-1), data, group=self.group)
            return arrived
        arrived[self.rank] = data
        if self._is_paired(data.nbytes):
            self._between_all([data] * self.world, list(arrived), data.nbytes)
        else:
            parts = {r: part.view(torch.uint8) for r, part in enumerate(arrived)}
            self._around(parts[self.rank], parts)
        return arrived

    def _is_paired(self, most: int) -> bool:
        """Whether a gather of at most so many bytes from each rank goes by pairs of sends and
        receives: in one turn, so that it is known which rank does not answer."""
        return self.world <= 2 or most <= self._far_bytes or self._is_direct(most)

    def _around(self, message: Tensor, arrived: Mapping[int, Tensor]) -> None:
        """Gathers messages, which may differ in size, around a ring: each rank passes on what its
        left neighbour sends.

        All receives are posted at first, so a turn takes one way, and in Gloo's own ring two. By
        pairs as many bytes take up to 1.4 times as long, as they meet at the switch
        (benchmarks/moves), and the ranks of one host would all receive them over its link.
        """
        left, right = (self.rank - 1) % self.world, (self.rank + 1) % self.world
        order = [(self.rank - k) % self.world for k in range(1, self.world)]
        waits = Waits()
        coming = [
            (part, waits.begun(self._receive, part))
            for part in (Part(1, arrived[r], left) for r in order)
            if part.data.numel()
        ]
        own = Part(1, message, right)
        sent = [(own, waits.begun(self._send, own))] if message.numel() else []
        for part, work in coming:
            waits.finish(part, work)
            if part.data is not arrived[right] and not waits.errors:  # that one has been there
                on = part._replace(rank=right)
                sent.append((on, waits.begun(self._send, on)))
        for part, work in sent:
            waits.finish(part, work)
        try:
            waits.refuse()
        except (RuntimeError, ConnectionError) as error:
            # A neighbour may be alive, and wait for its own.
            error.silent = ()  # type: ignore[union-attr]
            raise

    def _all_to_all(self, move: AllToAll) -> Tensor:
        arrived = self._buffer(move.data, (sum(move.arriving),))
        sizes, arriving = list(move.sizes), list(move.arriving)
        dist.all_to_all_single(arrived, move.data, arriving, sizes, group=self.group)
        return arrived

    def _reduce_scatter(self, move: ReduceScatter) -> Tensor:
        """Sends parts to their owners, which add them in rank order: Gloo's own costs as much as
        an all-reduce."""
        own = (move.sizes[move.rank],) * self.world
        arrived = self._all_to_all(AllToAll(move.data, move.sizes, own, move.rank, alike=True))
        parts = arrived.chunk(self.world)
        total = parts[0]
        for part in parts[1:]:
            total += part
        return total

    def _rooted(self, move: Reduce | Gather | Broadcast) -> Tensor:
        root = self._name_of(move.root)
        if isinstance(move, Broadcast):
            dist.broadcast(move.data, root, group=self.group)
            return move.data
        if isinstance(move, Reduce):
            dist.reduce(move.data, root, group=self.group)
            return move.data if move.is_root else move.data[:0]
        n = self.world if move.is_root else 0
        arrived = self._buffer(move.data, (n, move.data.numel()))
        dist.gather(move.data, list(arrived) if move.is_root else None, root, group=self.group)
        return arrived

    def _exchange(self, move: Exchange) -> dict[int, Tensor]:
        """Performs an exchange. Receives are posted first; a rank begins with its neighbours."""
        arrived = self._arriving(move.receives, CPU if self._gloo else self.device)
        if move.alike and move.sends and self._gloo:
            message = next(iter(move.sends.values()))
            if not self._is_paired(max(message.numel(), *move.receives.values())):
                self._around(message, arrived)
                return arrived
        receives = self._by_distance(arrived, -1)
        sends = self._by_distance(move.sends, 1)
        if self._gloo:
            self._between_pairs(receives, sends)
        elif receives or sends:
            calls = ((dist.irecv, receives), (dist.isend, sends))
            operations = [
                dist.P2POp(call, part.data, self._name_of(part.rank), self.group)
                for call, parts in calls
                for part in parts
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        return arrived

    def _arriving(self, sizes: Mapping[int, int], device: torch.device) -> dict[int, Tensor]:
        """Returns memory for messages of these sizes, each from a cache line on."""
        starts = [0, *accumulate(-(-size // _LINE) * _LINE for size in sizes.values())]
        room = self._room("exchanged", starts[-1], torch.uint8, device)
        return {by: room[start : start + size] for start, (by, size) in zip(starts, sizes.items())}

    def _by_distance(self, parts: Mapping[int, Tensor], way: int) -> list[Part]:
        """Returns non-empty messages with their peers, nearest first: to the right (1) or from the
        left (-1)."""
        return sorted(
            (Part(way * (r - self.rank) % self.world, data, r)
            for r, data in parts.items() if data.numel()),
            key=lambda part: part.distance,
        )  # fmt: skip

    def _send(self, part: Part) -> Any:
        """Starts a send."""
        return dist.isend(part.data, self._name_of(part.rank), self.group)

    def _receive(self, part: Part) -> Any:
        """Starts a receive."""
        return dist.irecv(part.data, self._name_of(part.rank), self.group)

    def _name_of(self, rank: int) -> int:
        """Returns the rank's number in the default group."""
        return dist.get_global_rank(self.group, rank)

    def _between_all(
        self, sends: Sequence[Tensor], receives: Sequence[Tensor], least: int
    ) -> None:
        """Sends to and receives from each other rank; this rank's own part is not moved.
        least: the bytes of the smallest message between any two ranks if all ranks know it, else
        0."""
        others = [r for r in range(self.world) if r != self.rank]
        going, coming = (
            {r: own[r].view(torch.uint8) for r in others} for own in (sends, receives)
        )
        self._take_turns(coming, going, least)

    def _take_turns(
        self, coming: Mapping[int, Tensor], going: Mapping[int, Tensor], least: int
    ) -> None:
        """Performs these receives and sends: all in one turn."""
        self._between_pairs(self._by_distance(coming, -1), self._by_distance(going, 1))

    def _between_pairs(self, receives: Sequence[Part], sends: Sequence[Part]) -> None:
        """Performs all receives and sends. If every rank has much for every other, it sends to the
        nearest first, a few at a time:

            to the right by 1, 2, 3 ──► from the left by 1 is here ──► to the right by 4 ──► …

        If one fails, each rank that is alive gets its data or soon fails, too, as Gloo closes all
        connections when a wait times out. So it can report that it is alive, and others can name
        the ranks that did not.
        """
        waits, ahead = Waits(), self._ahead(receives, sends)
        coming = deque((part, waits.begun(self._receive, part)) for part in receives)
        sent = []
        for part in sends:
            while coming and coming[0][0].distance <= part.distance - ahead:
                waits.finish(*coming.popleft())
            sent.append((part, waits.begun(self._send, part)))
        for part, work in (*coming, *sent):
            waits.finish(part, work)
        waits.refuse()

    def _ahead(self, receives: Sequence[Part], sends: Sequence[Part]) -> int:
        """Returns by how many ranks of distance sends may run ahead of receives."""
        is_paced = self._is_large_and_even(receives) and self._is_large_and_even(sends)
        return _AHEAD if is_paced else self.world

    def _is_large_and_even(self, parts: Sequence[Part]) -> bool:
        """Whether there is a large message for every other rank, and none is much larger, as
        others would wait for it."""
        sizes = Counter[int]()
        for part in parts:
            sizes[part.rank] += part.data.nbytes
        if len(sizes) < self.world - 1 or not sizes:
            return False
        return PACED_BYTES <= max(sizes.values()) <= _EVEN * sizes.total() / len(sizes)

    def _buffer(self, data: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Returns the one buffer of all moves, as large as the largest: lengths may vary."""
        n = math.prod(shape)
        return self._room("arrived", n, data.dtype, data.device).view(shape)

    def _room(self, name: str, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns memory for what arrives. Raises MemoryError if there is none: no other rank is
        to blame, as for a RuntimeError of a move."""
        try:
            return self._scratch.room(name, n, dtype, device)
        except RuntimeError as error:
            raise MemoryError(
                f"a rank needs memory for what arrives from others; {n * dtype.itemsize:,} bytes "
                f"on {device} could not be had ({str(error).splitlines()[0]}). Use smaller "
                "buckets, or fewer ranks on this machine."
            ) from error
