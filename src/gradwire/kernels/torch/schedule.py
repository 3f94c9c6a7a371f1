"""A predicted step in plain Python, with the same operations as in the extension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.kernels.jobs import Jobs, Lists, Machine, Recorded

LATENCY, COMPUTE, WORKERS, NODE, CROSS = range(5)


class Speed(NamedTuple):
    """rate: seconds of work done in a second; pace: its inverse."""

    rate: float
    pace: float


FULL = Speed(1.0, 1.0)


def shared(capacity: float, demand: float) -> Speed:
    """Returns the speed of each user of a resource, by the total demand."""
    return Speed(capacity / demand, demand / capacity) if demand > capacity else FULL


class Runner:
    """A lane of the conductor; it waits for its next job if stage == end."""

    def __init__(self, job: int) -> None:
        self.job = job
        self.stage = self.end = 0
        self.left = 0.0

    @property
    def waits(self) -> bool:
        return self.stage == self.end


class Run:
    """The simulation of one step, from event to event. Its results are start and stop (per stage),
    end, and backward_end."""

    def __init__(self, jobs: Lists, machine: Machine, choice: Sequence[int]) -> None:
        self.jobs, self.machine, self.choice = jobs, machine, choice
        self.now = self.done = self.backward_end = 0.0
        self.running = [0] * 5
        self.runners = [Runner(lane) for lane in range(machine.lanes)]
        self.start, self.stop = [0.0] * len(jobs.seconds), [0.0] * len(jobs.seconds)
        while self._begin() or self._step():
            pass
        self.end = self.now

    def _waited_for(self) -> list[tuple[Runner, float]]:
        waiting = [r for r in self.runners if r.waits and r.job < len(self.jobs.ready)]
        return [(runner, self.jobs.ready[runner.job]) for runner in waiting]

    def _begin(self) -> bool:
        """Starts the first waiting lane whose job is complete; returns whether there was one."""
        for runner, ready in self._waited_for():
            if ready <= self.done:
                option = self.jobs.option[runner.job] + self.choice[runner.job]
                runner.stage, runner.end = self.jobs.stage[option : option + 2]
                self._enter(runner)
                return True
        return False

    def _enter(self, runner: Runner) -> None:
        """Begins the lane's next stage, or leaves it to wait for its next job."""
        if runner.waits:
            runner.job += self.machine.lanes
            return
        self.start[runner.stage] = self.now
        runner.left = self.jobs.seconds[runner.stage]
        self.running[self.jobs.lane[runner.stage]] += 1

    def _processors(self, backward: bool) -> Speed:
        links = (self.running[NODE] > 0) + (self.running[CROSS] > 0)
        main = bool(self.running[COMPUTE]) or backward
        busy = min(float(self.running[WORKERS]), self.machine.workers)
        waiting = self.machine.start_demand * (self.running[LATENCY] > 0)
        demand = main + busy + self.machine.wire_demand * links + waiting
        return shared(self.machine.cores, demand)

    def _start(self, backward: bool) -> Speed:
        times = 1.0 + self.machine.start_sharing * (self.running[LATENCY] - 1)
        if self.running[COMPUTE] or backward:
            times = max(times, self.machine.start_slowdown)
        return Speed(1.0 / times, times)

    def _speed(self, runner: Runner, processors: Speed, backward: bool) -> Speed:
        lane = self.jobs.lane[runner.stage]
        if lane == LATENCY:
            return self._start(backward)
        capacity = self.machine.workers if lane == WORKERS else 1.0
        share = shared(capacity, float(self.running[lane]))
        if lane in (NODE, CROSS) and not self.machine.wire_demand > 0.0:
            return share
        return Speed(processors.rate * share.rate, processors.pace * share.pace)

    def _step(self) -> bool:
        """Advances to the next event: a stage ends, a job is complete, or backward ends. Returns
        False if there is none."""
        total = self.machine.backward_seconds
        backward = not self.running[COMPUTE] and self.done < total
        processors = self._processors(backward)
        target = min([total, *(ready for _, ready in self._waited_for())])
        until_target = (target - self.done) * processors.pace if backward else math.inf
        active = [(r, self._speed(r, processors, backward)) for r in self.runners if not r.waits]
        until = [runner.left * speed.pace for runner, speed in active]
        step = min([until_target, *until])
        if step == math.inf:
            return False
        self.now += step
        if backward:
            self.done = target if until_target == step else self.done + step * processors.rate
            if self.done >= total:
                self.backward_end = self.now
        for (runner, speed), time in zip(active, until):
            if time == step:
                self._leave(runner)
            else:
                runner.left = max(0.0, runner.left - step * speed.rate)
        return True

    def _leave(self, runner: Runner) -> None:
        self.stop[runner.stage] = self.now
        self.running[self.jobs.lane[runner.stage]] -= 1
        runner.stage += 1
        self._enter(runner)


def simulate_step(jobs: Jobs, machine: Machine, choice: Tensor, repeats: int) -> float:
    """Simulates the step once, whatever `repeats` is."""
    return Run(jobs.lists(), machine, choice.tolist()).end


def record_step(jobs: Jobs, machine: Machine, choice: Tensor) -> Recorded:
    run = Run(jobs.lists(), machine, choice.tolist())
    times = torch.tensor([run.start, run.stop], dtype=torch.float64).view(2, -1)
    return Recorded(times[0], times[1], run.end, run.backward_end)
