"""How much lanes and backward slow each other: measured, not derived from a number of cores.

main thread   compute ┄┄┄ alone ┄┄┄ │ ┄┄ beside local work ┄┄ │ ┄┄ beside moves ┄┄
lane                                │    kernels on memory    │    all-reduces
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.moves import AllGather, AllReduce
from gradwire.planner.profile import Contention
from gradwire.runtime.torch_dist import Performer

_SECONDS = 0.4  # of each part
_NOTHING = 1.1  # times as long: what noise alone does
_SIDE = (
    192  # of matrices whose products are the compute: they stay in a cache, as layers' tiles do
)
_MOVED = 1 << 20  # elements, of an all-reduce
_LOCAL = 1 << 20


def measure(performer: Performer, device: torch.device) -> Contention:
    """Collective. On CUDA nothing is measured: processors do not run backward there."""
    if device.type != "cpu":
        return Contention()
    alone = _rate(_SECONDS)
    local = _beside(_local_work)
    cores = cores_of(_agreed(performer, alone / local))
    moving = _beside(_moves(performer))
    wire_demand = demand_of(_agreed(performer, alone / moving), cores)
    return Contention(cores, wire_demand)


def cores_of(slowdown: float) -> float:
    """Backward and a lane share so many processors that each takes `slowdown` times as long."""
    return math.inf if slowdown < _NOTHING else max(1.0, 2.0 / slowdown)


def demand_of(slowdown: float, cores: float) -> float:
    """What moves demand beside backward, which demands one."""
    if math.isinf(cores) or slowdown < _NOTHING / 1.05:
        return 0.0
    return max(0.0, slowdown * cores - 1.0)


def _agreed(performer: Performer, value: float) -> float:
    """The mean of all ranks'."""
    mine = torch.tensor([value], dtype=torch.float64)
    arrived = performer.perform(AllGather(mine), "the probe")
    assert isinstance(arrived, Tensor)
    return float(arrived.mean())


def _rate(seconds: float, until: threading.Thread | None = None) -> float:
    """Products per second, for so long or until a thread ends."""
    a, count, began = torch.rand(_SIDE, _SIDE), 0, perf_counter()
    while True:
        a @ a
        count += 1
        took = perf_counter() - began
        if took >= seconds if until is None else not until.is_alive():
            return count / took


def _beside(work: Callable[[], None]) -> float:
    """The rate of the compute while another thread works."""
    thread = threading.Thread(target=work, name="gradwire-probe", daemon=True)
    thread.start()
    rate = _rate(0.0, until=thread)
    thread.join()
    return rate


def _local_work() -> None:
    x, half = torch.rand(_LOCAL), torch.empty(_LOCAL, dtype=torch.bfloat16)
    began = perf_counter()
    while perf_counter() - began < _SECONDS:
        kernels.cast(x, half)


def _moves(performer: Performer) -> Callable[[], None]:
    """As many all-reduces as take so long, the same number on every rank."""
    data = torch.zeros(_MOVED)
    began = perf_counter()
    performer.perform(AllReduce(data), "the probe")
    once = _agreed(performer, perf_counter() - began)
    count = max(2, int(_SECONDS / once))

    def move() -> None:
        for _ in range(count):
            performer.perform(AllReduce(data), "the probe")

    return move
