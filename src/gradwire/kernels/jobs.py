"""The jobs of a predicted step with their options of stages, the machine, and the results."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from operator import itemgetter, lt, sub
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.tensors import check_buffer, real

LANES = 5
"""The number of lanes of stages: 0 latency, 1 compute, 2 workers, 3 node, 4 cross."""
MOST_LANES = 16
"""The most lanes of a conductor."""
MOST = 1e15
"""The limit of seconds and of slowdown factors, so that their sums and products stay finite."""


class Lists(NamedTuple):
    """`Jobs` as Python lists."""

    ready: list[float]
    option: list[int]
    stage: list[int]
    lane: list[int]
    seconds: list[float]


@dataclass(frozen=True)
class Jobs:
    """Nested lists by their offsets: job i has options option[i] to option[i + 1] - 1, and so on.

    ready: (jobs,) float64, seconds of backward work until a job is complete. option: (jobs + 1,),
    stage: (options + 1,), lane: (stages,), all int32. seconds: (stages,) float64, at full speed.
    Raises KernelError for offsets that do not fit together, and for times that are negative, not
    finite, or beyond 10^15.
    """

    ready: Tensor
    option: Tensor
    stage: Tensor
    lane: Tensor
    seconds: Tensor

    def __post_init__(self) -> None:
        check_buffer("ready", self.ready, torch.float64, self.ready.numel())
        check_buffer("option", self.option, torch.int32, self.ready.numel() + 1)
        options = _check_begins("option", self.option, least=1)
        check_buffer("stage", self.stage, torch.int32, options + 1)
        stages = _check_begins("stage", self.stage, least=0)
        check_buffer("lane", self.lane, torch.int32, stages)
        check_buffer("seconds", self.seconds, torch.float64, stages)
        _check_seconds("ready", self.ready)
        _check_seconds("seconds", self.seconds)
        least, most = _range(self.lane)
        if not 0 <= least <= most < LANES:
            raise KernelError(
                f"a stage's lane must be a number from 0 to {LANES - 1}, but they go from "
                f"{int(least)} to {int(most)}; correct them"
            )

    def __len__(self) -> int:
        return self.ready.numel()

    @cached_property
    def counts(self) -> list[int]:
        """The number of each job's options."""
        return _lengths(self.option.tolist())

    def lists(self) -> Lists:
        """Returns the jobs as Python lists, which the twin reads."""
        return Lists(
            self.ready.tolist(), self.option.tolist(), self.stage.tolist(), self.lane.tolist(),
            self.seconds.tolist(),
        )  # fmt: skip


class Machine(NamedTuple):
    """The machine that runs the jobs. lanes: the conductor's. backward_seconds: not less than any
    ready. start_slowdown: 1.0 or more; start_sharing, start_demand: not negative."""

    lanes: int
    cores: float
    wire_demand: float
    workers: float
    backward_seconds: float
    start_slowdown: float = 1.0
    start_sharing: float = 0.0
    start_demand: float = 0.0


def _check_begins(name: str, begins: Tensor, least: int) -> int:
    own = begins.tolist()
    if own[0] != 0 or min(_lengths(own), default=least) < least:
        raise KernelError(
            f"{name}, the offsets of lists, must begin at 0 and grow by {least} or more each, but "
            f"it is {own[:8]}…; correct it"
        )
    return int(own[-1])


def _lengths(begins: list[int]) -> list[int]:
    """Returns the lengths of the lists with these offsets; `Tensor.diff` takes ten times as long
    for those of one step, of which planners evaluate thousands."""
    return list(map(sub, begins[1:], begins))


def _check_seconds(name: str, seconds: Tensor) -> None:
    least, most = _range(seconds)  # both NaN if any is
    if not 0.0 <= least <= most <= MOST:
        fits = (seconds >= 0.0) & (seconds <= MOST)
        raise KernelError(
            f"{name} must be finite and not negative, but one is {seconds[~fits][0]} ({MOST:g} at "
            "most); correct it"
        )


def _range(x: Tensor) -> tuple[float, float]:
    """Returns the smallest and the largest element, in one pass; zeros if x is empty."""
    least, most = torch.aminmax(x) if x.numel() else (0.0, 0.0)
    return float(least), float(most)


def check_machine(jobs: Jobs, machine: Machine, most_lanes: int = MOST_LANES) -> None:
    """Raises KernelError unless the machine can run the jobs."""
    if not isinstance(machine.lanes, int) or not 1 <= machine.lanes <= most_lanes:
        raise KernelError(
            f"a conductor must have 1 to {most_lanes} lanes, not {machine.lanes}; choose such a "
            "number"
        )
    if not (machine.cores >= 1.0 and machine.workers >= 1.0):
        raise KernelError(
            "cores and workers must be 1.0 or more, as a stage takes a whole one, not "
            f"{machine.cores} and {machine.workers}; give 1.0 for a shared one"
        )
    for name in ("wire_demand", "start_sharing", "start_demand"):
        if not 0.0 <= (value := real(getattr(machine, name))) <= MOST:
            raise KernelError(
                f"{name} must be finite and not negative, not {value} ({MOST:g} at most); give 0.0"
            )
    if not 1.0 <= machine.start_slowdown <= MOST:
        raise KernelError(
            f"start_slowdown must be finite and 1.0 or more, not {machine.start_slowdown} "
            f"({MOST:g} at most); give 1.0"
        )
    last = float(jobs.ready.max()) if len(jobs) else 0.0
    if not last <= machine.backward_seconds <= MOST:
        raise KernelError(
            "backward must last until the last job is ready, but lasts "
            f"{machine.backward_seconds} s, and a job is ready at {last} s; make it that long, "
            f"and at most {MOST:g} s"
        )


def check_choice(jobs: Jobs, choice: Tensor) -> None:
    """Raises KernelError unless choice, (jobs,) int32, has one of its options, from 0, for each
    job."""
    check_buffer("choice", choice, torch.int32, len(jobs))
    own = choice.tolist()
    if min(own, default=0) < 0 or not all(map(lt, own, jobs.counts)):
        raise KernelError(
            "a choice must be one of the job's options, counted from 0, but it is "
            f"{own[:8]}… of {jobs.counts[:8]}…; choose one of them"
        )


def jobs_of(
    ready: Sequence[float], options: Sequence[Sequence[Sequence[tuple[Any, ...]]]]
) -> Jobs:
    """Makes `Jobs` from the jobs' options, lists of stages; a stage begins with its lane and its
    seconds."""
    every = list(chain.from_iterable(options))
    stages = list(chain.from_iterable(every))
    try:
        return Jobs(
            _tensor("d", ready, torch.float64),
            _tensor("i", accumulate(map(len, options), initial=0), torch.int32),
            _tensor("i", accumulate(map(len, every), initial=0), torch.int32),
            _tensor("i", map(itemgetter(0), stages), torch.int32),
            _tensor("d", map(itemgetter(1), stages), torch.float64),
        )
    except OverflowError as error:
        raise KernelError(
            f"lanes must be whole numbers below {LANES} and seconds finite, but one is too large "
            f"for its type ({error}); correct it"
        ) from None


def _tensor(code: str, numbers: Iterable[float], dtype: torch.dtype) -> Tensor:
    """Makes a tensor by way of an array: torch takes ten times as long for a list of hundreds of
    thousands."""
    own = array(code, numbers)
    return torch.frombuffer(own, dtype=dtype) if own else torch.empty(0, dtype=dtype, device="cpu")


class Recorded(NamedTuple):
    """The times of a step. start, end: (stages,) float64, zero for stages that were not chosen."""

    start: Tensor
    end: Tensor
    seconds: float
    backward_end: float


class Served(NamedTuple):
    """seconds: when the last job and backward are over. idle: (jobs,) float64, how long the links
    had nothing to do, once they had begun, because the job was not yet ready or not encoded."""

    seconds: float
    idle: Tensor


class Best(NamedTuple):
    """The best choice. choice: (jobs,) int32. bound: no choice takes fewer seconds. evaluations:
    simulated steps."""

    choice: Tensor
    seconds: float
    bound: float
    evaluations: float
