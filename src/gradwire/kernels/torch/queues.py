"""A step in the published planner's model, in plain Python."""

from __future__ import annotations

import heapq

import torch
from torch import Tensor

from gradwire.kernels.jobs import Jobs, Lists, Served
from gradwire.kernels.torch.schedule import COMPUTE, CROSS, LATENCY, NODE, WORKERS


def ordered_step(jobs: Jobs, choice: Tensor, backward_seconds: float, by_ready: bool) -> Served:
    queues = _Queues(jobs.lists(), choice.tolist(), backward_seconds)
    queues.serve_by_ready() if by_ready else queues.serve_in_order()
    return Served(queues.end(), torch.tensor(queues.idle, dtype=torch.float64))


class _Chain:
    """The progress of a job. away: its first move has begun; sent: a link has served it."""

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
        """Runs COMPUTE stages before any link stage as soon as a job is ready: they delay all the
        rest. Returns the delay."""
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
        """Serves the next stage of a job, and returns whether there was one."""
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
