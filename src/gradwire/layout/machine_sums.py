"""Sums inside machines first: the steps of one rank, whatever its work is made of.

my gradients ─ part by part ─► (the machine) ─► mean of my part
                                 another collective: (across machines)
my results   ◄─ every part ─── (the machine) ◄─ mean of my part over all machines

What each step does with data is the heir's business, which may have none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from torch import Tensor

from gradwire.buckets import Bucket
from gradwire.groups import Machines
from gradwire.layout.parts import cut, part_of
from gradwire.moves import AllGather, AllToAll, over
from gradwire.strategy import Rounds


class MachineSums(ABC):
    """Local work where every rank owns a part of its machine's mean. In order of use.

    kept: this rank's parts of the bucket's parameters.
    """

    def __init__(self, bucket: Bucket, rank: int, machines: Machines) -> None:
        self._node, self._cross = machines.node(rank), machines.cross(rank)
        self._local, self._per_node = self._node.ranks.index(rank), machines.per_node
        self.pieces = [cut(p, machines.per_node) for p in bucket.parameters]
        parts = zip(bucket.parameters, self.pieces)
        self.kept = Bucket(tuple(part_of(p, own, self._local) for p, own in parts))

    def rounds(self) -> Rounds[None]:
        """The moves, inside the machine and across."""
        arrived = yield replace(self._scatter(), group=self._node)
        told = yield AllGather(self._average(arrived), group=self._cross)
        yield from over(self._cross, self._cross_over(told))
        self._collect((yield AllGather(self._gather(), group=self._node)))

    @abstractmethod
    def _scatter(self) -> AllToAll:
        """The move inside the machine that brings gradients, as they are, to the owners of their
        parts."""

    @abstractmethod
    def _average(self, arrived: Tensor) -> Tensor:
        """The owner's mean, in fp32; a message that says across machines if all was well here."""

    @abstractmethod
    def _cross_over(self, told: Tensor) -> Rounds[None]:
        """Across machines: the mean of this part, compressed, by the other member's rounds. told:
        what each said; where all was not well, what crosses is not finite."""

    @abstractmethod
    def _gather(self) -> Tensor:
        """The owner's result, for all inside the machine."""

    @abstractmethod
    def _collect(self, messages: Tensor) -> None:
        """The result. PayloadError where a rank found damage."""
