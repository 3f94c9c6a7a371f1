"""What each rank holds before each task of a path: known without data, the same on every rank.

    whole ─ reduce_scatter@node ─► my part ─ compress ─► leaf, leaf ─ all_to_all@cross ─► my leaf
          ◄─ all_gather@node ─────         ◄─ decompress ───────── ◄─ all_gather@cross ─

A region is a (begin, end) pair for each parameter. Compressing cuts a region into leaves, one for
each message, as many as the moves up to the next decompress have to tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

from gradwire.buckets import Bucket
from gradwire.groups import Group, Machines
from gradwire.layout.message import Layout
from gradwire.layout.pieces import Pieces
from gradwire.strategy import Compressor
from gradwire.tasks import SECOND, Path, Task

Region: TypeAlias = "tuple[tuple[int, int], ...]"


class Leaf(NamedTuple):
    """The content of one message. names: the names on which each parameter's dice depend."""

    region: Region
    names: tuple[str, ...]


class Circle(NamedTuple):
    """The ranks that make a move together; `place` is this rank's index among them.

    root: the index of the rank that gets all, the same for every bucket. Across machines it
    differs from one local rank to the next.
    """

    group: Group | None
    ranks: tuple[int, ...]
    place: int
    root: int = 0

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.place == self.root


class Having(NamedTuple):
    """What a rank holds: numbers of a region, or `contributions` messages of each leaf.

    voice: the first of the ranks that hold exactly the same; they draw the same dice.
    """

    region: Region
    voice: int
    leaves: tuple[Leaf, ...] = ()
    contributions: int = 1
    is_active: bool = True


class StageLayout:
    """What every rank holds along a path; answers are cached. machines: None if no task needs
    them."""

    def __init__(
        self, path: Path, bucket: Bucket, world: int, compressor: Compressor,
        machines: Machines | None = None,
    ) -> None:  # fmt: skip
        self.path, self.bucket, self.world = path, bucket, world
        self.compressor, self.machines = compressor, machines
        self._everybody = tuple(range(world))
        self.before, self._leaves = cache(self._before), cache(self._cut_up)
        self.circle, self.split = cache(self._circle), cache(self._split)
        self.layout = cache(self._layout)

    def _circle(self, rank: int, task: Task) -> Circle:
        """Returns the ranks that make a move with this rank."""
        if not task.at or self.machines is None:
            return Circle(None, self._everybody, rank)
        node, cross = self.machines.node(rank), self.machines.cross(rank)
        group = node if task.at == "node" else cross
        everybody = None if len(group.ranks) == self.world else group
        root = node.ranks.index(rank) % len(group.ranks) if task.at == "cross" else 0
        return Circle(everybody, group.ranks, group.ranks.index(rank), root)

    def _layout(self, leaf: Leaf) -> Layout:
        """Returns the layout of a leaf's message."""
        claims, dtype = self.compressor.claims, self.bucket.dtype
        return Layout.of([claims(end - begin, dtype) for begin, end in leaf.region])

    def bytes(self, having: Having) -> int:
        """Returns the size of all messages in bytes."""
        return having.contributions * sum(self.layout(leaf).bytes for leaf in having.leaves)

    def _before(self, rank: int, number: int) -> Having:
        """Returns what a rank holds before a task, or at the end if number is len(path.tasks)."""
        if number:
            return self._after(rank, number - 1)
        return Having(tuple((0, n) for n in self.bucket.sizes), rank)

    def second(self, number: int) -> int | None:
        """Returns the number of the task whose second half this task is, or None."""
        tasks, waiting = self.path.tasks, list[int]()
        for i, task in enumerate(tasks[: number + 1]):
            if task.name in SECOND:
                waiting.append(i)
            elif waiting and task == (SECOND[tasks[waiting[-1]].name], tasks[waiting[-1]].at):
                first = waiting.pop()
                if i == number:
                    return first
        return None

    def _after(self, rank: int, number: int) -> Having:
        had, task = self.before(rank, number), self.path.tasks[number]
        if task.name == "compress":
            return had._replace(leaves=self._leaves(number, had.region))
        if task.name == "decompress":
            region = _together([leaf.region for leaf in had.leaves])
            return had._replace(region=region, leaves=(), contributions=1)
        circle = self.circle(rank, task)
        if task.name in _FOR_ALL:
            voices = [self.before(r, number).voice for r in circle.ranks]
            had = had._replace(voice=min(voices))
        return self._after_move(rank, number, had, circle)

    def _after_move(self, rank: int, number: int, had: Having, circle: Circle) -> Having:
        task, first = self.path.tasks[number], self.second(number)
        if first is not None:
            had = had._replace(is_active=self.before(rank, first).is_active)
            if task.name == "broadcast":
                return had
            theirs = [self.before(r, number) for r in circle.ranks]
            if had.leaves:
                return had._replace(leaves=tuple(leaf for h in theirs for leaf in h.leaves))
            return had._replace(region=_together([h.region for h in theirs]))
        if had.leaves:
            had = had._replace(contributions=had.contributions * circle.size)
        if task.name in ("reduce", "gather"):
            return had._replace(is_active=had.is_active and circle.is_root)
        if task.name == "all_to_all":
            return self.chunks(had, circle.size)[circle.place]
        if task.name == "reduce_scatter":
            return had._replace(region=self.split(had.region, circle.size)[circle.place])
        return had

    @staticmethod
    def chunks(having: Having, n: int) -> list[Having]:
        """Returns the leaves of each of n owners."""
        leaves, each = having.leaves, len(having.leaves) // n
        return [having._replace(leaves=leaves[r * each : (r + 1) * each]) for r in range(n)]

    def _split(self, region: Region, n: int) -> list[Region]:
        """Returns each of n owners' part of a region."""
        cuts = [
            Pieces.of(p.name, end - begin, n)
            for p, (begin, end) in zip(self.bucket.parameters, region)
        ]
        return [
            tuple(
                (begin + cut.of_owner(r)[0], begin + cut.of_owner(r)[1])
                for (begin, _), cut in zip(region, cuts)
            )
            for r in range(n)
        ]

    def _cut_up(self, number: int, region: Region) -> tuple[Leaf, ...]:
        """Cuts a region into leaves: equal ones on all ranks with equal regions, as a task's
        circles are of one size."""
        regions = [region]
        for task in self._until_decompress(number):
            if task.name == "all_to_all":
                n = self.circle(0, task).size
                regions = [part for whole in regions for part in self.split(whole, n)]
        names = self._names(number, region)
        if len(regions) == 1:
            return (Leaf(region, names),)
        bare = [Leaf(r, ()) for r in regions]
        places = [{i: at for at, i in enumerate(in_order(bare, p))} for p in range(len(names))]
        return tuple(
            Leaf(r, tuple(f"{name}/{place[i]}" for name, place in zip(names, places)))
            for i, r in enumerate(regions)
        )

    def _until_decompress(self, number: int) -> Sequence[Task]:
        rest = self.path.tasks[number:]
        return rest[: [task.name for task in rest].index("decompress")]

    def _names(self, number: int, region: Region) -> tuple[str, ...]:
        site = self.site(number)
        again = f"#{site}" if site else ""
        return tuple(
            (p.name if (begin, end) == (0, p.elements) else f"{p.name}[{begin}:{end}]") + again
            for p, (begin, end) in zip(self.bucket.parameters, region)
        )

    def names(self, rank: int, number: int) -> tuple[str, ...]:
        """Returns the names on which the dice of a compress task depend."""
        return self._names(number, self.before(rank, number).region)

    def holders(self, rank: int, number: int) -> int:
        """Returns the number of active ranks that hold the same region before a task."""
        own = self.before(rank, number).region
        having = (self.before(r, number) for r in range(self.world))
        return sum(had.is_active and had.region == own for had in having)

    def site(self, number: int) -> int:
        """Returns the number of compress tasks before a task."""
        return sum(task.name == "compress" for task in self.path.tasks[:number])


def in_order(leaves: Sequence[Leaf], p: int) -> list[int]:
    """Returns the indices of the leaves, sorted by where they begin in parameter p."""
    return sorted(range(len(leaves)), key=lambda i: leaves[i].region[p])


def _together(regions: Sequence[Region]) -> Region:
    """Joins neighbouring regions into one."""
    ends = zip(*regions)
    return tuple((min(b for b, _ in own), max(e for _, e in own)) for own in ends)


_FOR_ALL = ("all_reduce", "all_gather", "broadcast")
"""Moves after which all ranks that took part hold the same."""
