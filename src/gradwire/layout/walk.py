"""A path, task by task, on one rank: whose turn it is, what travels, and what is made of it.

    compress ─► messages ─► moves of messages ─► decompress ─► numbers ─► moves of numbers

What arrives lies in memory that the next move uses again, so numbers are copied, and messages
before they move on. What compressing does with data is the heir's business, which may have none.
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
"""Of each parameter, of a region: 1-D."""
Messages: TypeAlias = "list[list[Tensor]]"
"""Of each leaf, its contributions: 1-D uint8."""


class Walk(ABC):
    """One rank's way along a path; begin each step with `_numbers`, the gradients.

    dtype: in which numbers travel.
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
        """Numbers to messages."""

    @abstractmethod
    def _decompress(self, number: int) -> None:
        """Messages to numbers: their mean."""

    @abstractmethod
    def _finish(self) -> None:
        """The result. PayloadError where this rank found damage."""

    def rounds(self) -> Rounds[None]:
        """The moves this rank makes, in order."""
        for number, task in enumerate(self._tasks):
            before = self._before(number)
            if not (before.is_active or self._before(number + 1).is_active):
                continue  # where one rank has all, others wait for the second step
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
        """Every rank's messages of the same leaves: of each leaf all, in rank order."""
        by_rank = [self._read(part, had) for part in arrived]
        return [[m for own in by_rank for m in own[i]] for i in range(len(had.leaves))]

    def _read(self, data: Tensor, had: Having) -> Messages:
        """One rank's messages, end to end."""
        sizes = [self._plan.layout(leaf).bytes for leaf in had.leaves
                 for _ in range(had.contributions)]  # fmt: skip
        if data.numel() < sum(sizes):
            raise PayloadError(
                f"by the plan {sum(sizes)} bytes come from each rank; {data.numel()} arrived. "
                "Attach the same plan everywhere."
            )
        messages, each = torch.split(data[: sum(sizes)], sizes), had.contributions
        return [list(messages[i * each : (i + 1) * each]) for i in range(len(had.leaves))]

    # -- writing ---------------------------------------------------------------------------

    def _flat(self, number: int, parts: Sequence[Tensor], room: int = 0) -> Tensor:
        """End to end, in the wire's dtype; zeros behind them."""
        total = sum(part.numel() for part in parts)
        data = self._room(f"{number} sent", max(total, room), self._dtype)
        for part, place in zip(parts, torch.split(data[:total], [x.numel() for x in parts])):
            place.copy_(part)
        data[total:].zero_()
        return data

    def _joined(self, number: int, room: int = 0, is_sent: bool = True) -> Tensor:
        """All messages, end to end; where they are not sent, room for those of others."""
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
        """Memory of this bucket alone, as it is needed until the step ends."""
        return self._rooms.room(name, n, dtype, device or self._device)


def _made(move: Move, circle: Circle) -> Rounds[Tensor]:
    """What arrives; a rank moves with nobody where it is alone."""
    if circle.size > 1:
        arrived: Tensor = yield move
        return arrived
    data: Tensor = move.data  # type: ignore[attr-defined]
    return data[None] if isinstance(move, AllGather | Gather) else data


def elements(region: Region) -> int:
    """How many."""
    return sum(end - begin for begin, end in region)


def split(flat: Tensor, region: Region) -> Tensors:
    """Tensors that lie end to end, by parameter."""
    sizes = [end - begin for begin, end in region]
    return list(torch.split(flat[: sum(sizes)], sizes))


def cuts(x: Tensors, region: Region, part: Region) -> Tensors:
    """A part of a region's numbers."""
    return [
        own[begin - start : end - start] for own, (start, _), (begin, end) in zip(x, region, part)
    ]
