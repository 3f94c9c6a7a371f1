"""Runs all rows, one after the other, on one cluster: the same network for all."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradwire.demo import corpus
from gradwire.demo.rows import DDP, Row, contestants, sent_share
from gradwire.demo.task import Measured, Point, Task
from gradwire.errors import LabError
from gradwire.lab import Cluster
from gradwire.lab.guarded import with_package_on_path
from gradwire.progress import Progress, silent, within

_PARAMETERS = {650: 19_780_400, 325: 8_205_200}
_GUESSED_COMPUTE_SECONDS = 0.25
_GUESSED_START_SECONDS = 8.0  # to start a row's processes, build its model and evaluate
_FEWEST_STEPS = 4
_LAST_LINES = 15


@dataclass(frozen=True)
class Setting:
    """What the demo is to run: the cluster, the rows, and how long they train.

    Attributes:
        hosts, rate, loopback: the cluster, as `gradwire.lab.Cluster` takes them.
        strategies: gradwire's rows; empty: those of the documentation.
        lanes: the number of lanes of gradwire's rows.
        quick: fewer rows, a smaller model.
        most_steps: the most steps of a row, which does fewer where the network is slow.
        dense_seconds: about how long a row that sends everything may train.
        patience: how long others may take to reach DDP fp32's loss, as a multiple of its time.
    """

    hosts: int = 4
    rate: str = "1gbit"
    loopback: bool = False
    strategies: tuple[str, ...] = ()
    lanes: int | None = None
    quick: bool = False
    most_steps: int = 30
    dense_seconds: float = 42.0
    patience: float = 1.25

    @property
    def hidden(self) -> int:
        """Width of the model's layers."""
        return 325 if self.quick else 650

    @property
    def rows(self) -> list[Row]:
        """The rows to run. Raises StrategyError for a wrong strategy."""
        return contestants(self.strategies, quick=self.quick)

    def steps(self, bits_per_second: float | None) -> int:
        """Returns the steps of every row: as many as DDP fp32 can do in about `dense_seconds`.

        bits_per_second: of the links; None if they are not shaped.
        """
        dense = self._wire_seconds(bits_per_second) + _GUESSED_COMPUTE_SECONDS
        return min(self.most_steps, max(_FEWEST_STEPS, int(self.dense_seconds / dense)))

    def seconds(self, row: Row, bits_per_second: float | None) -> float:
        """Guesses how long a row takes, where four hosts share two cores."""
        step = sent_share(row) * self._wire_seconds(bits_per_second) + _GUESSED_COMPUTE_SECONDS
        return _GUESSED_START_SECONDS + self.steps(bits_per_second) * step

    def _wire_seconds(self, bits_per_second: float | None) -> float:
        """The seconds that the wire needs for a step that sends everything in fp32."""
        share = 2 * (self.hosts - 1) / self.hosts
        return 32 * _PARAMETERS[self.hidden] * share / bits_per_second if bits_per_second else 0.0


QUICK = Setting(quick=True, most_steps=16, dense_seconds=12.0)


@dataclass(frozen=True)
class Watch:
    """Where a row's progress and its warnings (`note`) go. now: which row it is."""

    progress: Progress
    now: str
    note: Callable[[str], object]


@dataclass(frozen=True)
class Ran:
    """One row and what it did."""

    row: Row
    measured: Measured


def run(
    setting: Setting, cluster: Cluster, progress: Progress = silent,
    note: Callable[[str], object] = lambda line: None,
) -> list[Ran]:  # fmt: skip
    """Runs every row on an entered cluster.

    progress: receives how far the rows are, by seconds that are guessed. note: receives what rank
    0 warns, each line once, though every row may repeat it.

    Raises:
        StrategyError: a strategy is wrong; nothing has run yet.
        LabError: a rank failed; the message has the last lines of all ranks.
    """
    rows = setting.rows
    with tempfile.TemporaryDirectory(prefix="gradwire-demo-") as folder:
        progress("reading the text")
        task = _task(setting, cluster, Path(folder))
        bits = None if cluster.loopback else cluster.bits_per_second
        guessed = [setting.seconds(row, bits) for row in rows]
        ran, noted = list[Ran](), dict[str, None]()

        def once(line: str) -> None:
            if line not in noted:
                noted[line] = None
                note(line)

        for number, row in enumerate(rows):
            before = sum(guessed[:number]), guessed[number], sum(guessed)
            now = f"row {number + 1} of {len(rows)}, {row.label}"
            watch = Watch(within(progress, "training", *before), now, once)
            ran.append(Ran(row, _run_row(row, _limited(task, row, ran, setting), cluster, watch)))
        return ran


def target_loss(ran: Sequence[Ran]) -> float | None:
    """Returns the loss that DDP fp32 ended with, rounded up to a hundredth; None before it ran."""
    ended = [each.measured.curve[-1].loss for each in ran if each.row == DDP]
    return math.ceil(ended[0] * 100) / 100 if ended else None


def _task(setting: Setting, cluster: Cluster, folder: Path) -> Task:
    """Returns the task that all rows share, and writes the text to the folder."""
    steps = setting.steps(None if cluster.loopback else cluster.bits_per_second)
    task = Task(
        method="alone",
        strategy="",
        tokens=str(folder / "text.pt"),
        result=str(folder / "result.json"),
        steps=steps,
        steps_per_evaluation=max(1, steps // 6),
        least_seconds=2.0 if setting.quick else 5.0,
        lanes=setting.lanes,
        hidden=setting.hidden,
    )
    corpus.build(held_out=task.held_out_words).save(Path(task.tokens))
    return task


def _limited(task: Task, row: Row, ran: Sequence[Ran], setting: Setting) -> Task:
    """Returns a row's own task: rows after DDP fp32 go on until its loss, or `patience` times its
    time."""
    target = target_loss(ran)
    task = replace(task, method=row.method, strategy=row.strategy)
    if target is None:
        return task
    seconds = next(each.measured.curve[-1].seconds for each in ran if each.row == DDP)
    return replace(task, target_loss=target, most_seconds=setting.patience * seconds)


def _run_row(row: Row, task: Task, cluster: Cluster, watch: Watch) -> Measured:
    path = Path(task.result).with_name("task.json")
    task.save(path)
    said: list[str] = []

    watch.progress("", 0.0, 1.0, watch.now)

    def on_line(rank: int, stream: str, line: str) -> None:
        if rank == 0 and stream == "stdout" and line.startswith("{"):
            point = Point(**json.loads(line))
            told = f"{watch.now}: step {point.step}, loss {point.loss:.3f}"
            watch.progress("", point.step, task.steps, told)
            return
        said.append(f"[{rank}] {line}")
        if rank == 0:
            watch.note(line)

    # -P: a file of the user's named like a module of Python's must not be taken for it.
    command = [sys.executable, "-P", "-m", "gradwire.demo.worker", str(path)]
    # torch warns once per connection that hosts of the lab have no name in any DNS.
    env = {
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONPATH": with_package_on_path(os.environ)["PYTHONPATH"],
    }
    code = cluster.run(command, env=env, on_line=on_line)
    if code != 0:
        last = "\n".join(said[-_LAST_LINES:])
        raise LabError(
            f"every rank of a row must end with exit code 0; one of '{row.label}' ended with "
            f"{code}. The last lines of the ranks:\n{last}"
        )
    return Measured.load(Path(task.result))
