"""One rank of one row: `python -m gradwire.demo.worker TASK.json`, started by the lab.

Rank 0 prints a line of JSON after each evaluation and writes the result at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.demo.model import Hidden, LanguageModel, batches, loss_sum, share, streams
from gradwire.demo.rows import keeps_momentum
from gradwire.demo.task import Measured, Point, Task
from gradwire.lab import bytes_sent
from gradwire.lab.counters import counted_hosts


def main(path: str) -> None:
    """Trains as the task says, with every other rank."""
    # More threads than cores would only make the ranks wait for each other.
    torch.set_num_threads(1)
    task = Task.load(Path(path))
    dist.init_process_group("gloo")
    measured = Run(task).measure()
    if dist.get_rank() == 0:
        measured.save(Path(task.result))
    dist.barrier()
    # Now and then (in 1 of 6 runs of DDP) torch 2.13 aborts while it takes Gloo's threads down.
    sys.stdout.flush()
    os._exit(0)


class Run:
    """A rank's model, data and clock."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        text = torch.load(task.tokens, weights_only=True)
        torch.manual_seed(task.seed)
        self._model = LanguageModel(hidden=task.hidden)
        self._trained, momentum = synchronized(self._model, task)
        self._optimizer = torch.optim.SGD(
            self._model.parameters(), lr=task.learning_rate, momentum=momentum, fused=True
        )
        self._batches = batches(self._own_streams(text["train"]), task.words_per_stream)
        self._held_out = share(
            streams(text["held_out"], task.held_out_streams), self._rank, self._world
        )
        self._hidden: Hidden | None = None
        self._seconds: list[float] = []
        self._sent: list[tuple[int, float]] = []

    def _own_streams(self, words: Tensor) -> Tensor:
        """Returns this rank's streams: all rows see the same words in the same order."""
        each = self._task.streams_per_rank
        return streams(words, each * self._world)[:, self._rank * each : (self._rank + 1) * each]

    def measure(self) -> Measured:
        """Trains and evaluates in turn until the task is done. Collective."""
        curve = [self._evaluate()]
        while not finished(self._task, curve[-1]):
            self._train(self._steps_to_go(curve[-1].step))
            curve.append(self._evaluate())
        return Measured(
            _from_all_ranks(self._seconds),
            [(steps, _mean_of_ranks(sent)) for steps, sent in self._sent],
            curve,
            sum(p.numel() for p in self._model.parameters()),
        )

    def _steps_to_go(self, step: int) -> int:
        """The number of steps up to the next evaluation; there is one at exactly `task.steps`."""
        each, left = self._task.steps_per_evaluation, self._task.steps - step
        return min(each, left) if left > 0 else each

    def _train(self, steps: int) -> None:
        dist.barrier()
        before = bytes_sent()
        for _ in range(steps):
            began = time.perf_counter()
            self._step()
            self._seconds.append(time.perf_counter() - began)
        dist.barrier()  # until then others may still have bytes for us to acknowledge
        self._sent.append((steps, (bytes_sent() - before) / counted_hosts()))

    def _step(self) -> None:
        words, following, fresh = next(self._batches)
        self._optimizer.zero_grad()
        loss, hidden = self._trained(words, following, None if fresh else self._hidden)
        self._hidden = (hidden[0].detach(), hidden[1].detach())
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _evaluate(self) -> Point:
        """Measures the held-out loss, each rank on its share: all have the same model, except when
        alone."""
        sums = torch.tensor(loss_sum(self._model, self._held_out), dtype=torch.float64)
        seconds = torch.tensor(sum(self._seconds), dtype=torch.float64)
        dist.all_reduce(sums)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        point = Point(len(self._seconds), float(seconds), float(sums[0] / sums[1]))
        if self._rank == 0:
            print(json.dumps(point._asdict()), flush=True)
        return point


def synchronized(
    model: LanguageModel, task: Task
) -> tuple[Callable[..., tuple[Tensor, Hidden]], float]:
    """Returns what to call for a forward pass, and the momentum for the optimizer."""
    if task.method == "gradwire":
        gradwire.attach(model, task.strategy, lanes=task.lanes)
        return model, 0.0 if keeps_momentum(task.strategy) else task.momentum
    return (model if task.method == "alone" else _ddp(model, task)), task.momentum


def _ddp(model: nn.Module, task: Task) -> DistributedDataParallel:
    """Wraps the model in DDP at its best: gradients are views of its buckets, so nothing is copied
    twice."""
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if task.method == "ddp_fp16":
        ddp.register_comm_hook(None, fp16_compress_hook)
    return ddp


def finished(task: Task, now: Point) -> bool:
    """Whether a row may end. All ranks decide the same, as they see the same numbers."""
    if now.step < task.steps or now.seconds < task.least_seconds:
        return False
    if task.target_loss is None or now.loss <= task.target_loss:
        return True
    return now.seconds >= task.most_seconds


def _from_all_ranks(values: list[float]) -> list[list[float]]:
    own = torch.tensor(values, dtype=torch.float64)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    return [[round(value, 6) for value in rank.tolist()] for rank in gathered]


def _mean_of_ranks(value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


if __name__ == "__main__":
    main(sys.argv[1])
