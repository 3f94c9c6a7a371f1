"""A row's task and what it measured: plain values that are kept in JSON files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from gradwire.demo.rows import Method


@dataclass(frozen=True)
class Task:
    """One row's training, the same for all its ranks.

    A row ends after `steps` steps and `least_seconds` of training; with a `target_loss` only once
    the held-out loss has reached it, or after `most_seconds`.
    """

    method: Method
    strategy: str
    tokens: str  # a file, as Corpus.save writes it
    result: str  # a file that rank 0 writes
    steps: int
    steps_per_evaluation: int
    least_seconds: float = 0.0
    target_loss: float | None = None
    most_seconds: float = 0.0
    lanes: int | None = None
    hidden: int = 650
    words_per_stream: int = 16  # in a step, which back-propagates through them
    streams_per_rank: int = 8
    held_out_streams: int = 16
    held_out_length: int = 101
    learning_rate: float = 0.3
    momentum: float = 0.9
    seed: int = 1

    @property
    def held_out_words(self) -> int:
        """The number of words that the loss is measured on."""
        return self.held_out_streams * self.held_out_length

    def save(self, path: Path) -> None:
        """Writes it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @staticmethod
    def load(path: Path) -> Task:
        """Reads what `save` wrote."""
        return Task(**json.loads(path.read_text()))


class Point(NamedTuple):
    """The held-out loss (nats per word) after some steps and so many seconds of training."""

    step: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class Measured:
    """What one row did. Clocks and counters stand still during evaluations.

    Attributes:
        step_seconds: (ranks, steps): how long each rank took for each step.
        bytes_sent: for each interval between evaluations, its steps, and the bytes that left a
            host's interface, the mean over hosts.
        curve: the held-out loss, from step 0 on.
        parameters: the number of the model's parameters.
    """

    step_seconds: list[list[float]]
    bytes_sent: list[tuple[int, float]]  # (steps, bytes)
    curve: list[Point]
    parameters: int

    def save(self, path: Path) -> None:
        """Writes it as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(path: Path) -> Measured:
        """Reads what `save` wrote."""
        read = json.loads(path.read_text())
        return Measured(
            step_seconds=read["step_seconds"],
            bytes_sent=[(int(steps), sent) for steps, sent in read["bytes_sent"]],
            curve=[Point(*point) for point in read["curve"]],
            parameters=read["parameters"],
        )
