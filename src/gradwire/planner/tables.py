"""Tables of the best plans by number of workers and bandwidth, and where the decision changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from gradwire.planner.candidates import Algorithm
from gradwire.planner.choose import Choice, choose
from gradwire.planner.profile import Profile
from gradwire.planner.verdict import Verdict, verdict
from gradwire.planner.whatif import Again
from gradwire.progress import Progress, part, silent
from gradwire.topology import Cluster


@dataclass(frozen=True)
class Cell:
    """The best plan for a number of workers and a bandwidth. seconds: of a step."""

    workers: int
    bits_per_second: float
    seconds: float
    strategy: str
    verdict: Verdict
    lower_bound: float

    @property
    def decision(self) -> str:
        """The text that differs on both sides of a crossover."""
        return self.strategy if self.verdict.kind == "compress" else "do not compress"


class Crossover(NamedTuple):
    """Two neighbours of a table between which the decision changes."""

    before: Cell
    after: Cell


@dataclass(frozen=True)
class Table:
    """The best plans. cells: a row for each number of workers, with a cell for each rate, both
    ascending. rates: bits per second."""

    workers: tuple[int, ...]
    rates: tuple[float, ...]
    cells: tuple[tuple[Cell, ...], ...]

    @property
    def crossovers(self) -> list[Crossover]:
        """The crossovers along the rates, then along the workers."""
        columns = tuple(zip(*self.cells))
        lines = (*self.cells, *columns)
        return [
            Crossover(a, b) for line in lines for a, b in pairwise(line)
            if a.decision != b.decision
        ]  # fmt: skip


def table(
    profile: Profile, workers: Sequence[int], rates: Sequence[float], like: Cluster, *,
    strategies: Sequence[str] | None = None, lanes: Sequence[int] = (1,),
    error_budget: float | None = None, algorithm: Algorithm = "joint",
    progress: Progress = silent,
) -> Table:  # fmt: skip
    """Finds the best plans for every number of workers and every rate of links across hosts.

    rates: bits per second. like: a cluster, from which all else is taken. Other arguments are
    those of `choose`; where one of the strategies does not divide the workers, it is left out.
    Raises PlanError.
    """
    again, rows = Again(profile), list[tuple[Cell, ...]]()
    usable, counts, speeds = again.usable(strategies), sorted(set(workers)), sorted(set(rates))
    for count in counts:
        cluster, row = like.with_workers(count), list[Cell]()
        for rate in speeds:
            number, all_cells = len(rows) * len(speeds) + len(row), len(counts) * len(speeds)
            now = f"{count} workers, {rate / 1e9:g} Gbit/s"
            there = again.on(cluster.with_rate(rate))
            choice = choose(
                there, [text for text in usable if there.measured(text)], lanes=lanes,
                error_budget=error_budget, algorithm=algorithm,
                progress=part(progress, "cells", number, all_cells, now),
            )  # fmt: skip
            row.append(_cell(count, rate, choice))
        rows.append(tuple(row))
        progress("cells", len(rows) * len(speeds), len(counts) * len(speeds))
    return Table(tuple(counts), tuple(speeds), tuple(rows))


def _cell(workers: int, rate: float, choice: Choice) -> Cell:
    best = choice.best
    return Cell(
        workers, rate, best.seconds, str(best.plan.main_strategy), verdict(choice),
        choice.lower_bound,
    )  # fmt: skip
