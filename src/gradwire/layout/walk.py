"""A path, task by task, on one rank: whose turn it is, and what travels.

    compress ─► messages ─► moves of messages ─► decompress ─► numbers ─► moves of numbers

What a task does with data is the heir's business, which may have none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradwire.layout.stage_moves import Messages, Site, StageMoves, Tensors, alone
from gradwire.layout.stages import StageLayout
from gradwire.local import Stages
from gradwire.moves import Move


class Walk(Stages):
    """One rank's way along a path; begin each step with `_numbers`, the gradients."""

    def __init__(
        self, plan: StageLayout, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._plan, self._rank, self._tasks = plan, rank, plan.path.tasks
        self._moves = StageMoves(plan, dtype, device)
        self._take: Callable[[Tensor], None] | None = None
        self._numbers: Tensors = []
        self._messages: Messages = []

    @abstractmethod
    def _compress(self, number: int) -> None:
        """Numbers to messages."""

    @abstractmethod
    def _decompress(self, number: int) -> None:
        """Messages to numbers: their mean."""

    def moves(self) -> Iterator[Move]:
        for number, task in enumerate(self._tasks):
            before, after = (self._plan.before(self._rank, number + i) for i in (0, 1))
            if not (before.is_active or after.is_active):
                continue  # where one rank has all, others wait for the second step
            if task.name == "compress":
                self._compress(number)
            elif task.name == "decompress":
                self._decompress(number)
            else:
                move = self._move(number)
                if self._plan.circle(self._rank, task).size > 1:
                    yield move
                else:
                    self.take(alone(move))

    def take(self, arrived: Tensor) -> None:
        assert self._take is not None, "take follows a move"
        self._take(arrived)

    def _move(self, number: int) -> Move:
        rank, task = self._rank, self._tasks[number]
        at = Site(number, rank, self._plan.circle(rank, task), self._plan.root(rank, task))
        if self._plan.before(rank, number).leaves:
            move, read = self._moves.of_messages(at, self._messages)
            self._take = lambda arrived: setattr(self, "_messages", read(arrived))
        else:
            move, of_numbers = self._moves.of_numbers(at, self._numbers)
            self._take = lambda arrived: setattr(self, "_numbers", of_numbers(arrived))
        return move
