"""Decides, alone, the order in which moves are issued.

    main thread   ─ backward ───●──●────●─────── wait ─┐   ● ready(bucket)
    lane 0        ──────────────╟ encode ┄wire┄ decode ╢ bucket 0, then 2, then 4 …
    lane 1        ─────────────────╟ encode ┄wire┄┄ decode ╢ bucket 1, then 3 …

A lane is a thread with its own process group (on CUDA also a stream). It takes its buckets in the
plan's order, whatever the order in which they become ready, and finishes one before the next, so
every rank issues the same moves in the same order. Collectives issued from chained futures do not
have this property (benchmarks and known failures: docs/design/issue-order.md).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import SimpleQueue

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.profiler import record_function

from gradwire.errors import GradwireError, PeerError, UsageError
from gradwire.families import outsiders
from gradwire.runtime.context import BucketContext
from gradwire.runtime.device_order import NOTHING, Before, LaneOrder, Made, Moment
from gradwire.runtime.move_check import check_move
from gradwire.runtime.threads import Thread
from gradwire.runtime.torch_dist import Performer
from gradwire.runtime.verdict import settle
from gradwire.strategy import StepInfo
from gradwire.trace import Span, Trace, range_name


class QueuedBucket:
    """One bucket of the plan, step after step."""

    def __init__(self, index: int, context: BucketContext, device: torch.device) -> None:
        self.index, self.context, self.made = index, context, Made(device)
        self.label = f"bucket {index} [{context.strategy}]"
        # Handed over once per step; a queue in C costs a tenth of a threading.Event.
        self.ready: SimpleQueue[Before] = SimpleQueue()


_GRACE_SECONDS = 10.0
"""A move has the groups' own timeout; finding the ranks that are missing takes seconds more."""


class Conductor:
    """Runs the buckets of one attached model over its lanes.

    `on_end` is called once per step, with the error or None, by the thread that finishes last,
    when the results are in place. `error` is the first failure. It is final for this conductor, as
    ranks may be at different moves after it.

    timeout_seconds: the timeout of the lanes' groups. `wait` fails if nothing moves for longer.
    """

    def __init__(
        self, contexts: Sequence[BucketContext], performers: Sequence[Performer],
        on_end: Callable[[BaseException | None], None], device: torch.device,
        timeout_seconds: float = 300.0,
    ) -> None:  # fmt: skip
        self.buckets = [QueuedBucket(i, context, device) for i, context in enumerate(contexts)]
        self.trace = Trace(performers[0].world)
        self.error: BaseException | None = None
        self.step, self.is_orphan, self._timeout_seconds = -1, False, timeout_seconds
        self.threads = torch.get_num_threads()  # intra-op threads of the thread that begins steps
        self._on_end, self._device, self._closing = on_end, device, False
        self.performers = list(performers)
        self._left, self._lock = 0, threading.Lock()
        self._done = threading.Event()
        self._done.set()
        count = len(performers)
        self._lanes = [
            _Lane(self, i, performer, self.buckets[i::count])
            for i, performer in enumerate(performers)
        ]
        _AT_WORK.add(self)
        for lane in self._lanes:
            lane.start()

    # -- what goes wrong -------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Stops the conductor: no further step begins, and no further bucket in this one. The
        first error stays."""
        self.error = self.error or error

    def refuse_failed(self) -> None:
        """Raises UsageError, the same each time, once something has failed."""
        if self.is_orphan:
            raise UsageError(str(self.error))
        if self.error is not None:
            reason = str(self.error) or type(self.error).__name__
            raise UsageError(
                "after a failed exchange this model must be attached again; step "
                f"{max(self.step, 0)} failed with: {reason.rstrip('.')}. Restart from a "
                "checkpoint, or detach and attach again on all ranks."
            ) from self.error

    def orphan(self) -> None:
        """Gives up lanes and locks in the child of a fork: they are the parent's."""
        self._lock, self._done = threading.Lock(), threading.Event()
        self._done.set()
        self.is_orphan, self._closing, self._left = True, True, 0
        self.error = UsageError(
            "only the process that attached the model can exchange gradients; this one, "
            f"{os.getpid()}, is a fork of it, {os.getppid()}, without its threads and "
            "connections. Call handle.detach() here to train or evaluate alone, or start all "
            "processes with torchrun, and attach in each."
        )

    # -- the training side -----------------------------------------------------------------

    def begin(self, step: int) -> None:
        """Starts a step. Each bucket must be handed over (`ready`) exactly once before it ends.

        Raises:
            UsageError: an earlier step failed, so the groups cannot be trusted any more.
        """
        self.refuse_failed()
        self.step, self._left, self.threads = step, len(self.buckets), torch.get_num_threads()
        self._done.clear()
        self.trace.spans.clear()
        for lane in self._lanes:
            lane.moments.clear()

    def delivered(self, index: int) -> None:
        """Notes that a gradient of this bucket was computed on the calling thread's stream."""
        self.buckets[index].made.add()

    def ready(
        self, index: int, gradients: Sequence[Tensor], results: Sequence[Tensor], info: StepInfo
    ) -> None:
        """Hands over one bucket. Returns at once."""
        queued = self.buckets[index]
        queued.context.begin(gradients, results, info)
        queued.ready.put(queued.made.take())

    def wait(self) -> None:
        """Blocks until the step is over, and raises what went wrong in it.

        Raises:
            PeerError: nothing moved for longer than the groups' own timeout.
        """
        moved = len(self.trace.spans)
        while not self._done.wait(self._timeout_seconds + _GRACE_SECONDS):
            if moved == len(self.trace.spans):
                raise PeerError(
                    f"an exchange must make progress within {self._timeout_seconds} s, attach's "
                    f"timeout_seconds; in step {self.step} nothing moved for longer, and "
                    f"{self._left} of {len(self.buckets)} buckets are not done: this process, "
                    f"rank {self.performers[0].rank}, was stopped, or a thread of it that moves "
                    "them is stuck or has ended. Look at its threads, for example with `py-spy "
                    "dump --pid` and its process id."
                )
            moved = len(self.trace.spans)
        self.join_streams()
        if self.error is not None:
            raise self.error

    def close(self, patience_seconds: float = 5.0) -> None:
        """Stops the lanes and closes their groups. Not collective; nothing works afterwards."""
        for lane in self._stopped(patience_seconds):
            lane.performer.close()

    def stop(self, patience_seconds: float = 5.0) -> None:
        """Stops the lanes; another conductor takes their performers. Not collective."""
        self._stopped(patience_seconds)

    def _stopped(self, patience_seconds: float) -> list[_Lane]:
        """Stops the lanes. Returns those that have ended."""
        if self._closing:
            return []
        self._closing = True
        if not self.is_over:
            self.fail(
                UsageError(
                    "a model can be detached, or adopt a plan, only between two steps; this was "
                    f"during the exchange of step {self.step}, in which the other ranks wait. Do "
                    "it after backward(), not in a hook"
                )
            )
        for queued in self.buckets:
            queued.ready.put(NOTHING)
        for lane in self._lanes:
            if lane.is_alive() and lane is not threading.current_thread():
                lane.join(timeout=patience_seconds)
        with self._lock:
            is_left, self._left = self._left > 0, 0
        if is_left:  # no lane will end the step, and `wait` would never return
            self._end()
        return [lane for lane in self._lanes if not lane.is_alive()]

    # -- the lanes' side -------------------------------------------------------------------

    def finished(self) -> None:
        """Counts one bucket as done; the last one ends the step for all."""
        with self._lock:
            self._left -= 1
            if self._left:  # below 0 once the step was given up
                return
        try:
            self.join_streams()
            if self.error is None:
                settle([queued.context.codec.verdict for queued in self.buckets])
                skipped = not all(queued.context.finite for queued in self.buckets)
                for queued in self.buckets:
                    queued.context.end(skipped)
                self._time_spans()
        except Exception as error:
            self.fail(error)
        if self.error is not None:
            self._abandon()
        self._end()

    def _time_spans(self) -> None:
        """Replaces spans on a device by those measured there: the host's times only show when it
        queued that work."""
        timed = {id(span): own for lane in self._lanes for span, own in lane.timed()}
        if timed:
            self.trace.spans[:] = [timed.get(id(span), span) for span in self.trace.spans]

    def _abandon(self) -> None:
        """Abandons all buckets of a failed step, so that no gradient of this rank alone passes for
        an average."""
        for queued in self.buckets:
            with suppress(Exception):  # the first error stays
                queued.context.abandon()

    def _end(self) -> None:
        try:
            self._on_end(self.error)
        except BaseException as error:
            self.fail(error)
        finally:
            self._done.set()

    def join_streams(self) -> None:
        """Makes the caller's CUDA stream wait for every lane's."""
        for lane in self._lanes:
            lane.order.join()

    @property
    def is_over(self) -> bool:
        """Whether no step is in progress."""
        return self._done.is_set()

    @property
    def closing(self) -> bool:
        """Whether the lanes must end."""
        return self._closing


_AT_WORK: weakref.WeakSet[Conductor] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Closes all conductors at exit: the interpreter would kill lanes that still wait, and C++
    frames on their stacks abort the process."""
    for conductor in list(_AT_WORK):
        conductor.close(patience_seconds=1.0)


def _leave_to_parent() -> None:
    """Leaves everything to the parent, in the child of a fork. Process groups are kept alive there
    for good: destroying them waits for threads that only the parent has, or crashes. That is true
    of torch's default group, too."""
    conductors = list(_AT_WORK)
    for conductor in conductors:
        conductor.orphan()
    groups = dist.distributed_c10d._world.pg_map if conductors else ()
    for kept in (*conductors, *groups):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


if hasattr(os, "register_at_fork"):  # where processes fork
    os.register_at_fork(after_in_child=_leave_to_parent)


class _Lane(Thread):
    """The thread of one lane: exchanges its buckets in order, step after step."""

    def __init__(
        self,
        conductor: Conductor,
        index: int,
        performer: Performer,
        buckets: Sequence[QueuedBucket],
    ) -> None:
        super().__init__(f"gradwire-lane-{index}")
        self._conductor, self._index, self._buckets = conductor, index, buckets
        self.performer, self.order = performer, LaneOrder(conductor._device)
        self.moments: list[tuple[Span, Moment, Moment]] = []  # this step's spans on a device

    @torch.no_grad()
    def run(self) -> None:
        while self._buckets:
            for queued in self._buckets:
                before = queued.ready.get()
                if self._conductor.closing:
                    return
                self._compute_like_its_trainer()
                gradients, results = queued.context.given
                with self.order.after(before):
                    self.order.uses((*gradients, *results))
                    self._run(queued)
                    self.order.hands_over(results, before)
                    del gradients, results  # so that the step's end frees them
                    self._conductor.finished()

    def _compute_like_its_trainer(self) -> None:
        """Uses as many intra-op threads as the training thread. Until a new thread asks for their
        number, its matrix products use as many as the process began with, whatever other threads
        passed to `torch.set_num_threads`. If ranks share processors, a small product then takes
        hundreds of times as long."""
        if torch.get_num_threads() != self._conductor.threads:
            torch.set_num_threads(self._conductor.threads)

    def _run(self, queued: QueuedBucket) -> None:
        if self._conductor.error is not None:
            return
        try:
            self._drive(queued)
        except BaseException as error:  # the step would wait for a lane that ended
            self._conductor.fail(error)
            if not isinstance(error, GradwireError):
                with suppress(Exception):
                    error.add_note(_told(queued))

    def _drive(self, queued: QueuedBucket) -> None:
        """Runs the collective's generator: local work up to a move, the move, and so on.

        A move is performed on the device of its data; without data, on that of the move before.
        """
        rounds, device = queued.context.rounds(), queued.context.device
        where = f"{queued.label} in step {self._conductor.step}"
        kind, began = "encode", self.order.now()
        with shown("encode", queued.label):
            move = next(rounds, None)
        if move is None:  # nothing is sent in this step
            self._span(kind, queued.label, began)
            return
        while True:
            began = self._span(kind, queued.label, began)
            check_move(move, self.performer.world)
            device = move.device or device
            performer = self.performer.at(device)
            sent = performer.bytes_sent(move)
            with shown("wire", f"{queued.label} {move.name}"):
                arrived = performer.perform(move, where)
            began = self._span("wire", f"{queued.label} {move.name}", began, sent, move.where)
            kind = "decode"
            try:
                with shown("decode", queued.label):
                    move = rounds.send(arrived)
            except StopIteration:
                self._span(kind, queued.label, began)
                return

    def _span(
        self, kind: str, label: str, began: Moment, sent: float = 0.0, group: str = "world"
    ) -> Moment:
        now, rank = self.order.now(), self.performer.rank
        times = began.seconds, now.seconds
        span = Span(rank, self._index, kind, label, *times, sent, group)
        if now.event is not None:
            self.moments.append((span, began, now))
        self._conductor.trace.add(span)
        return now

    def timed(self) -> Iterator[tuple[Span, Span]]:
        """Yields this step's spans on a device, each with a copy in the device's times."""
        for span, began, ended in self.moments:
            start, end = (moment.since(self.moments[0][1]) for moment in (began, ended))
            yield span, span._replace(start_seconds=start, end_seconds=end)


def shown(kind: str, label: str) -> AbstractContextManager[object]:
    """A context that labels a lane's work in torch's profiler, if it is on, by "gradwire" and the
    name that a span of it has in our own export. The profiler must show all threads
    (`profile_all_threads`), as lanes are not the thread that profiles."""
    if not torch.autograd.profiler._is_profiler_enabled:
        return nullcontext()
    return record_function(f"gradwire {range_name(kind, label)}")


def _told(queued: QueuedBucket) -> str:
    """Says where an error came from that is not one of gradwire's."""
    strategy = queued.context.strategy
    whose = outsiders((strategy.compressor, strategy.feedback, strategy.collective))
    return f"raised in {queued.label}{whose and f'; {whose}'}"
