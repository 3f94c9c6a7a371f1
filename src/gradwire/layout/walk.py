"""A path, task by task, on one rank: whose turn it is, and what travels.

    compress ─► messages ─► moves of messages ─► decompress ─► numbers ─► moves of numbers

What a task does with data is the heir's business, which may have none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor

from gradwire.layout.stage_moves import Messages, Site, StageMoves, Tensors, alone
from gradwire.layout.stages import StageLayout
from gradwire.moves import Move


class Walk(ABC):
    """One rank's way along a path; begin each step with `_numbers`, the gradients."""

    def __init__(
        self, plan: StageLayout, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._plan, self._rank, self._tasks = plan, rank, plan.path.tasks
        self._moves = StageMoves(plan, dtype, device)
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

    def rounds(self) -> Generator[Move, Any, None]:
        """The moves this rank makes, in order."""
        for number, task in enumerate(self._tasks):
            before, after = (self._plan.before(self._rank, number + i) for i in (0, 1))
            if not (before.is_active or after.is_active):
                continue  # where one rank has all, others wait for the second step
            if task.name == "compress":
                self._compress(number)
            elif task.name == "decompress":
                self._decompress(number)
            else:
                move, take = self._move(number)
                several = self._plan.circle(self._rank, task).size > 1
                take((yield move) if several else alone(move))
        self._finish()

    def _move(self, number: int) -> tuple[Move, Callable[[Tensor], None]]:
        """A task's move, and what is to be done with what it brings."""
        rank, task = self._rank, self._tasks[number]
        at = Site(number, rank, self._plan.circle(rank, task), self._plan.root(rank, task))
        if self._plan.before(rank, number).leaves:
            move, read = self._moves.of_messages(at, self._messages)
            return move, lambda arrived: setattr(self, "_messages", read(arrived))
        move, of_numbers = self._moves.of_numbers(at, self._numbers)
        return move, lambda arrived: setattr(self, "_numbers", of_numbers(arrived))
