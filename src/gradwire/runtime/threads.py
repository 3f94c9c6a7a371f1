"""Threads that begin, or whose start raises: CPython's may wait for good."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

START_SECONDS = 30.0
"""A thread that has not begun by then died before it could."""


class Thread(threading.Thread):
    """A daemon thread. If there is no memory for it, `start` raises MemoryError, where CPython's
    own waits for good for a thread that has died before it began (cpython issue 140746)."""

    def __init__(self, name: str, target: Callable[[], None] | None = None) -> None:
        super().__init__(name=name, target=target, daemon=True)
        self._started = _Begun()  # only `start` waits for it

    def start(self) -> None:
        """Starts the thread, once.

        Raises:
            MemoryError: the process may have no more memory, or no more threads.
        """
        try:
            super().start()
            return
        except (RuntimeError, TimeoutError) as error:
            reason = str(error)
        raise MemoryError(
            f"thread {self.name} cannot begin: {reason}. Give this process more memory or threads "
            "(ulimit -v, ulimit -u)."
        )


class _Begun(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        # A process that was stopped meanwhile finds its time over before its thread could begin.
        if not (super().wait(START_SECONDS) or super().wait(1.0)):
            raise TimeoutError("it died before it could begin")
        return True


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Returns what `work` will have returned or raised, in a thread of its own.

    Raises:
        MemoryError: as `Thread.start`.
    """
    answer = Future[T]()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    Thread(name, run).start()
    return answer
