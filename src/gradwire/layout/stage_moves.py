"""The moves of a path: of numbers, and of messages that were not yet added up.

Each is a move and what makes the next data of what arrives. What arrives lies in memory that the
next move uses again, so numbers are copied, and messages before they move on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

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

Tensors: TypeAlias = "list[Tensor]"
"""Of each parameter, of a region: 1-D."""
Messages: TypeAlias = "list[list[Tensor]]"
"""Of each leaf, its contributions: 1-D uint8."""


class Site(NamedTuple):
    """Says where in the path a move is: its number, on which rank, with whom."""

    number: int
    rank: int
    circle: Circle
    root: int

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root of the move."""
        return self.root == self.circle.place


@dataclass
class StageMoves:
    """Makes them. dtype: in which numbers travel."""

    plan: StageLayout
    dtype: torch.dtype
    device: torch.device
    _rooms: kernels.Scratch = field(default_factory=kernels.Scratch)

    def of_numbers(
        self, at: Site, x: Tensors
    ) -> tuple[Move, Callable[[Tensor], Tensors]]:  # fmt: skip
        """A move of numbers, and how to read what arrives."""
        circle, group = at.circle, at.circle.group
        had, next_ = self._before(at), self._after(at)
        name = self.plan.path.tasks[at.number].name
        if name == "reduce_scatter":
            owners = self.plan.split(had.region, circle.size)
            data = self._flat(at, [cut for own in owners for cut in cuts(x, had.region, own)])
            sizes = tuple(map(elements, owners))
            scatter = ReduceScatter(data, sizes, circle.place, group=group)
            return scatter, lambda own: self._mean(at, own, next_.region)
        if name == "all_gather":
            theirs = [self.plan.before(r, at.number).region for r in circle.ranks]
            data = self._flat(at, x, room=max(map(elements, theirs)))
            return AllGather(data, group=group), lambda all_: self._whole(at, all_, theirs)
        if name == "all_reduce":
            reduced = AllReduce(self._flat(at, x), group=group)
            return reduced, lambda total: self._mean(at, total, next_.region)
        data = self._flat(at, x if had.is_active else [], room=elements(had.region))
        if name == "broadcast":
            sent = Broadcast(data, at.root, circle.place, group=group)
            return sent, lambda root: self._kept(at, root, next_.region)
        summed = Reduce(data, at.root, circle.place, group=group)
        return summed, lambda total: self._mean(at, total, next_.region) if at.is_root else []

    def of_messages(
        self, at: Site, messages: Messages
    ) -> tuple[Move, Callable[[Tensor], Messages]]:
        """A move of messages, and how to read what arrives."""
        circle, group = at.circle, at.circle.group
        had, name = self._before(at), self.plan.path.tasks[at.number].name
        if name == "broadcast":
            data = self._joined(at, messages if at.is_root else [], self.plan.bytes(had))
            sent = Broadcast(data, at.root, circle.place, group=group)
            return sent, lambda root: self._read(root, had)
        if name == "all_gather" and self.plan.second(at.number) is not None:
            theirs = [self.plan.before(r, at.number) for r in circle.ranks]
            data = self._joined(at, messages, max(map(self.plan.bytes, theirs)))
            return AllGather(data, group=group), lambda all_: [
                own for part, theirs_ in zip(all_, theirs) for own in self._read(part, theirs_)
            ]
        data = self._joined(at, messages)
        if name == "all_gather":
            return AllGather(data, group=group), lambda all_: self._added(all_, had)
        if name == "gather":
            gathered = Gather(data, at.root, circle.place, group=group)
            return gathered, lambda all_: self._added(all_, had) if at.is_root else []
        return self._to_owners(at, data, had)

    def _to_owners(
        self, at: Site, data: Tensor, had: Having
    ) -> tuple[Move, Callable[[Tensor], Messages]]:
        n, index = at.circle.size, at.circle.place
        sizes = tuple(
            self.plan.bytes_of(leaves, had.contributions) for leaves in self.plan.chunks(had, n)
        )
        own = replace(had, leaves=self.plan.chunks(had, n)[index])
        move = AllToAll(data, sizes, (sizes[index],) * n, index, alike=True, group=at.circle.group)
        return move, lambda parts: self._added(parts.view(n, -1), own)

    # -- reading ---------------------------------------------------------------------------

    def _mean(self, at: Site, total: Tensor, region: Region) -> Tensors:
        mean = self._room(at, "mean", total.numel(), torch.float32)
        torch.div(total, at.circle.size, out=mean)
        return split(mean, region)

    def _kept(self, at: Site, numbers: Tensor, region: Region) -> Tensors:
        return split(self._room(at, "kept", numbers.numel(), self.dtype).copy_(numbers), region)

    def _whole(self, at: Site, arrived: Tensor, theirs: Sequence[Region]) -> Tensors:
        region = self._after(at).region
        whole = split(self._room(at, "whole", elements(region), self.dtype), region)
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
        sizes = [self.plan.layout(leaf).bytes for leaf in had.leaves
                 for _ in range(had.contributions)]  # fmt: skip
        if data.numel() < sum(sizes):
            raise PayloadError(
                f"by the plan {sum(sizes)} bytes come from each rank; {data.numel()} arrived. "
                "Attach the same plan everywhere."
            )
        messages, each = torch.split(data[: sum(sizes)], sizes), had.contributions
        return [list(messages[i * each : (i + 1) * each]) for i in range(len(had.leaves))]

    # -- writing ---------------------------------------------------------------------------

    def _before(self, at: Site) -> Having:
        return self.plan.before(at.rank, at.number)

    def _after(self, at: Site) -> Having:
        return self.plan.before(at.rank, at.number + 1)

    def _flat(self, at: Site, parts: Sequence[Tensor], room: int = 0) -> Tensor:
        """End to end, in the wire's dtype."""
        total = sum(part.numel() for part in parts)
        data = self._room(at, "sent", max(total, room), self.dtype)
        for part, place in zip(parts, torch.split(data[:total], [x.numel() for x in parts])):
            place.copy_(part)
        return data

    def _joined(self, at: Site, messages: Messages, room: int = 0) -> Tensor:
        parts = [message for own in messages for message in own]
        total = sum(part.numel() for part in parts)
        data = self._room(at, "sent", max(total, room), torch.uint8)
        if parts:
            torch.cat(parts, out=data[:total])
        return data

    def _room(self, at: Site, what: str, n: int, dtype: torch.dtype) -> Tensor:
        return self._rooms.room(f"{at.number} {what}", n, dtype, self.device)


def alone(move: Move) -> Tensor:
    """What arrives where a rank moves with nobody."""
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
