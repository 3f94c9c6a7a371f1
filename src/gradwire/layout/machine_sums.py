"""Sums inside machines first: the steps of one rank, without the work on its data.

my gradients ─ part by part ─► (the machine) ─► mean of my part
                                 another collective: (across machines)
my results   ◄─ every part ─── (the machine) ◄─ mean of my part over all machines

A subclass says what each step does with data; one that only prices the moves has no data.
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
    """Local work where every rank owns a part of its machine's mean. Methods in order of use.

    kept: this rank's parts of the bucket's parameters.
    """

    def __init__(self, bucket: Bucket, rank: int, machines: Machines) -> None:
        self._node, self._cross = machines.node(rank), machines.cross(rank)
        self._local, self._per_node = self._node.ranks.index(rank), machines.per_node
        self.pieces = [cut(p, machines.per_node) for p in bucket.parameters]
        parts = zip(bucket.parameters, self.pieces)
        self.kept = Bucket(tuple(part_of(p, own, self._local) for p, own in parts))

    def rounds(self) -> Rounds[None]:
        """Yields the moves, inside the machine and across machines."""
        arrived = yield replace(self._scatter(), group=self._node)
        told = yield AllGather(self._average(arrived), group=self._cross)
        yield from over(self._cross, self._cross_over(told))
        self._collect((yield AllGather(self._gather(), group=self._node)))

    @abstractmethod
    def _scatter(self) -> AllToAll:
        """Returns the move inside the machine that brings gradients, uncompressed, to the owners
        of their parts."""

    @abstractmethod
    def _average(self, arrived: Tensor) -> Tensor:
        """Computes the owner's mean, in fp32. Returns a message that tells other machines whether
        all was well here."""

    @abstractmethod
    def _cross_over(self, told: Tensor) -> Rounds[None]:
        """Averages this part across machines, compressed, by the rounds of the other collective.
        told: the message of each machine. If one was not well, the values that cross are not
        finite."""

    @abstractmethod
    def _gather(self) -> Tensor:
        """Returns the owner's result, for all ranks of the machine."""

    @abstractmethod
    def _collect(self, messages: Tensor) -> None:
        """Writes the result. Raises PayloadError if a rank found damage."""
