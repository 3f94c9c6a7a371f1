"""The one owner of issue order.

    main thread   ─ backward ───●──●────●─────── wait ─┐   ● ready(bucket)
    lane 0        ──────────────╟ encode ┄wire┄ decode ╢ bucket 0, then 2, then 4 …
    lane 1        ─────────────────╟ encode ┄wire┄┄ decode ╢ bucket 1, then 3 …

A lane is a thread with its own process group (on CUDA also a stream). It takes its buckets in the
plan's order, whatever the order in which they become ready, and finishes one before the next, so
every rank issues the same moves in the same order. Collectives issued from chained futures do not
have this property (benchmarks and horror stories: docs/design/issue-order.md).
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import UsageError
from gradwire.runtime.context import BucketContext
from gradwire.runtime.torch_dist import Performer
from gradwire.strategy import StepInfo
from gradwire.trace import Span, Trace


class Job:
    """One bucket of the plan, step after step."""

    def __init__(self, index: int, context: BucketContext) -> None:
        self.index, self.context = index, context
        self.label = f"bucket {index} [{context.strategy}]"
        # Handed over once per step; a queue in C costs a tenth of a threading.Event.
        self.ready: SimpleQueue[torch.cuda.Event | None] = SimpleQueue()


class Conductor:
    """Runs the buckets of one attached model over its lanes.

    `on_end` is called once per step, with the error or None, by whichever thread finishes last:
    after it the results are in place.
    """

    def __init__(
        self, contexts: Sequence[BucketContext], performers: Sequence[Performer],
        on_end: Callable[[BaseException | None], None], device: torch.device,
    ) -> None:  # fmt: skip
        self.jobs = [Job(i, context) for i, context in enumerate(contexts)]
        self.trace = Trace(performers[0].world)
        self.error: BaseException | None = None
        self.step = -1
        self._on_end, self._device, self._closing = on_end, device, False
        self.performers = list(performers)
        self._left, self._lock = 0, threading.Lock()
        self._done = threading.Event()
        count = len(performers)
        self._lanes = [
            _Lane(self, i, performer, self.jobs[i::count])
            for i, performer in enumerate(performers)
        ]
        _AT_WORK.add(self)
        for lane in self._lanes:
            lane.start()

    # -- the training side -----------------------------------------------------------------

    def begin(self, step: int) -> None:
        """Start a step; every job will be handed over exactly once before it ends.

        Raises:
            UsageError: an earlier step failed; the groups cannot be trusted any more.
        """
        if self.error is not None:
            raise UsageError(
                f"after a failed exchange this model must be attached again; step {self.step} "
                f"failed with: {self.error}. Restart from a checkpoint, or detach and attach."
            ) from self.error
        self.step, self._left = step, len(self.jobs)
        self._done.clear()
        self.trace.spans.clear()

    def ready(
        self, index: int, gradients: Sequence[Tensor], results: Sequence[Tensor], info: StepInfo
    ) -> None:
        """Hand over one bucket. Returns at once."""
        job = self.jobs[index]
        job.context.begin(gradients, results, info)
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        job.ready.put(event)

    def wait(self) -> None:
        """Block until the step is over, and raise what went wrong in it."""
        self._done.wait()
        self.join_streams()
        if self.error is not None:
            raise self.error

    def close(self, patience_seconds: float = 5.0) -> None:
        """Stop the lanes and give their groups back. Not collective; nothing works afterwards."""
        for lane in self._stopped(patience_seconds):
            lane.performer.close()

    def stop(self, patience_seconds: float = 5.0) -> None:
        """Stop the lanes; their performers are for another conductor. Not collective."""
        self._stopped(patience_seconds)

    def _stopped(self, patience_seconds: float) -> list[_Lane]:
        """The lanes that have ended."""
        if self._closing:
            return []
        self._closing = True
        for job in self.jobs:
            job.ready.put(None)
        for lane in self._lanes:
            if lane is not threading.current_thread():
                lane.join(timeout=patience_seconds)
        return [lane for lane in self._lanes if not lane.is_alive()]

    # -- the lanes' side -------------------------------------------------------------------

    def finished(self) -> None:
        """One job is done; the last one ends the step for all."""
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self.join_streams()
        if self.error is None:
            try:
                skipped = not all(job.context.finite for job in self.jobs)
                for job in self.jobs:
                    job.context.end(skipped)
            except Exception as error:
                self.error = error
        self._on_end(self.error)
        self._done.set()

    def join_streams(self) -> None:
        """Make the caller's CUDA stream wait for every lane's."""
        for lane in self._lanes:
            if lane.stream is not None:
                torch.cuda.current_stream(self._device).wait_stream(lane.stream)

    @property
    def closing(self) -> bool:
        return self._closing


_AT_WORK: weakref.WeakSet[Conductor] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """An interpreter that ends kills waiting threads, and C++ frames on them abort the process."""
    for conductor in list(_AT_WORK):
        conductor.close(patience_seconds=1.0)


class _Lane(threading.Thread):
    """Takes its jobs in order, again and again."""

    def __init__(
        self, conductor: Conductor, index: int, performer: Performer, jobs: Sequence[Job]
    ) -> None:
        super().__init__(name=f"gradwire-lane-{index}", daemon=True)
        self._conductor, self._index, self._jobs = conductor, index, jobs
        self.performer = performer
        cuda = conductor._device.type == "cuda"
        self.stream = torch.cuda.Stream(conductor._device) if cuda else None  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def run(self) -> None:
        while self._jobs:
            for job in self._jobs:
                event = job.ready.get()
                if self._conductor.closing:
                    return
                with self._on_stream(event):
                    self._run(job)
                    self._conductor.finished()

    def _run(self, job: Job) -> None:
        if self._conductor.error is not None:
            return
        try:
            self._drive(job)
        except Exception as error:
            self._conductor.error = self._conductor.error or error

    def _on_stream(self, event: torch.cuda.Event | None) -> AbstractContextManager[Any]:
        if self.stream is None:
            return nullcontext()
        if event is not None:
            self.stream.wait_event(event)
        return torch.cuda.stream(self.stream)

    def _drive(self, job: Job) -> None:
        """Run the collective's generator: local work up to a move, the move, and on."""
        rounds = job.context.strategy.collective.rounds(job.context)
        kind, began = "encode", perf_counter()
        move = next(rounds)
        while True:
            began = self._span(kind, job.label, began)
            sent = self.performer.bytes_sent(move)
            arrived = self.performer.perform(move, job.label)
            began = self._span("wire", job.label, began, sent, move.where)
            kind = "decode"
            try:
                move = rounds.send(arrived)
            except StopIteration:
                self._span(kind, job.label, began)
                return

    def _span(
        self, kind: str, label: str, began: float, sent: float = 0.0, group: str = "world"
    ) -> float:
        now = perf_counter()
        rank = self.performer.rank
        self._conductor.trace.add(Span(rank, self._index, kind, label, began, now, sent, group))
        return now
