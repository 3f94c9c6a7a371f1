"""Long native calls end when a signal's handler raises, as Ctrl-C's does."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import FrameType

import numpy as np
import pytest
import torch

from gradwire.kernels import choices, schedule
from gradwire.kernels.jobs import Jobs, Machine, jobs_of
from gradwire.network import Flows, leaf_spine, route
from gradwire.network.colouring import Side, colour
from gradwire.network.engines.maxmin import Rows, Transfers, run
from gradwire.network.failures import sweep
from gradwire.network.least_loaded import least_loaded
from gradwire.network.native import core
from gradwire.network.samples import samples

pytestmark = pytest.mark.skipif(core() is None, reason="needs the extension")


class Stopped(Exception):
    pass


@pytest.fixture
def stopped() -> Iterator[None]:
    """Raises Stopped at the second signal: if a call does not check for signals, Python handles a
    single one when it is over. Signals come after each 50 ms of processor time, by a timer that
    nothing else uses."""
    signals = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals == 2:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # once: later ones would hit the test's end
            raise Stopped

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.05, 0.05)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def flows(leaves: int, many: int) -> Flows:
    dice = np.random.default_rng(0)
    source = dice.integers(0, leaves, many)
    return Flows(source, (source + dice.integers(1, leaves, many)) % leaves, 1000)


def colouring() -> Callable[[], object]:
    side = Side.alone(np.arange(1 << 20) % 1021)
    return lambda: colour(side, side, 1023)


def filling() -> Callable[[], object]:
    """A simulation in which the end of each transfer raises the shares of all others."""
    n = 40_000
    uses = Rows.of(np.arange(n), np.zeros(n, np.int64), n)
    none = Rows.of(np.zeros(0, np.int64), np.zeros(0, np.int64), n)
    bytes, ones = np.arange(1.0, n + 1), np.ones(n)
    transfers = Transfers(uses, ones, bytes, ones, none, np.zeros(n), np.ones(1))
    return lambda: run(transfers)


def placing() -> Callable[[], object]:
    fabric = leaf_spine(4, 1, 4096)
    leaf = np.arange(1 << 20) % 4
    return lambda: least_loaded(fabric, leaf, (leaf + 1) % 4, leaf + 1, 0)


def failing() -> Callable[[], object]:
    fabric = leaf_spine(8, 64, 64)
    routes = route(flows(fabric.hosts, 20_000), fabric, "ecmp")
    what = [tuple(fabric.links[i : i + 40]) for i in range(0, 400, 40)] * 100
    return lambda: sweep(routes, what)


def hashing() -> Callable[[], object]:
    fabric = leaf_spine(8, 8, 8)
    own = flows(fabric.hosts, 1000)
    return lambda: samples(own, fabric, "ecmp_k(64)", 10**6)


def jobs(many: int, options: int) -> tuple[Jobs, Machine, torch.Tensor]:
    dice = np.random.default_rng(0)
    stages = [
        [[(lane, float(dice.random())) for lane in (1, 2, 3, 4)] for _ in range(options)]
        for _ in range(many)
    ]
    made = jobs_of([0.0] * many, stages)
    machine = Machine(4, 2.0, 0.5, 2.0, 1.0)
    return made, machine, torch.zeros(many, dtype=torch.int32)


def searching() -> Callable[[], object]:
    made, machine, start = jobs(100, 8)
    return lambda: choices.search_options(made, machine, start, limit=1e9)


def exhausting() -> Callable[[], object]:
    made, machine, start = jobs(11, 8)
    return lambda: choices.exhaust_options(made, machine, start)


def repeating() -> Callable[[], object]:
    made, machine, start = jobs(100, 1)
    return lambda: schedule.simulate_step(made, machine, start, 10**9)


@pytest.mark.parametrize(
    "prepared",
    [colouring, filling, placing, failing, hashing, searching, exhausting, repeating],
)
def test_a_signal_ends_it(
    prepared: Callable[[], Callable[[], object]], request: pytest.FixtureRequest
) -> None:
    call = prepared()
    request.getfixturevalue("stopped")
    with pytest.raises(Stopped):
        call()
