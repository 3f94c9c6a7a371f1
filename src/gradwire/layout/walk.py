"""A path, task by task, on one rank: which ranks take part, what they send, what comes of it.

    compress ─► messages ─► moves of messages ─► decompress ─► numbers ─► moves of numbers

A move's output lies in memory that the next move reuses. So numbers are copied at once, and
messages before they are sent on. A subclass says what compressing does with data, if it has any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.layout.stages import Circle, Having, Region, StageLayout
from gradwire.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gather,
    Move,
    Reduce,
    ReduceScatter,
)
from gradwire.strategy import Rounds

Tensors: TypeAlias = "list[Tensor]"
"""The numbers of a region: one 1-D tensor for each parameter."""
Messages: TypeAlias = "list[list[Tensor]]"
"""The contributions to each leaf: 1-D uint8."""


class Walk(ABC):
    """One rank's way along a path. Each step begins with the gradients in `_numbers`.

    dtype: the dtype in which numbers are sent.
    """

    def __init__(
        self, plan: StageLayout, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._plan, self._rank, self._tasks = plan, rank, plan.path.tasks
        self._dtype, self._device = dtype, device
        self._rooms = kernels.Scratch()
        self._numbers: Tensors = []
        self._messages: Messages = []

    @abstractmethod
    def _compress(self, number: int) -> None:
        """Compresses the numbers into messages."""

    @abstractmethod
    def _decompress(self, number: int) -> None:
        """Decompresses the messages into numbers: their mean."""

    @abstractmethod
    def _finish(self) -> None:
        """Writes the result. Raises PayloadError if this rank found damage."""

    def rounds(self) -> Rounds[None]:
        """Yields the moves of this rank, in order."""
        for number, task in enumerate(self._tasks):
            before = self._before(number)
            if not (before.is_active or self._before(number + 1).is_active):
                continue  # one rank holds all; the others wait for the second half
            if task.name == "compress":
                self._compress(number)
            elif task.name == "decompress":
                self._decompress(number)
            elif before.leaves:
                self._messages = yield from self._move_messages(number)
            else:
                self._numbers = yield from self._move_numbers(number)
        self._finish()

    def _before(self, number: int) -> Having:
        return self._plan.before(self._rank, number)

    # -- moves -----------------------------------------------------------------------------

    def _move_numbers(self, number: int) -> Rounds[Tensors]:
        name, circle = self._tasks[number].name, self._circle(number)
        x, had, group = self._numbers, self._before(number), circle.group
        if name == "reduce_scatter":
            owners = self._plan.split(had.region, circle.size)
            data = self._flat(number, [cut for own in owners for cut in cuts(x, had.region, own)])
            sizes = tuple(map(elements, owners))
            scatter = ReduceScatter(data, sizes, circle.place, group=group)
            return self._mean(number, (yield from _made(scatter, circle)))
        if name == "all_gather":
            theirs = [self._plan.before(r, number).region for r in circle.ranks]
            data = self._flat(number, x, room=max(map(elements, theirs)))
            arrived = yield from _made(AllGather(data, group=group), circle)
            return self._whole(number, arrived, theirs)
        if name == "all_reduce":
            total = yield from _made(AllReduce(self._flat(number, x), group=group), circle)
            return self._mean(number, total)
        data = self._flat(number, x if had.is_active else [], room=elements(had.region))
        if name == "broadcast":
            send = Broadcast(data, circle.root, circle.place, group=group)
            return self._kept(number, (yield from _made(send, circle)))
        total = yield from _made(Reduce(data, circle.root, circle.place, group=group), circle)
        return self._mean(number, total) if circle.is_root else []

    def _move_messages(self, number: int) -> Rounds[Messages]:
        name, circle = self._tasks[number].name, self._circle(number)
        had, group = self._before(number), circle.group
        if name == "broadcast":
            data = self._joined(number, self._plan.bytes(had), is_sent=circle.is_root)
            send = Broadcast(data, circle.root, circle.place, group=group)
            return self._read((yield from _made(send, circle)), had)
        if name == "all_gather" and self._plan.second(number) is not None:
            theirs = [self._plan.before(r, number) for r in circle.ranks]
            data = self._joined(number, max(map(self._plan.bytes, theirs)))
            arrived = yield from _made(AllGather(data, group=group), circle)
            return [own for part, has in zip(arrived, theirs) for own in self._read(part, has)]
        data = self._joined(number)
        if name == "all_gather":
            return self._added((yield from _made(AllGather(data, group=group), circle)), had)
        if name == "gather":
            gather = Gather(data, circle.root, circle.place, group=group)
            arrived = yield from _made(gather, circle)
            return self._added(arrived, had) if circle.is_root else []
        owners = self._plan.chunks(had, circle.size)
        sizes, own = tuple(map(self._plan.bytes, owners)), owners[circle.place]
        arriving = (sizes[circle.place],) * circle.size
        to_owners = AllToAll(data, sizes, arriving, circle.place, alike=True, group=group)
        arrived = yield from _made(to_owners, circle)
        return self._added(arrived.view(circle.size, -1), own)

    def _circle(self, number: int) -> Circle:
        return self._plan.circle(self._rank, self._tasks[number])

    # -- reading ---------------------------------------------------------------------------

    def _mean(self, number: int, total: Tensor) -> Tensors:
        mean = self._room(f"{number} mean", total.numel(), torch.float32)
        torch.div(total, self._circle(number).size, out=mean)
        return split(mean, self._before(number + 1).region)

    def _kept(self, number: int, numbers: Tensor) -> Tensors:
        kept = self._room(f"{number} kept", numbers.numel(), self._dtype)
        return split(kept.copy_(numbers), self._before(number + 1).region)

    def _whole(self, number: int, arrived: Tensor, theirs: Sequence[Region]) -> Tensors:
        region = self._before(number + 1).region
        whole = split(self._room(f"{number} whole", elements(region), self._dtype), region)
        for own, part in zip(theirs, arrived):
            for x, piece in zip(cuts(whole, region, own), split(part, own)):
                x.copy_(piece)
        return whole

    def _added(self, arrived: Tensor, had: Having) -> Messages:
        """Returns all ranks' messages of each leaf, in rank order. All sent the same leaves."""
        by_rank = [self._read(part, had) for part in arrived]
        return [[m for own in by_rank for m in own[i]] for i in range(len(had.leaves))]

    def _read(self, data: Tensor, had: Having) -> Messages:
        """Splits one rank's messages, which lie end to end. Raises PayloadError."""
        sizes = [self._plan.layout(leaf).bytes for leaf in had.leaves
                 for _ in range(had.contributions)]  # fmt: skip
        if data.numel() < sum(sizes):
            raise PayloadError(
                f"by the plan each rank sends {sum(sizes)} bytes; {data.numel()} arrived. Attach "
                "the same plan on every rank."
            )
        messages, each = torch.split(data[: sum(sizes)], sizes), had.contributions
        return [list(messages[i * each : (i + 1) * each]) for i in range(len(had.leaves))]

    # -- writing ---------------------------------------------------------------------------

    def _flat(self, number: int, parts: Sequence[Tensor], room: int = 0) -> Tensor:
        """Copies the parts end to end, in the dtype that is sent; zeros follow."""
        total = sum(part.numel() for part in parts)
        data = self._room(f"{number} sent", max(total, room), self._dtype)
        for part, place in zip(parts, torch.split(data[:total], [x.numel() for x in parts])):
            place.copy_(part)
        data[total:].zero_()
        return data

    def _joined(self, number: int, room: int = 0, is_sent: bool = True) -> Tensor:
        """Copies all messages end to end; if they are not sent, a buffer for those of others."""
        parts = [message for own in self._messages for message in own] if is_sent else []
        total = sum(part.numel() for part in parts)
        data = self._room(f"{number} sent", max(total, room), torch.uint8)
        if parts:
            torch.cat(parts, out=data[:total])
            data[total:].zero_()
        return data

    def _room(
        self, name: str, n: int, dtype: torch.dtype, device: torch.device | None = None
    ) -> Tensor:
        """Returns a buffer of this bucket alone, as it is needed until the step ends."""
        return self._rooms.room(name, n, dtype, device or self._device)


def _made(move: Move, circle: Circle) -> Rounds[Tensor]:
    """Makes a move and returns what arrives. A rank that is alone makes no move."""
    if circle.size > 1:
        arrived: Tensor = yield move
        return arrived
    data: Tensor = move.data  # type: ignore[attr-defined]
    return data[None] if isinstance(move, AllGather | Gather) else data


def elements(region: Region) -> int:
    """The number of elements."""
    return sum(end - begin for begin, end in region)


def split(flat: Tensor, region: Region) -> Tensors:
    """Splits a flat tensor into one tensor for each parameter of the region."""
    sizes = [end - begin for begin, end in region]
    return list(torch.split(flat[: sum(sizes)], sizes))


def cuts(x: Tensors, region: Region, part: Region) -> Tensors:
    """Returns the numbers of a part of a region, as views."""
    return [
        own[begin - start : end - start] for own, (start, _), (begin, end) in zip(x, region, part)
    ]
