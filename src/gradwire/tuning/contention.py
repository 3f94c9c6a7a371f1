"""How much lanes and backward slow each other: measured, not derived from a number of cores.

main thread   backward ┄ alone ┄ │ ┄ beside local work ┄ │ ┄ beside moves ┄ │ ┄ beside ┄ │
lane 0                           │    kernels on memory  │    all-reduces   │   small ┄  │ small ┄
lane 1                           │                       │                  │            │ small ┄
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from statistics import mean
from time import perf_counter

import torch
from torch import nn

from gradwire import kernels
from gradwire.moves import AllReduce
from gradwire.planner.profile import Contention
from gradwire.runtime.torch_dist import Performer
from gradwire.tuning.agree import of_ranks

_SECONDS = 0.4  # of each part
_NOTHING = 1.1  # times as long: what noise alone does
_LAYERS, _WIDTH, _ROWS = 30, 160, 32  # of the network whose backward is measured
_MOVED = 1 << 20  # elements, of an all-reduce
_LOCAL = 1 << 20
_SMALL = 2048  # elements, of a move whose start-up is all that counts
_TURNS, _MOST = 8, 200  # of one lane and of two; small moves of a turn
_PAIRS = 3  # of backward alone and beside local work
_FEWEST = 10  # small moves


def measure(
    performers: Sequence[Performer], device: torch.device, backward_is_busy: bool = True,
    circle: Performer | None = None,
) -> Contention:  # fmt: skip
    """Collective. On CUDA nothing is measured: processors do not run backward there.

    performers: of the lanes; how start-ups share processors is seen where there are two.
    backward_is_busy: whether the job's own keeps a processor busy, on any rank; else nothing slows
    it, nor does it slow anything.
    circle: who measures together, by default the ranks of the first lane.
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
    """Backward and a lane share so many processors that each takes `slowdown` times as long."""
    return math.inf if slowdown < _NOTHING else max(1.0, 2.0 / slowdown)


def demand_of(slowdown: float, cores: float) -> float:
    """What moves demand beside backward, which demands one: one at most, as one thread moves."""
    if math.isinf(cores) or slowdown < _NOTHING / 1.05:
        return 0.0
    return min(1.0, max(0.0, slowdown * cores - 1.0))


def sharing_of(slowdown: float) -> float:
    """Small moves of two lanes at once take `slowdown` times as long as one lane's: of a start-up,
    what processors do is done one after the other, what is waiting at once."""
    return max(0.0, slowdown - 1.0) if slowdown >= _NOTHING else 0.0


class _Backward:
    """A network's backward, with a hook per parameter: what holds the interpreter now and then."""

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):  # the job's own numbers stay as they were
            self._layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
            self._x = torch.rand(_ROWS, _WIDTH)
        self._network = nn.Sequential(*self._layers)
        for p in self._network.parameters():
            p.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[no-untyped-call]

    def each(self, call: Callable[[], None]) -> None:
        """Calls, from a hook in the middle of backward."""
        middle = self._layers[_LAYERS // 2].weight
        middle.register_post_accumulate_grad_hook(lambda _: call())  # type: ignore[no-untyped-call]

    def rate(self, seconds: float, until: Future[float] | None = None) -> float:
        """Per second of backward, for so long or until something is done. Makes its own gradients,
        whatever mode the caller is in."""
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
    """The mean of all ranks'."""
    return float(of_ranks(ranks, [value]).mean())


def _local_slowdown(ranks: Performer, backward: _Backward) -> tuple[float, float]:
    """The rate of backward alone, and how many times as long it takes beside local work. All ranks
    do the same at the same time: they may share processors."""
    alone, beside = list[float](), list[float]()
    for _ in range(_PAIRS):
        _agreed(ranks, 0.0)
        alone.append(backward.rate(_SECONDS))
        _agreed(ranks, 0.0)
        beside.append(_beside(_local_work, backward)[0])
    return mean(alone), _agreed(ranks, mean(alone) / mean(beside))


def _beside(work: Callable[[], None], backward: _Backward) -> tuple[float, float]:
    """The rate of backward while another thread works, and the seconds of that work."""

    def timed() -> float:
        began = perf_counter()
        work()
        return perf_counter() - began

    with _threads(1) as threads:
        working = threads.submit(timed)
        rate = backward.rate(0.0, until=working)
        return rate, working.result()


def _threads(count: int) -> ThreadPoolExecutor:
    """What goes wrong there is raised where the result is asked for."""
    intra_op = (torch.get_num_threads(),)  # as lanes do
    return ThreadPoolExecutor(count, "gradwire-probe", torch.set_num_threads, intra_op)


def _local_work() -> None:
    x, half = torch.ones(_LOCAL), torch.empty(_LOCAL, dtype=torch.bfloat16)
    began = perf_counter()
    while perf_counter() - began < _SECONDS:
        kernels.cast(x, half)


def _moves(performer: Performer, elements: int, count: int) -> None:
    data = torch.zeros(elements)
    for _ in range(count):
        performer.perform(AllReduce(data), "the probe")


def _count(
    performer: Performer, ranks: Performer, elements: int, tried: int, seconds: float,
    within: tuple[int, int],
) -> int:  # fmt: skip
    """How many all-reduces take so long, by some that are tried; the same on every rank."""
    began = perf_counter()
    _moves(performer, elements, tried)
    once = _agreed(ranks, perf_counter() - began) / tried
    least, most = within
    return max(least, min(most, int(seconds / once)))


def _wake_seconds(backward: _Backward) -> float:
    """Seconds from a hook, as a bucket is handed over, to the lane that waits for it: the mean."""
    handed, took = SimpleQueue[float | None](), list[float]()

    def lane() -> None:
        while (at := handed.get()) is not None:
            took.append(perf_counter() - at)

    with _threads(1) as threads:
        waiting = threads.submit(lane)
        backward.each(lambda: handed.put(perf_counter()))
        backward.rate(_SECONDS)
        handed.put(None)
        waiting.result()
    return mean(took) if took else 0.0


def _one_and_pair(
    performers: Sequence[Performer], ranks: Performer, count: int
) -> tuple[float, float]:
    """Seconds of so many small moves by one lane, and by each of two at once if there are two."""
    one, pair = list[float](), list[float]()
    for _ in range(_TURNS):
        one.append(_small_seconds(performers[:1], ranks, count))
        pair.append(_small_seconds(performers[:2], ranks, count))
    return mean(one), mean(pair)


def _small_seconds(performers: Sequence[Performer], ranks: Performer, count: int) -> float:
    """So many small moves of each lane, all lanes at once; the mean of ranks."""
    with _threads(len(performers)) as threads:
        began = perf_counter()
        for moving in [threads.submit(_moves, p, _SMALL, count) for p in performers]:
            moving.result()
        took = perf_counter() - began
    return _agreed(ranks, took)
