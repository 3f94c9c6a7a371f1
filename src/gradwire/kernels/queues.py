"""A predicted step in the published planner's model: lanes are queues that serve one at a time.

The rule is in gradwire/planner/ordered.py. The extension and the twin give the same bits.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.kernels.machine import Machine
from gradwire.kernels.native import core_for
from gradwire.kernels.schedule import Jobs, check_choice, check_machine
from gradwire.kernels.schedule_twin import COMPUTE, CROSS, LATENCY, NODE, WORKERS, Lists
from gradwire.kernels.tensors import pointer, real


class Served(NamedTuple):
    """When all is over, and (jobs,) float64: how long no link had anything to do, after some had,
    because the job was not there yet: not ready, or not encoded."""

    seconds: float
    idle: Tensor


def ordered_step(
    jobs: Jobs, choice: Tensor, backward_seconds: float, by_ready: bool = False
) -> Served:
    """When the last job and backward are over, in seconds since backward began.

    choice: (jobs,) int32. by_ready: who arrives first is served first; else the order of the jobs
    rules. Raises KernelError.
    """
    check_machine(jobs, Machine(1, 1.0, 0.0, 1.0, backward_seconds))
    check_choice(jobs, choice)
    found = core_for(jobs.ready)
    if found is None:
        return ordered_step_twin(jobs, choice, backward_seconds, by_ready)
    idle = torch.zeros_like(jobs.ready)
    seconds = found[0].ordered_step(
        jobs.address, pointer(choice), real(backward_seconds), by_ready, pointer(idle)
    )
    return Served(seconds, idle)


def ordered_step_twin(
    jobs: Jobs, choice: Tensor, backward_seconds: float, by_ready: bool = False
) -> Served:
    """`ordered_step` in plain Python."""
    queues = _Queues(jobs.lists(), choice.tolist(), backward_seconds)
    queues.serve_by_ready() if by_ready else queues.serve_in_order()
    return Served(queues.end(), torch.tensor(queues.idle, dtype=torch.float64))


class _Chain:
    """A job on its way. away: its first move has begun; sent: a link has served it."""

    def __init__(self, stage: int, end: int) -> None:
        self.stage, self.end, self.now = stage, end, 0.0
        self.away = self.sent = False


class _Queues:
    def __init__(self, jobs: Lists, choice: list[int], backward_seconds: float) -> None:
        self.jobs = jobs
        options = [first + own for first, own in zip(jobs.option, choice)]
        self.chains = [_Chain(jobs.stage[o], jobs.stage[o + 1]) for o in options]
        self.idle = [0.0] * len(choice)
        self.free = {NODE: 0.0, CROSS: 0.0}
        self.links_end, self.used = 0.0, False
        self.early = self.debt = self.last = 0.0
        self.late = {COMPUTE: 0.0, WORKERS: 0.0}
        self.compute_end = backward_seconds + self._interrupt()

    def _interrupt(self) -> float:
        """Stages on COMPUTE before any link run when the job is ready and delay all the rest."""
        delay = 0.0
        for job in sorted(range(len(self.chains)), key=lambda job: self.jobs.ready[job]):
            chain = self.chains[job]
            for i in range(chain.stage, chain.end):
                if self.jobs.lane[i] in (NODE, CROSS):
                    break
                if self.jobs.lane[i] == COMPUTE:
                    delay += self.jobs.seconds[i]
            chain.now = self.jobs.ready[job] + delay
        return delay

    def serve_in_order(self) -> None:
        for job in range(len(self.chains)):
            while self._step(job):
                pass

    def serve_by_ready(self) -> None:
        arrivals = [(chain.now, job) for job, chain in enumerate(self.chains)]
        heapq.heapify(arrivals)
        while arrivals:
            job = heapq.heappop(arrivals)[1]
            if self._step(job):
                heapq.heappush(arrivals, (self.chains[job].now, job))

    def _step(self, job: int) -> bool:
        """Serve the next stage of a job; whether there was one."""
        chain = self.chains[job]
        if chain.stage == chain.end:
            self.last = max(self.last, chain.now)
            return False
        lane, seconds = self.jobs.lane[chain.stage], self.jobs.seconds[chain.stage]
        chain.stage += 1
        if lane in (LATENCY, NODE, CROSS):
            self._leave(chain, job)
        if lane == LATENCY:
            chain.now += seconds
        elif lane in (NODE, CROSS):
            self._link(chain, lane, seconds)
        elif chain.sent:
            chain.now = self.late[lane] = max(self.late[lane], chain.now) + seconds
            self.debt += seconds if lane == COMPUTE else 0.0
        elif lane == WORKERS:
            chain.now = self.early = max(self.early, chain.now) + seconds
        return True

    def _leave(self, chain: _Chain, job: int) -> None:
        if not chain.away and self.used:
            self.idle[job] = max(0.0, chain.now - self.links_end)
        chain.away = True

    def _link(self, chain: _Chain, lane: int, seconds: float) -> None:
        chain.now = self.free[lane] = max(self.free[lane], chain.now) + seconds
        chain.sent = self.used = True
        self.links_end = max(self.links_end, chain.now)

    def end(self) -> float:
        return max(self.last, self.compute_end + self.debt, *self.late.values())
