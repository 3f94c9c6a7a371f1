"""Ranks for tests: a pool of processes over Gloo that run module-level functions, all at once.

    with Ranks(3, tmp_path) as ranks:
        ranks.run(function, *arguments)       # one value per rank, or RanksFailed
        ranks.outcomes(function, *arguments)  # one Outcome per rank, whatever happened

    side_by_side(tmp_path, [(3, job), (4, other)])  # outcomes of each, in pools of their own

A fork server imports torch and all members once, with what an optimizer, FSDP and checkpoints
import when they are first used, so a pool costs an eighth of a second. Every call has a hard time
limit; a rank that passes it is asked for the stacks of all its threads, then killed. In ranks,
too, warnings are errors.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradwire.soundness import SoundnessWarning

PRELOADED = (
    "gradwire.collectives", "gradwire.compressors", "gradwire.feedback", "gradwire.testing",
    "gradwire.tuning.attach", "torch._dynamo", "torch.distributed.checkpoint",
    "torch.distributed.fsdp", "torch.profiler", "broken", "pytest", "ranks", "small", "suites",
)  # fmt: skip
"""Modules that the fork server imports once."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([*PRELOADED])
_NUMBERS = itertools.count()
"""Numbers of pools: the store's file of an ended pool still holds the addresses of its ranks."""


class RanksFailed(AssertionError):
    """At least one rank raised, died or hung; the text holds every rank's story."""


@dataclass
class Outcome:
    """What became of one rank: a value, an exception with its traceback, a death, or a hang."""

    value: Any = None
    error: BaseException | None = None
    story: str = ""
    died: bool = False
    hung: bool = False

    @property
    def ok(self) -> bool:
        return not self.story


def stories(outcomes: Sequence[Outcome]) -> str:
    """What became of each rank, whole: pytest cuts what it shows of objects."""
    return "\n".join(f"--- rank {r}: {o.story or 'fine'}" for r, o in enumerate(outcomes))


class Ranks:
    """N processes in one default process group, whose store is a FileStore or, by "tcp", a
    TCPStore."""

    def __init__(
        self, world: int, directory: Path, *, timeout_seconds: float = 240.0, store: str = "file"
    ) -> None:
        self.world, self._timeout_seconds, self._store = world, timeout_seconds, store
        self._directory = directory
        self._start()

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Calls function(*args) on every rank; returns the values in rank order."""
        outcomes = self.outcomes(function, *args, **options)
        if not all(o.ok for o in outcomes):
            self.close()  # whatever state the ranks are in, the next test begins with new ones
            raise RanksFailed(stories(outcomes))
        return [o.value for o in outcomes]

    def outcomes(
        self, function: Callable[..., Any], *args: Any, timeout_seconds: float | None = None
    ) -> list[Outcome]:
        """Calls function(*args) on every rank; returns every rank's outcome."""
        if not all(p.is_alive() for p in self._processes):
            self.close()
            self._start()
        for pipe in self._pipes:
            pipe.send((function, args))
        return self._gathered(timeout_seconds or self._timeout_seconds)

    def _gathered(self, seconds: float) -> list[Outcome]:
        """Waits for one outcome of each rank; if one of them hangs, all are ended."""
        deadline, found = time.monotonic() + seconds, dict[int, Outcome]()
        while len(found) < self.world:
            waiting = {self._pipes[r]: r for r in range(self.world) if r not in found}
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]
                found[rank] = self._received(rank)
        hung = [r for r in range(self.world) if r not in found]
        for r in hung:
            found[r] = Outcome(hung=True, story=f"hung; its threads:\n{self._stacks(r)}")
        if hung:
            self.close()
        return [found[r] for r in range(self.world)]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        place = self._directory / f"store-{os.getpid()}-{next(_NUMBERS)}"
        self._processes, self._pipes = [], []
        for rank in range(self.world):
            mine, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(
                target=_worker,
                args=(rank, self.world, str(place), theirs, self._store),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(mine)
        self._place = place
        self._meet()

    def _meet(self) -> None:
        """Waits until all ranks are connected: a job may end the group while others still
        connect."""
        outcomes = self._gathered(self._timeout_seconds)
        if not all(o.ok for o in outcomes):
            self.close()
            raise RanksFailed(f"no process group: {[o.story for o in outcomes]}")

    def _received(self, rank: int) -> Outcome:
        try:
            data = self._pipes[rank].recv_bytes()
        except (EOFError, ConnectionError):
            self._processes[rank].join(5.0)
            story = f"died, exit code {self._processes[rank].exitcode}; {self._stacks(rank)}"
            return Outcome(died=True, story=story)
        outcome: Outcome = pickle.loads(data)
        return outcome

    def _stacks(self, rank: int) -> str:
        pid, path = self._processes[rank].pid, Path(f"{self._place}.stacks.{rank}")
        if pid is not None and self._processes[rank].is_alive():
            os.kill(pid, signal.SIGUSR1)
            time.sleep(0.3)
        return path.read_text() if path.exists() else "(none)"


def side_by_side(
    directory: Path, jobs: Sequence[tuple[int, Callable[[], Any]]], *, store: str = "file"
) -> list[list[Outcome]]:
    """Runs each job on a pool of its own, all jobs at once: for jobs that wait for a timeout."""
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(Ranks(n, directory, store=store)) for n, _ in jobs]
        with ThreadPoolExecutor(len(jobs)) as threads:
            calls = [threads.submit(p.outcomes, job) for p, (_, job) in zip(pools, jobs)]
            return [call.result() for call in calls]


def _worker(rank: int, world: int, place: str, pipe: Connection, store: str) -> None:
    gc.freeze()  # keeps the collector from looking through what the fork server imported
    stacks = open(f"{place}.stacks.{rank}", "w")  # noqa: SIM115 - as long as the process
    faulthandler.enable(file=stacks)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    warnings.resetwarnings()
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    warnings.simplefilter("ignore", SoundnessWarning)  # these tests are not about learning
    warnings.filterwarnings("ignore", message="gradwire's native kernels are not installed")
    dist.init_process_group(
        "gloo",
        store=_make_store(store, place, rank, world),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    pipe.send_bytes(_pickled(Outcome()))
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            os._exit(0)
        outcome = Outcome()
        try:
            outcome.value = function(*args)
        except BaseException as error:
            outcome.error, outcome.story = error, traceback.format_exc()
        pipe.send_bytes(_pickled(outcome))


def _make_store(kind: str, place: str, rank: int, world: int) -> dist.Store:
    """Makes a FileStore or, for "tcp", a TCPStore that rank 0 hosts; a file tells its port."""
    if kind == "file":
        return dist.FileStore(place, world)
    port, limit = Path(f"{place}.port"), timedelta(seconds=30)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world, True, limit, wait_for_workers=False)
        port.with_suffix(".new").write_text(str(store.port))
        port.with_suffix(".new").rename(port)
        return store
    while not port.exists():
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(port.read_text()), world, False, limit)


def _pickled(outcome: Outcome) -> bytes:
    """Pickles an outcome; an exception that cannot be pickled becomes its text."""
    with contextlib.suppress(Exception):
        data = pickle.dumps(outcome)
        pickle.loads(data)
        return data
    return pickle.dumps(
        Outcome(error=RuntimeError(repr(outcome.error)), story=outcome.story or "?")
    )


# The fork server imports this module by its short name, as the tests do.
sys.modules.setdefault("ranks", sys.modules[__name__])
