"""Sums inside machines first: the steps of one rank, whatever its work is made of.

my gradients ─ part by part ─► (the machine) ─► mean of my part
                                 another collective: (across machines)
my results   ◄─ every part ─── (the machine) ◄─ mean of my part over all machines

What each step does with data is the heir's business, which may have none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from gradwire.moves import AllGather, AllToAll
from gradwire.strategy import Rounds


class MachineSums(ABC):
    """Local work where every rank owns a part of its machine's mean. In order of use."""

    def rounds(self) -> Rounds[None]:
        """The moves, inside the machine and across."""
        told = yield self._average((yield self._scatter()))
        if self._all_well(told):
            yield from self._cross_over()
        self._collect((yield self._gather()))

    @abstractmethod
    def _scatter(self) -> AllToAll:
        """The move inside the machine that brings gradients, as they are, to the owners of their
        parts."""

    @abstractmethod
    def _average(self, arrived: Tensor) -> AllGather:
        """The owner's mean, in fp32; then, across machines, whether all was well here."""

    @abstractmethod
    def _all_well(self, told: Tensor) -> bool:
        """Whether it was everywhere. If not, nothing crosses: the step is spoiled, or ends in
        PayloadError where `_collect` is."""

    @abstractmethod
    def _cross_over(self) -> Rounds[None]:
        """Across machines: the mean of this part, compressed, by the other member's rounds."""

    @abstractmethod
    def _gather(self) -> AllGather:
        """The move inside the machine that brings every owner's result to all."""

    @abstractmethod
    def _collect(self, messages: Tensor) -> None:
        """The result. PayloadError where a rank found damage."""
