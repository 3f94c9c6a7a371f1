"""Measures how much lanes and backward slow each other, which no number of cores tells.

main thread   backward ┄ alone ┄ │ ┄ beside local work ┄ │ ┄ beside moves ┄ │ ┄ beside ┄ │
lane 0                           │    kernels on memory  │    all-reduces   │   small ┄  │ small ┄
lane 1                           │                       │                  │            │ small ┄
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from statistics import mean
from time import perf_counter
from typing import TypeVar

import torch
from torch import nn

from gradwire import kernels
from gradwire.moves import AllReduce
from gradwire.planner.profile import Contention
from gradwire.runtime.threads import in_thread
from gradwire.runtime.torch_dist import Performer
from gradwire.tuning.agree import of_ranks

_SECONDS = 0.4  # per part of the measurement
_NOTHING = 1.1  # a smaller slowdown is noise
_LAYERS, _WIDTH, _ROWS = 30, 160, 32  # of the network whose backward is measured
_MOVED = 1 << 20  # elements of a large all-reduce
_LOCAL = 1 << 20  # elements of the local work
_SMALL = 2048  # elements of a move that takes little more than its start-up
_TURNS, _MOST = 8, 200  # turns of one lane and of two; the most small moves of a turn
_PAIRS = 3  # measurements of backward alone and beside local work
_FEWEST = 10  # the fewest small moves of a turn

T = TypeVar("T")


def measure(
    performers: Sequence[Performer], device: torch.device, backward_is_busy: bool = True,
    circle: Performer | None = None,
) -> Contention:  # fmt: skip
    """Measures contention. Collective. On CUDA it measures nothing: processors do not run backward
    there.

    performers: of the lanes; with two or more, it measures how start-ups share processors.
    backward_is_busy: whether the job's backward keeps a processor busy on any rank; if not,
    nothing slows it, nor does it slow anything.
    circle: the ranks that measure together, by default those of the first lane.
    """
    if device.type != "cpu":
        return Contention()
    performer = performers[0]
    ranks = circle or performer
    seconds = 2 * _SECONDS / _TURNS
    count = _count(performer, ranks, _SMALL, 2 * _FEWEST, seconds, (_FEWEST, _MOST))
    one, pair = _one_and_pair(performers, ranks, count)
    sharing = sharing_of(pair / one)
    if not backward_is_busy:
        return Contention(start_sharing=sharing)
    backward = _Backward()
    alone, slowdown = _local_slowdown(ranks, backward)
    cores = cores_of(slowdown)
    large = _count(performer, ranks, _MOVED, 1, _SECONDS, (2, sys.maxsize))
    moving, _ = _beside(partial(_moves, performer, _MOVED, large), backward)
    starting, took = _beside(partial(_moves, performer, _SMALL, count), backward)
    return Contention(
        cores,
        wire_demand=demand_of(_agreed(ranks, alone / moving), cores),
        start_slowdown=max(1.0, _agreed(ranks, took) / one),
        start_sharing=sharing,
        start_demand=demand_of(_agreed(ranks, alone / starting), cores),
        wake_seconds=_agreed(ranks, _wake_seconds(backward)),
    )


def cores_of(slowdown: float) -> float:
    """Returns how many processors backward and a lane share if each takes `slowdown` times as
    long beside the other."""
    return math.inf if slowdown < _NOTHING else max(1.0, 2.0 / slowdown)


def demand_of(slowdown: float, cores: float) -> float:
    """Returns the processors that moves demand if they slow backward, which demands one, this
    much: one at most, as one thread moves."""
    if math.isinf(cores) or slowdown < _NOTHING / 1.05:
        return 0.0
    return min(1.0, max(0.0, slowdown * cores - 1.0))


def sharing_of(slowdown: float) -> float:
    """Returns `Contention.start_sharing` if small moves of two lanes at once take `slowdown` times
    as long as one lane's: processors do the work of start-ups one after the other; the waiting
    overlaps."""
    return max(0.0, slowdown - 1.0) if slowdown >= _NOTHING else 0.0


class _Backward:
    """A network's backward, with a hook per parameter: it holds the interpreter at times."""

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):  # leaves the job's own random state untouched
            self._layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
            self._x = torch.rand(_ROWS, _WIDTH, dtype=torch.float32)
        self._network = nn.Sequential(*self._layers)
        for p in self._network.parameters():
            p.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[no-untyped-call]

    def each(self, call: Callable[[], None]) -> None:
        """Makes every backward run `call` from a hook in its middle."""
        middle = self._layers[_LAYERS // 2].weight
        middle.register_post_accumulate_grad_hook(lambda _: call())  # type: ignore[no-untyped-call]

    def rate(self, seconds: float, until: Future[float] | None = None) -> float:
        """Returns backwards per second of backward, run for `seconds` or, if given, until `until`
        is done. Enables gradients, whatever mode the caller is in."""
        count, spent, began = 0, 0.0, perf_counter()
        with torch.enable_grad():
            while True:
                loss = self._network(self._x).sum()
                before = perf_counter()
                loss.backward()
                now = perf_counter()
                count, spent = count + 1, spent + now - before
                if now - began >= seconds if until is None else until.done():
                    return count / spent


def _agreed(ranks: Performer, value: float) -> float:
    """Returns the mean over all ranks. Collective."""
    return float(of_ranks(ranks, [value]).mean())


def _local_slowdown(ranks: Performer, backward: _Backward) -> tuple[float, float]:
    """Returns the rate of backward alone, and how many times as long it takes beside local work.
    All ranks do the same at the same time, as they may share processors."""
    alone, beside = list[float](), list[float]()
    for _ in range(_PAIRS):
        _agreed(ranks, 0.0)
        alone.append(backward.rate(_SECONDS))
        _agreed(ranks, 0.0)
        beside.append(_beside(_local_work, backward)[0])
    return mean(alone), _agreed(ranks, mean(alone) / mean(beside))


def _beside(work: Callable[[], None], backward: _Backward) -> tuple[float, float]:
    """Returns the rate of backward while another thread works, and the seconds of that work."""

    def timed() -> float:
        began = perf_counter()
        work()
        return perf_counter() - began

    working = _as_lane(timed)
    rate = backward.rate(0.0, until=working)
    return rate, working.result()


def _as_lane(work: Callable[[], T]) -> Future[T]:
    """Returns what work in a thread of its own returns, with the intra-op threads of lanes."""
    intra_op = torch.get_num_threads()

    def run() -> T:
        torch.set_num_threads(intra_op)
        return work()

    return in_thread(run, "gradwire-probe")


def _local_work() -> None:
    x, half = torch.ones(_LOCAL, dtype=torch.float32), torch.empty(_LOCAL, dtype=torch.bfloat16)
    began = perf_counter()
    while perf_counter() - began < _SECONDS:
        kernels.cast(x, half)


def _moves(performer: Performer, elements: int, count: int) -> None:
    data = torch.zeros(elements, dtype=torch.float32)
    for _ in range(count):
        performer.perform(AllReduce(data), "the probe")


def _count(
    performer: Performer, ranks: Performer, elements: int, tried: int, seconds: float,
    within: tuple[int, int],
) -> int:  # fmt: skip
    """Returns how many all-reduces take so long, by `tried` of them; the same on every rank."""
    began = perf_counter()
    _moves(performer, elements, tried)
    once = _agreed(ranks, perf_counter() - began) / tried
    least, most = within
    return max(least, min(most, int(seconds / once)))


def _wake_seconds(backward: _Backward) -> float:
    """Returns mean seconds from the hook that hands over a bucket to the waiting lane's start."""
    handed, took = SimpleQueue[float | None](), list[float]()

    def lane() -> None:
        while (at := handed.get()) is not None:
            took.append(perf_counter() - at)

    waiting = _as_lane(lane)
    backward.each(lambda: handed.put(perf_counter()))
    backward.rate(_SECONDS)
    handed.put(None)
    waiting.result()
    return mean(took) if took else 0.0


def _one_and_pair(
    performers: Sequence[Performer], ranks: Performer, count: int
) -> tuple[float, float]:
    """Returns seconds of so many small moves by one lane, and by each of two lanes at once, if
    there are two."""
    one, pair = list[float](), list[float]()
    for _ in range(_TURNS):
        one.append(_small_seconds(performers[:1], ranks, count))
        pair.append(_small_seconds(performers[:2], ranks, count))
    return mean(one), mean(pair)


def _small_seconds(performers: Sequence[Performer], ranks: Performer, count: int) -> float:
    """Returns seconds of so many small moves per lane, all lanes at once; the mean over ranks."""
    began = perf_counter()
    for moving in [_as_lane(partial(_moves, p, _SMALL, count)) for p in performers]:
        moving.result()
    return _agreed(ranks, perf_counter() - began)
