"""Predicts how long a training step takes.

    seconds   0     1     2     3     4     5     6
    backward  ├─────●─────●───────────┤                   ● a job is ready
    lane 0          ├wait─┼══════ wire ═══════┤           job 0, 2 s on the wire: 1 s alone,
    lane 1                ├wait─┼════ wire ═════════┤     then 2 s with half; and job 1 likewise

The rule is the conductor's (gradwire/runtime/conductor.py):

- Lane l of the conductor takes jobs l, l + L, l + 2L, ... in this order. It waits until the job is
  ready, runs its stages one after the other, and takes the next.
- Backward is work on COMPUTE. A job is ready when the work up to its `ready_seconds` is done.
- Stages share their resource evenly: each of two on one link has half of it. WORKERS runs
  `workers` stages at full speed.
- LATENCY is waiting, for the network and for threads to wake. While something is on COMPUTE it
  takes `start_slowdown` times as long, as threads that wake find processors busy; else, beside k
  others that wait, 1 + k · `start_sharing` times.
- A stage on COMPUTE stops backward and delays all that is left of it.
- Processors: backward, or whatever stops it, demands one; each worker at work one; a link in use
  `wire_demand`, however many share it, because the work is proportional to the bytes; waiting
  `start_demand`, however many wait. Where they demand more than `cores` together, backward,
  workers and links run at cores / demand (but links at full speed if `wire_demand` is 0: then they
  need no processor).

Times count from the start of backward. Source: Espresso (EuroSys'23), section 4.3, has the idea of
a timeline F(S); the rule is ours, because it is what our executor does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Literal, NamedTuple

import torch

from gradwire.errors import PlanError
from gradwire.kernels.jobs import MOST, MOST_LANES, Jobs, Machine, jobs_of
from gradwire.kernels.schedule import record_step, simulate_step
from gradwire.kernels.tensors import real
from gradwire.trace import TRAINING_THREAD, Span, Trace

Kind = Literal["encode", "wire", "decode"]


class Resource(IntEnum):
    """The resource that a stage runs on."""

    LATENCY = 0  # waiting, which occupies nothing
    COMPUTE = 1  # the thread or stream that runs backward
    WORKERS = 2  # lane threads, or a pool of compressors
    NODE = 3  # the link inside a machine
    CROSS = 4  # the link across machines


LINKS = (Resource.NODE, Resource.CROSS)
_GROUPS = {Resource.NODE: "node", Resource.CROSS: "cross"}


class Stage(NamedTuple):
    """A piece of one job's work. lane: its resource; seconds: at full speed."""

    lane: Resource
    seconds: float
    kind: Kind


class Job(NamedTuple):
    """A bucket, in the plan's order of issue.

    ready_seconds: when its gradients are complete, counted from the start of backward, if nothing
    slows backward. stages run one after the other; a move is a LATENCY stage, then one on a link.
    """

    ready_seconds: float
    stages: tuple[Stage, ...]
    label: str = ""


@dataclass(frozen=True)
class Executor:
    """What runs the jobs: the lanes, processors and links of one rank.

    lanes: of the conductor, 1 to 16. cores: processors of the rank, 1.0 or more. wire_demand:
    processors that a link in use takes. workers: how many WORKERS stages run at full speed, 1.0 or
    more. around_seconds: a step's time before backward and after the last job. backward_seconds:
    the least; backward always lasts until the last job is ready. start_slowdown: 1.0 or more;
    start_sharing, start_demand: as above.
    """

    lanes: int = 1
    cores: float = math.inf
    wire_demand: float = 0.0
    workers: float = math.inf
    around_seconds: float = 0.0
    backward_seconds: float = 0.0
    start_slowdown: float = 1.0
    start_sharing: float = 0.0
    start_demand: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.lanes <= MOST_LANES:
            raise PlanError(
                f"lanes must be from 1 to {MOST_LANES}; got {self.lanes}. Choose lanes=1."
            )
        for name in ("cores", "workers"):
            if not (value := getattr(self, name)) >= 1.0:
                raise PlanError(
                    f"{name} must be 1.0 or more, because a stage takes a whole one; got {value}. "
                    f"Pass {name}=1.0."
                )
        if not 1.0 <= real(self.start_slowdown) <= MOST:
            raise PlanError(
                "start_slowdown must be finite and at least 1.0, because nothing is faster beside "
                f"backward; got {self.start_slowdown} ({MOST:g} at most). Measure it again."
            )
        for name in (
            "wire_demand", "around_seconds", "backward_seconds", "start_sharing", "start_demand",
        ):  # fmt: skip
            if not 0.0 <= (value := real(getattr(self, name))) <= MOST:
                raise PlanError(
                    f"{name} must be finite and not negative; got {value} ({MOST:g} at most). "
                    "Measure it again."
                )


@dataclass(frozen=True)
class Timeline:
    """A predicted step. All times are seconds from the start of backward, except the iteration's.

    end_seconds: when the last job and backward have ended. alone_seconds: when backward ends if
    nothing else is done. busy_seconds: how long each resource had work. bubbles: when the busiest
    link was idle, between its first use and its last, because the job that it served next was not
    ready. jobs: start and end of each.
    """

    executor: Executor
    end_seconds: float
    backward_end_seconds: float
    alone_seconds: float
    busy_seconds: dict[Resource, float]
    bubbles: tuple[tuple[float, float], ...]
    jobs: tuple[tuple[float, float], ...]
    spans: tuple[Span, ...]

    @property
    def iteration_seconds(self) -> float:
        """The whole step: the time around backward, backward, and what communication adds."""
        return self.executor.around_seconds + self.end_seconds

    @property
    def exposed_seconds(self) -> float:
        """The time from the end of backward to the end of all jobs."""
        return self.end_seconds - self.backward_end_seconds

    @property
    def added_seconds(self) -> float:
        """What the jobs add to the step: what is exposed, and what they make backward longer."""
        return self.end_seconds - self.alone_seconds

    @property
    def use(self) -> dict[Resource, float]:
        """The share of the time up to the end in which each resource had work."""
        end = self.end_seconds or 1.0
        return {lane: busy / end for lane, busy in self.busy_seconds.items()}

    def trace(self) -> Trace:
        """Returns the step in the form of a measured one: spans of rank 0, of the training thread
        and of the conductor's lanes. 0 seconds is the start of backward; all other computing is
        put before it."""
        times = (
            ("compute", -self.executor.around_seconds, 0.0),
            ("backward", 0.0, self.backward_end_seconds),
            ("wait", self.backward_end_seconds, self.end_seconds),
        )
        trains = [Span(0, TRAINING_THREAD, kind, "", a, b) for kind, a, b in times if b > a]
        return Trace(1, [*trains, *self.spans])


def simulate(jobs: Sequence[Job], executor: Executor) -> Timeline:
    """Predicts the step with these jobs. Raises PlanError if a time is negative or not finite."""
    times = _Times(jobs, executor)
    spans = tuple(times.spans(executor.lanes))
    busy = {lane: _length(_union(times.on(lane))) for lane in Resource}
    busiest = max(LINKS, key=lambda lane: busy[lane])
    return Timeline(
        executor, times.end, times.backward_end, times.alone, busy,
        tuple(times.bubbles(busiest, executor.lanes)), times.of_jobs, spans,
    )  # fmt: skip


def ratio(seconds: float, other: float) -> float:
    """Returns how many times as long the first step is as the other; 1.0 if the other is shorter
    than a femtosecond, as good as nothing: ratios are finite."""
    return seconds / other if other > 1e-15 else 1.0


def step_seconds(jobs: Sequence[Job], executor: Executor) -> float:
    """Returns `simulate(jobs, executor).iteration_seconds` without its spans. Raises PlanError."""
    return executor.around_seconds + simulate_step(*as_they_are(jobs, executor))


def as_they_are(jobs: Sequence[Job], executor: Executor) -> tuple[Jobs, Machine, torch.Tensor]:
    """Returns, for the kernels, the jobs with their stages as the only option, what runs them, and
    the choice of these options. Raises PlanError as `tensors` does."""
    own = tensors([job.ready_seconds for job in jobs], [[job.stages] for job in jobs])
    return own, machine(own, executor), torch.zeros(len(jobs), dtype=torch.int32)


def tensors(ready_seconds: Sequence[float], options: Sequence[Sequence[Sequence[Stage]]]) -> Jobs:
    """Converts jobs with options for the kernels. Raises PlanError if a time is negative or not
    finite, or a job has no option."""
    try:
        return jobs_of(ready_seconds, options)
    except ValueError as error:
        raise PlanError(f"the planner's input: {error}") from error


def machine(jobs: Jobs, executor: Executor) -> Machine:
    """Converts the executor for the kernels."""
    last = float(jobs.ready.max()) if len(jobs) else 0.0
    return Machine(
        executor.lanes, executor.cores, executor.wire_demand, executor.workers,
        max(executor.backward_seconds, last),
        executor.start_slowdown, executor.start_sharing, executor.start_demand,
    )  # fmt: skip


Interval = tuple[float, float]


class _Times:
    """The start and end of each stage of each job."""

    def __init__(self, jobs: Sequence[Job], executor: Executor) -> None:
        own, runs, choice = as_they_are(jobs, executor)
        found = record_step(own, runs, choice)
        self.jobs, self.end, self.backward_end = jobs, found.seconds, found.backward_end
        self.alone = runs.backward_seconds
        every = list(zip(found.start.tolist(), found.end.tolist()))
        begins = own.stage.tolist()
        self.stages = [every[a:b] for a, b in pairwise(begins)]
        self.of_jobs = tuple(self._of_job(i, executor.lanes) for i in range(len(jobs)))

    def _of_job(self, job: int, lanes: int) -> Interval:
        """Returns a job's start and end. A job without stages ends when its lane takes it up,
        which is not recorded."""
        if own := self.stages[job]:
            return own[0][0], own[-1][1]
        before = [self.stages[i][-1][1] for i in range(job % lanes, job, lanes) if self.stages[i]]
        at = max([self.jobs[job].ready_seconds, *before[-1:]])
        return at, at

    def spans(self, lanes: int) -> Iterable[Span]:
        for i, job in enumerate(self.jobs):
            label = job.label or f"bucket {i}"
            for stage, (start, end) in zip(job.stages, self.stages[i]):
                group = _GROUPS.get(stage.lane, "world")
                yield Span(0, i % lanes, stage.kind, label, start, end, group=group)

    def _each(self, lane: Resource) -> Iterable[tuple[int, Interval]]:
        for i, job in enumerate(self.jobs):
            for stage, interval in zip(job.stages, self.stages[i]):
                if stage.lane == lane and interval[1] > interval[0]:
                    yield i, interval

    def on(self, lane: Resource) -> list[Interval]:
        own = [interval for _, interval in self._each(lane)]
        return [(0.0, self.backward_end), *own] if lane == Resource.COMPUTE else own

    def bubbles(self, link: Resource, lanes: int) -> Iterable[Interval]:
        """Yields, for each gap of the link, the time in which the lane of the job that ends the
        gap waited for this job to be ready."""
        uses = sorted((interval, job) for job, interval in self._each(link))
        free = uses[0][0][1] if uses else 0.0
        for (start, end), job in uses[1:]:
            waits = self.of_jobs[job - lanes][1] if job >= lanes else 0.0
            gap = max(free, waits), min(start, self.of_jobs[job][0])
            if gap[0] < gap[1]:
                yield gap
            free = max(free, end)


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the same times as disjoint, ascending intervals."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _length(intervals: Iterable[Interval]) -> float:
    return sum((end - start for start, end in intervals), 0.0)
