"""Searches each bucket's option for a short step, and bounds how much shorter it could be.

    found = search([Alternatives(ready, options), ...], executor)
    found.choice, found.seconds, found.lower_bound

1. Options that need no less than another of any resource are dropped. With one lane of the
   conductor and enough processors this loses nothing; else it is a heuristic: if lanes share a
   link, a stage that ends sooner can hinder another job.
2. The search starts from the best of several whole choices: the given one, one option for all, and
   the cheapest for prices of the resources, random ones and those of the lower bound; beside it
   from ByteComp's greedy order: larger first, of equals the later.
3. Sweeps from the last job to the first give each its best option until nothing changes, first
   among the options that the bound's prices preferred. Only the part of the step after the job is
   simulated again, and only until it cannot be better any more.
4. Large-neighbourhood search gives a few jobs other options, and half of the times searches their
   best again; it keeps the result if the step is not longer.

All of it is in C++ (csrc/planner/) and deterministic: the effort is counted, never timed. The
lower bound (csrc/planner/bound.cpp) holds for all options, dropped or not.

Source: Espresso (EuroSys'23), properties 1 to 3, as heuristics; Shaw 1998 for the neighbourhoods.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from gradwire.errors import KernelError, PlanError
from gradwire.kernels import choices
from gradwire.kernels.jobs import Best, Jobs
from gradwire.planner.timeline import Executor, Job, Stage, machine, tensors

LIMIT = 8000


class Alternatives(NamedTuple):
    """A bucket that can travel in several ways: the first is without compression."""

    ready_seconds: float
    options: tuple[tuple[Stage, ...], ...]
    label: str = ""


class Found(NamedTuple):
    """A result. choice: the index of each job's option. seconds: of an iteration with it.

    No choice makes the iteration shorter than lower_bound. evaluations: whole steps simulated.
    """

    choice: tuple[int, ...]
    seconds: float
    lower_bound: float
    evaluations: float

    @property
    def gap(self) -> float:
        """How much longer the step is than the bound (0.01: one percent): no choice gains more."""
        return self.seconds / self.lower_bound - 1.0 if self.lower_bound else 0.0


def search(
    jobs: Sequence[Alternatives], executor: Executor, *, limit: float = LIMIT, seed: int = 0,
    start: Sequence[int] | None = None,
) -> Found:  # fmt: skip
    """Searches a choice of options with a short step, never longer than with `start`.

    limit: how many steps it may simulate; one simulated from the middle counts in part. start: a
    choice to beat; by default the first option of each job. The same arguments give the same
    result.

    Raises:
        PlanError: a time is negative or not finite, a job has no option, start is no valid choice.
    """
    if not 1 <= limit < math.inf:
        raise PlanError(
            f"a search must be allowed at least 1 step; got limit={limit}. Raise the limit."
        )
    own = _tensors(jobs)
    return _found(
        choices.search_options(
            own, machine(own, executor), _start(own, start), limit=limit, seed=seed
        ),
        executor,
    )


def exhaust(jobs: Sequence[Alternatives], executor: Executor) -> Found:
    """Returns the best choice of all, by trying every one: for few jobs. Raises PlanError as
    `search` does, and if there are too many choices."""
    own = _tensors(jobs)
    try:
        best = choices.exhaust_options(own, machine(own, executor), _start(own, None))
    except KernelError as error:
        raise PlanError(f"the planner's input: {error}") from error
    return _found(best, executor)


def lower_bound(
    jobs: Sequence[Alternatives], executor: Executor, *, by_turns: bool = True
) -> float:  # fmt: skip
    """Returns a lower bound of an iteration's seconds. Raises PlanError as `search` does.

    by_turns: whether the executor's lanes take the jobs by turns; if not, any job may run beside
    any other.
    """
    own = _tensors(jobs)
    runs = machine(own, executor)
    if not by_turns:
        runs = runs._replace(lanes=max(1, len(own)))
    return executor.around_seconds + choices.lower_bound(own, runs)


def chosen(jobs: Sequence[Alternatives], choice: Sequence[int]) -> list[Job]:
    """Returns the jobs with the chosen options, for `simulate`."""
    return [
        Job(job.ready_seconds, job.options[option], job.label)
        for job, option in zip(jobs, choice, strict=True)
    ]


def _tensors(jobs: Sequence[Alternatives]) -> Jobs:
    return tensors([job.ready_seconds for job in jobs], [job.options for job in jobs])


def _start(jobs: Jobs, start: Sequence[int] | None) -> torch.Tensor:
    own = [0] * len(jobs) if start is None else list(start)
    if len(own) != len(jobs) or not all(0 <= o < n for o, n in zip(own, jobs.counts)):
        raise PlanError(
            f"start must have one option of each of the {len(jobs)} jobs, counted from 0; got "
            f"{own}. Leave it out to begin with the first options."
        )
    return torch.tensor(own, dtype=torch.int32)


def _found(best: Best, executor: Executor) -> Found:
    around = executor.around_seconds
    return Found(
        tuple(best.choice.tolist()), around + best.seconds, around + best.bound, best.evaluations
    )
