"""A thread that dies before it begins ends its starter's wait."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from gradwire.runtime import threads
from gradwire.runtime.silent_ranks import silent_ranks
from gradwire.runtime.threads import Thread, in_thread


@pytest.fixture
def dies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads run out of memory where CPython tells nobody."""

    def bootstrap(self: threading.Thread) -> None:
        raise SystemExit  # as silent as the MemoryError that the interpreter prints

    monkeypatch.setattr(threading.Thread, "_bootstrap", bootstrap)
    monkeypatch.setattr(threads, "START_SECONDS", 0.05)


def test_a_thread_that_dies_before_it_begins_is_an_error(dies_at_once: None) -> None:
    with pytest.raises(MemoryError, match=r"mine cannot begin: it died before .*ulimit -v"):
        Thread("mine").start()


def test_a_thread_that_the_system_refuses_is_the_same_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    for name in ("_start_new_thread", "_start_joinable_thread"):  # up to Python 3.12, and later
        monkeypatch.setattr(threading, name, refused, raising=False)
    with pytest.raises(MemoryError, match="mine cannot begin: can't start new thread"):
        Thread("mine").start()


def test_a_rank_that_cannot_ask_for_others_calls_none_of_them_gone(
    dies_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 5)
    told = silent_ranks(None, "here")  # type: ignore[arg-type] # never asked
    assert told.startswith("rank 5, this one, cannot ask which ranks failed: thread")


def test_a_thread_hands_on_what_its_work_returns_and_raises() -> None:
    assert in_thread(lambda: threading.current_thread().name, "mine").result(10) == "mine"

    def fails() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        in_thread(fails, "mine").result(10)
