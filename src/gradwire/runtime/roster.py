"""Which processes train together, now that some are lost and others come: a list in the store.

    epoch 0: processes 0 1 2 3 ── 2 is lost ──► epoch 1: 0 1 3 ── 4 has come ──► epoch 2: 0 1 3 4

The store decides. Whoever first sees that all others are there or silent writes the next epoch's
list, by a compare-and-set that only one can win; a process that is not in it ends with an error.
A process that computes for long is not taken for lost, because a thread of it answers.

Keys, below "gradwire/": "starts/RANK", how often this rank was started; "came", the number of
processes that came later; "asks/P", how often one of them has asked; and of each epoch E "E/lost",
once one of its processes is missed, "E/here/P" of those that have noticed, "E/beat/P" of those
that live, and "E/processes", the list.
"""

from __future__ import annotations

import atexit
import json
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic, sleep
from typing import Any, TypeVar

import torch.distributed as dist

from gradwire.errors import PeerError
from gradwire.runtime.silent_ranks import STORE_SECONDS, of_store
from gradwire.runtime.threads import Thread

BEAT_SECONDS = 0.2
"""A live process answers so often while one is missed, and looks so often whether one is."""

SILENT_SECONDS = 2.0
"""A process that has not answered for so long is lost: ten beats, as machines may be busy."""

CONNECT_SECONDS = 10.0
"""The processes of a new list must have connected after so long, or one of them is lost, too."""

T = TypeVar("T")


class Roster:
    """The list of processes of one epoch, as one of them sees it.

    store: outlives every process. own: this process; processes: all of the epoch, by rank.
    at_start: the number of processes in the first one.
    """

    def __init__(
        self, store: Any, own: int, processes: list[int], at_start: int, epoch: int = 0
    ) -> None:
        self.store, self.own, self.processes, self.epoch = store, own, processes, epoch
        self.is_joining = epoch > 0  # until this process has attached beside those that train
        self._at_start, self._settled = at_start, set[int]()
        self._asked = dict[int, tuple[int, float]]()  # how often each has asked, and when it did
        self._group: Callable[[], Any] = _default_group()
        self._can_take_up = True  # while the store answers
        self._pulse: Thread | None = None
        self._ended, self._excepthook = threading.Event(), sys.excepthook
        self._takes_part: Callable[[], bool] = bool

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.processes.index(self.own)

    @property
    def is_of_default_group(self) -> bool:
        """Whether torch's default group is still the one that this roster knows of."""
        return self._group() is not None and self._group() is dist.group.WORLD

    def watch(self, takes_part: Callable[[], bool]) -> None:
        """Begin to answer, from a thread of its own, once a process is missed, as long as this one
        takes part."""
        self._takes_part, self.is_joining = takes_part, False
        if self._pulse is None:
            self._pulse = Thread("gradwire-pulse", self._beat)
            self._pulse.start()
            atexit.register(self.close)

    def close(self) -> None:
        """End the thread: at exit it must not be amid a call of the store."""
        self._ended.set()
        if self._pulse is not None:
            self._pulse.join(timeout=1.0)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(Exception):  # the store may be gone: the exchange tells that
                if self._takes_part() and self.store.check([self._key("lost")]):
                    self.store.add(self._key(f"beat/{self.own}"), 1)

    def without_lost(self, steps: int, timeout_seconds: float) -> None:
        """Go on to the next epoch, with the processes that come here or still answer. Blocks until
        all of these have come, each after its own exchange has failed.

        steps: of the optimizer on this process. Those with the most come first in the new list.

        Raises:
            PeerError: the others went on without this process, or one that lives did not come
                within the timeout; or the store is lost, too.
        """
        self._of_store(lambda: self._meet(steps, timeout_seconds), timeout_seconds + STORE_SECONDS)

    def _meet(self, steps: int, timeout_seconds: float) -> None:
        self.store.set(self._key(f"here/{self.own}"), f"{steps}")
        self.store.set(self._key("lost"), "yes")
        seen, deadline = _Beats(self.store), monotonic() + timeout_seconds
        following = f"gradwire/{self.epoch + 1}/processes"
        while not self.store.check([following]):
            here = [p for p in self.processes if self.store.check([self._key(f"here/{p}")])]
            away = [p for p in self.processes if p not in here]
            if all(seen.is_silent(p, self._key(f"beat/{p}")) for p in away):
                done = {p: int(self.store.get(self._key(f"here/{p}"))) for p in here}
                self._propose(sorted(here, key=lambda p: (-done[p], p)))
                break
            if monotonic() > deadline:
                raise PeerError(
                    f"ranks must notice within {timeout_seconds} s that one was lost; process "
                    f"{', '.join(map(str, away))} still answers, and has not. Look at its log; "
                    "pass a longer timeout_seconds if its step takes longer."
                )
            sleep(BEAT_SECONDS / 4)
        self._follow()

    def with_asking(self, newcomers: list[int]) -> None:
        """Go on to the next epoch, with these processes, too. All processes call it alike."""
        self._settled.update(newcomers)  # one that fails to join asks under another number

        def go_on() -> None:
            self._propose([*self.processes, *newcomers])
            self._follow()

        self._of_store(go_on, STORE_SECONDS)

    def asking(self) -> list[int]:
        """Returns the processes that have asked to join since this was called last: those that
        have died meanwhile do not ask again. If the store is lost, warns once, and returns none
        from then on, as training needs it only where ranks are lost or come."""
        if not self._can_take_up:
            return []
        try:
            return self._of_store(self._asking, STORE_SECONDS)
        except PeerError as error:
            self._can_take_up = False
            warnings.warn(
                f"training goes on until a rank is lost, but no rank can join: {error}",
                stacklevel=2,
            )
            return []

    def _asking(self) -> list[int]:
        came = range(self._at_start, self._at_start + self.store.add("gradwire/came", 0))
        found, now = list[int](), monotonic()
        for p in (p for p in came if p not in self._settled):
            count = self.store.add(f"gradwire/asks/{p}", 0)
            before, since = self._asked.setdefault(p, (count, now))
            if p in self.processes or (count == before and now - since > CONNECT_SECONDS):
                self._settled.add(p)  # it has joined, or is dead; there may be many by and by
            elif count > before:
                self._asked[p] = count, now
                found.append(p)
        return found

    def _of_store(self, ask: Callable[[], T], seconds: float) -> T:
        """Returns what `ask` does, which calls the store. Raises PeerError if that is lost."""
        try:
            return of_store(ask, seconds)
        except PeerError:
            raise
        except (TimeoutError, RuntimeError, ConnectionError) as error:
            why = f"it did not answer within {seconds:g} s"
            if not isinstance(error, TimeoutError):
                why = str(error).splitlines()[0]
            raise PeerError(
                "the rendezvous store must outlive all ranks, as it decides who goes on; it is "
                f"lost: {why}. Restart all from a checkpoint, and let a process that stays host "
                "it, with TORCHELASTIC_USE_AGENT_STORE=True for the ranks."
            ) from error

    def _propose(self, processes: list[int]) -> None:
        following = f"gradwire/{self.epoch + 1}/processes"
        self.store.compare_set(following, "", json.dumps(processes))

    def _follow(self) -> None:
        """Take over the next epoch's list."""
        processes = json.loads(self.store.get(f"gradwire/{self.epoch + 1}/processes"))
        if self.own not in processes:
            raise PeerError(
                f"the other ranks went on without this one, which had not answered for "
                f"{SILENT_SECONDS} s: ranks {processes} are left. Start this process again, and "
                "it will join them."
            )
        self.processes, self.epoch = processes, self.epoch + 1

    def make_group(self, backend: str, timeout: timedelta) -> None:
        """Make the default process group of this epoch's processes, in place of the one there is.
        Collective; raises what torch raises if one of them does not come."""
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.excepthook = self._excepthook  # to which torch adds its own each time
        # Groups find each other by number, and one that could not be made has counted, too.
        dist.distributed_c10d._world.group_count = 0
        name = f"gradwire/{self.epoch}/group"
        store = dist.distributed_c10d.PrefixStore(name, self.store)
        dist.init_process_group(
            backend, store=store, rank=self.rank, world_size=len(self.processes), timeout=timeout
        )
        self._group = _default_group()

    def _key(self, name: str) -> str:
        return f"gradwire/{self.epoch}/{name}"


def _default_group() -> Callable[[], Any]:
    """Returns a weak reference to torch's default group, which closes with its last strong one."""
    group = dist.group.WORLD if dist.is_initialized() else None
    return (lambda: None) if group is None else weakref.ref(group)


class _Beats:
    """When processes were last heard of."""

    def __init__(self, store: Any) -> None:
        self._store, self._heard = store, dict[int, tuple[int, float]]()

    def is_silent(self, process: int, key: str) -> bool:
        """Whether a process has not answered for too long."""
        count, now = self._store.add(key, 0), monotonic()
        before, since = self._heard.setdefault(process, (count, now))
        if count != before:
            self._heard[process] = count, now
            return False
        return now - since > SILENT_SECONDS


def joined(store: Any, rank: int, world: int, timeout_seconds: float) -> Roster:
    """Returns the roster of a process that starts: of the first epoch, or, if its rank was started
    before, of the one that takes it up. Blocks until then."""
    if store.add(f"gradwire/starts/{rank}", 1) == 1:
        return Roster(store, rank, list(range(world)), world)
    own, epoch = world - 1 + store.add("gradwire/came", 1), 0
    deadline = monotonic() + timeout_seconds
    while monotonic() < deadline:
        store.add(f"gradwire/asks/{own}", 1)
        while store.check([f"gradwire/{epoch + 1}/processes"]):
            epoch += 1
            processes = json.loads(store.get(f"gradwire/{epoch}/processes"))
            if own in processes:
                return Roster(store, own, processes, world, epoch)
        sleep(BEAT_SECONDS)
    raise PeerError(
        f"a rank that is started again joins those that train within {timeout_seconds} s; none "
        "took it up. They need gradwire.attach(…, on_failure='shrink'); if none is left, begin "
        "anew with another rendezvous store."
    )
