"""The ranks of each machine, and the groups of ranks that follow from it.

             node (0, 1)       node (2, 3)
             ┌──────────┐      ┌──────────┐
cross (0, 2) │  rank 0  │      │  rank 2  │   part 0 of every machine
cross (1, 3) │  rank 1  │      │  rank 3  │   part 1
             └──────────┘      └──────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gradwire.errors import UsageError


@dataclass(frozen=True)
class Group:
    """Ranks that take part in the same moves, ascending; an index is the rank in the group.

    name: "node", the ranks of one machine, or "cross", one rank of every machine.
    """

    name: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.ranks))})"


@dataclass(frozen=True)
class Machines:
    """The ranks of each machine, equally many on each, ascending."""

    ranks: tuple[tuple[int, ...], ...]

    @staticmethod
    def even(world: int, per_node: int) -> Machines:
        """Returns machines with per_node successive ranks each; UsageError if some are left."""
        if world % per_node:
            raise _uneven(f"{world} ranks are not a multiple of per_node={per_node}")
        first = range(0, world, per_node)
        return Machines(tuple(tuple(range(r, r + per_node)) for r in first))

    @staticmethod
    def named(names: Sequence[str]) -> Machines:
        """Returns the machines, by each rank's machine name; UsageError if sizes differ."""
        found: dict[str, list[int]] = {}
        for rank, name in enumerate(names):
            found.setdefault(name, []).append(rank)
        if len({len(own) for own in found.values()}) > 1:
            few_and_many = sorted(found, key=lambda name: len(found[name]))
            few, many = few_and_many[0], few_and_many[-1]
            raise _uneven(f"'{few}' has {len(found[few])}, '{many}' has {len(found[many])}")
        return Machines(tuple(tuple(own) for own in found.values()))

    @property
    def per_node(self) -> int:
        """The number of ranks on one machine."""
        return len(self.ranks[0])

    @property
    def world(self) -> int:
        """The number of all ranks."""
        return len(self.ranks) * self.per_node

    def node(self, rank: int) -> Group:
        """Returns the group of a rank's machine."""
        machine, _ = self._places[rank]
        return Group("node", self.ranks[machine])

    def cross(self, rank: int) -> Group:
        """Returns the group of one rank of every machine: those with this rank's local number."""
        return self._cross[self._places[rank][1]]

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """The machine of each rank, and its local number there."""
        return {rank: (m, i) for m, own in enumerate(self.ranks) for i, rank in enumerate(own)}

    @cached_property
    def _cross(self) -> list[Group]:
        """The groups across machines, by the local number of their ranks."""
        return [Group("cross", tuple(sorted(own))) for own in zip(*self.ranks)]

    def groups(self) -> list[Group]:
        """Returns all groups, in the order in which every rank creates them."""
        nodes = [self.node(own[0]) for own in self.ranks]
        return [*nodes, *(self.cross(rank) for rank in self.ranks[0])]


def _uneven(facts: str) -> UsageError:
    return UsageError(
        f"summing inside machines first needs the same number of ranks on each; {facts}. "
        "Start the same number on each, or give the collective per_node=1."
    )
