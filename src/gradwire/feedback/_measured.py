"""Feedback that asks all ranks, now and then, for a few numbers."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from gradwire.strategy import Compressor, Encoder, Feedback, Key, State, StepInfo


class Measured(Feedback):
    """In every `every`-th step, before anything is encoded, numbers are averaged over the ranks.

    They are few: their bytes are not in a strategy's price.
    """

    every: ClassVar[int]

    @abstractmethod
    def encoder(self, compressor: Compressor) -> Encoder:
        """It and a compressor at work, in place."""

    @abstractmethod
    def measure(self, x: Tensor, state: State, info: StepInfo, key: Key) -> Tensor:
        """This rank's numbers of one parameter: 1-D, as many on every rank. Changes nothing."""

    @abstractmethod
    def learn(self, mean: Tensor, state: State, world: int) -> None:
        """Their mean over the ranks, which is finite, into the state."""
