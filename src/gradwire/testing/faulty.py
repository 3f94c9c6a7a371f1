"""Injects faults: a performer that delays, stalls, fails, corrupts or dies at a given move.

    inject(handle, Die(at=3), rank=1)      # "rank 1 dies at its fourth move"

It wraps any performer and has the same interface, so the code under test does not notice. Use it
in tests, and to rehearse what a job does when a machine is lost.
"""

from __future__ import annotations

import os
import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from gradwire.errors import UsageError
from gradwire.moves import Exchange, Move
from gradwire.runtime.conductor import Conductor
from gradwire.runtime.torch_dist import Performer

if TYPE_CHECKING:
    from gradwire.training.attach import Handle

Arrived: TypeAlias = "Tensor | dict[int, Tensor]"


class Fault:
    """Something that happens around the moves of one lane; moves are counted from 0."""

    def before(self, number: int, move: Move) -> Move:
        """Called before a move is performed. Returns the move to perform instead."""
        return move

    def after(self, number: int, arrived: Arrived) -> Arrived:
        """Called with what arrived. Returns what the collective receives."""
        return arrived


@dataclass(frozen=True)
class Jitter(Fault):
    """Sleeps before moves, with the given probability, for up to seconds_max; the same moves, and
    as long, for the same seed."""

    seconds_max: float
    probability: float = 1.0
    seed: int = 0

    def before(self, number: int, move: Move) -> Move:
        dice = random.Random(self.seed * 1_000_003 + number)
        if dice.random() < self.probability:
            time.sleep(dice.random() * self.seconds_max)
        return move


@dataclass(frozen=True)
class _AtOnce(Fault, ABC):
    at: int

    def before(self, number: int, move: Move) -> Move:
        if number == self.at:
            self.strike()
        return move

    @abstractmethod
    def strike(self) -> None:
        """Do what happens before move `at`."""


@dataclass(frozen=True)
class Stall(_AtOnce):
    """Sleeps once, for `seconds`, before move `at`."""

    seconds: float

    def strike(self) -> None:
        time.sleep(self.seconds)


@dataclass(frozen=True)
class Die(_AtOnce):
    """Kills this process, before move `at`, as the kernel's out-of-memory killer does."""

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Fail(_AtOnce):
    """Raises this error once, before move `at`; on that rank it reaches `backward()`."""

    error: Exception

    def strike(self) -> None:
        raise self.error


@dataclass(frozen=True)
class Corrupt(Fault):
    """Changes what is sent (sent=True: every receiver gets it) or what arrived, at move `at`.

    change: gets the tensor and changes it in place; for an exchange, it gets each one.
    """

    at: int
    change: Callable[[Tensor], None]
    sent: bool = True

    def before(self, number: int, move: Move) -> Move:
        if number != self.at or not self.sent:
            return move
        if isinstance(move, Exchange):
            return replace(move, sends={to: self._changed(x) for to, x in move.sends.items()})
        return replace(move, data=self._changed(move.data))  # type: ignore[attr-defined, call-arg]

    def _changed(self, data: Tensor) -> Tensor:
        data = data.clone()
        self.change(data)
        return data

    def after(self, number: int, arrived: Arrived) -> Arrived:
        if number == self.at and not self.sent:
            for data in arrived.values() if isinstance(arrived, dict) else (arrived,):
                self.change(data)
        return arrived


class FaultyPerformer:
    """A performer that wraps another one and injects faults."""

    def __init__(self, inner: Performer, faults: Sequence[Fault]) -> None:
        self._inner, self._faults, self._number = inner, faults, 0
        self._now = inner  # the performer for the present bucket's device

    def at(self, device: torch.device) -> FaultyPerformer:
        """See `Performer.at`; moves on all devices are counted together."""
        self._now = self._inner.at(device)
        return self

    def perform(self, move: Move, label: str) -> Arrived:
        """See `Performer.perform`."""
        number, self._number = self._number, self._number + 1
        for fault in self._faults:
            move = fault.before(number, move)
        arrived = self._now.perform(move, label)
        for fault in self._faults:
            arrived = fault.after(number, arrived)
        return arrived

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now, name)  # everything else is passed through


def inject(
    attached: Handle | Conductor, *faults: Fault, rank: int | None = None, lane: int | None = None
) -> None:
    """Inject faults into the performers of one rank (None: every rank) and lane (None: all).

    attached: what `gradwire.attach` returned, whose later plans have the faults, too; or a
    session's conductor, for the plan in force alone. Each lane counts its moves from this call on.
    Not collective; call it between two steps. Raises UsageError for anything else.
    """
    if not isinstance(attached, Conductor) and not hasattr(attached, "_session"):
        raise UsageError(
            "faults are injected into what gradwire.attach returned, or a conductor; got "
            f"{type(attached).__name__}. Pass the handle."
        )
    session = None if isinstance(attached, Conductor) else attached._session
    conductor = attached if isinstance(attached, Conductor) else attached._session.conductor
    performers = conductor.performers if session is None else session.performers
    for number, performer in enumerate(performers):
        if rank in (None, performer.rank) and lane in (None, number):
            faulty: Any = FaultyPerformer(performer, faults)
            performers[number] = faulty
            if session is not None and session.circle is performer:
                session.circle = faulty
            if number < len(conductor._lanes):
                conductor.performers[number] = conductor._lanes[number].performer = faulty
