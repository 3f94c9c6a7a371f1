"""Measures strategies on this process group: real buckets, through real moves.

Every rank runs the same buckets, one right after the other, as a lane does, so that a burst which
a link or a switch passes at once after a pause does not count. A measurement is the mean of a
block of runs, because steps of many messages pay for the slow ones, too (between the processes of
one machine one in ten takes five times as long). The slowest rank's time counts: local work is the
mean over ranks, and moves are the rest, including the wait for other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from statistics import mean, median
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.buckets import Bucket, Parameter
from gradwire.groups import Machines
from gradwire.planner.fit import Fit, fit
from gradwire.planner.profile import WIDTH, StrategyCost, TableCost, shape_of, whole_rows
from gradwire.progress import Progress, each, part, silent
from gradwire.runtime.context import BucketContext
from gradwire.runtime.contexts import make_context
from gradwire.runtime.torch_dist import Performer
from gradwire.strategy import StepInfo, Strategy
from gradwire.tuning.agree import now, of_ranks

SIZES = (256, 4096, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
"""Elements of the buckets to measure, by default."""
LARGEST = 2 * SIZES[-1]
"""The most elements of a measured bucket, however large the model is: it takes memory beside the
job's own. Beyond, curves go on with their last slope."""
PASSES, WARM_UP, BLOCKS = 2, 2, 5
"""The number of passes over all strategies; for each size in a pass, the number of runs that do
not count, and of blocks of runs, each of which is one measurement."""
FEWEST, MOST = 5, 400  # runs that count, for one size in a pass
SECONDS = 0.25
"""How long the runs of one size take, in all passes, within FEWEST and MOST."""
PATIENCE_SECONDS = 0.4
"""After a run that takes longer, no larger bucket is tried."""
_MANY, _SMALL = 32, 2048  # parameters of a bucket, and their elements
_LEAST = 1e-9  # seconds, if the clock did not advance


class Run(NamedTuple):
    """Seconds of one run on one rank, and the bytes that it sent."""

    encode: float
    wire: float
    decode: float
    bytes: float


@dataclass
class Probe:
    """Runs buckets by strategies. All methods are collective. dtype: of gradients. width: columns
    of parameters large enough to be a matrix. circle: the ranks that measure at the same time, by
    default those that exchange; several groups that exchange may share links."""

    performer: Performer
    machines: Machines | None = None
    dtype: str = "float32"
    width: int = WIDTH
    circle: Performer | None = None

    def costs(
        self, strategies: Sequence[str], largest: int,
        progress: Progress = silent,
    ) -> dict[str, StrategyCost]:  # fmt: skip
        """Measures the strategies' curves, up to buckets of `largest` elements, of `LARGEST`, or
        of `PATIENCE_SECONDS`.

        It makes several passes over all of them: threads stay on the same processors for a while,
        and this should not favour one strategy. Later passes skip sizes that take long.
        """
        found: dict[str, dict[int, list[Run]]] = {text: {} for text in strategies}
        for number in range(PASSES):
            told = part(progress, "strategies", number, PASSES)
            for text in each(told, "", list(found), lambda text: f"'{text}'"):
                measured = found[text]
                for size in _ladder(SIZES, whole_rows(min(largest, LARGEST), self.width)):
                    runs = self._runs(text, [size], SECONDS / PASSES)
                    measured.setdefault(size, []).extend(runs)
                    if median(map(_total, runs)) > PATIENCE_SECONDS / (4 if number else 1):
                        break
        return {text: self._cost(text, measured) for text, measured in found.items()}

    def _cost(self, strategy: str, measured: Mapping[int, Sequence[Run]]) -> StrategyCost:
        encode, wire, decode, sent = (_fit(measured, part) for part in Run._fields)
        return StrategyCost(
            encode, wire, decode, sent, latency_seconds=wire.curve(0.0),
            per_parameter_seconds=self._per_parameter(strategy),
        )  # fmt: skip

    def table(
        self, strategy: str, parameters: Sequence[Parameter], given: Sequence[Tensor]
    ) -> TableCost:
        """Measures tables in one bucket. given: this rank's gradients of them, as rows (COO)."""
        context, steps = self.context(strategy, Bucket(tuple(parameters))), count()

        def once() -> Run:
            return self.run(context, [x.clone() for x in given], next(steps))

        runs = self._repeated(once, SECONDS)
        encode, wire, decode = (
            max(_LEAST, median(getattr(run, part) for run in runs))
            for part in ("encode", "wire", "decode")
        )
        return TableCost(tuple(p.name for p in parameters), strategy, encode, wire, decode)

    def _per_parameter(self, strategy: str) -> float:
        """Measures the local work that each further parameter adds: a bucket of many parameters
        less an equally large bucket of one."""
        one = self._runs(strategy, [_MANY * _SMALL], SECONDS)
        many = self._runs(strategy, [_SMALL] * _MANY, SECONDS)
        local = [median(run.encode + run.decode for run in own) for own in (one, many)]
        return max(0.0, (local[1] - local[0]) / (_MANY - 1))

    def _runs(self, strategy: str, sizes: Sequence[int], seconds: float) -> list[Run]:
        """Returns the runs of a bucket, one for each block, the same on all ranks."""
        return self._repeated(self._prepared(strategy, sizes), seconds)

    def _repeated(self, once: Callable[[], Run], seconds: float) -> list[Run]:
        of_ranks(self._circle, [0.0])  # all begin together
        first = self._exchanged([once() for _ in range(WARM_UP)])
        each = max(_total(rank[-1]) for rank in first)
        runs = int(min(MOST, max(FEWEST, seconds / each)))
        mine = [once() for _ in range(runs)]
        return combined(self._exchanged(blocks(mine, BLOCKS)))

    def _prepared(self, text: str, sizes: Sequence[int]) -> Callable[[], Run]:
        """Returns a function that runs a bucket of parameters of these sizes once."""
        named = (
            Parameter(f"probe{i}", shape_of(n, self.width), self.dtype)
            for i, n in enumerate(sizes)
        )
        bucket = Bucket(tuple(named))
        context = self.context(text, bucket)
        dice = torch.Generator().manual_seed(self.performer.rank)
        kind = getattr(torch, self.dtype)
        given = [
            torch.randn(n, generator=dice, dtype=torch.float32, device="cpu").to(
                self.performer.device, kind
            )
            for n in sizes
        ]
        rooms, steps = [torch.empty_like(x) for x in given], count()

        def once() -> Run:
            for room, x in zip(rooms, given):  # backward, too, has just written gradients
                room.copy_(x)
            return self.run(context, rooms, next(steps))

        return once

    def context(self, text: str, bucket: Bucket) -> BucketContext:
        """Returns the context that runs a bucket by a strategy."""
        lane = self.performer
        return make_context(
            Strategy.parse(text), bucket, lane.rank, lane.world, {}, self.machines,
            device=lane.device,
        )  # fmt: skip

    def run(self, context: BucketContext, gradients: list[Tensor], step: int) -> Run:
        """Averages these gradients in place, and returns what it took."""
        clock, device = _Clock(self.performer.device), context.device
        context.begin(gradients, gradients, StepInfo(step))
        rounds = context.rounds()
        spent, sent, arrived = [0.0, 0.0, 0.0], 0.0, None
        part = 0
        while True:
            try:
                move = rounds.send(arrived)
            except StopIteration:
                break
            spent[part] += clock.lap()
            device = move.device or device  # the move's device, as in a lane
            performer = self.performer.at(device)
            sent += performer.bytes_sent(move)
            arrived = performer.perform(move, "the probe")
            spent[1] += clock.lap()
            part = 2
        context.end(skipped=False)
        spent[part] += clock.lap()
        encode, wire, decode = spent
        return Run(encode, wire, decode, sent)

    @property
    def _circle(self) -> Performer:
        return self.circle or self.performer

    def _exchanged(self, runs: Sequence[Run]) -> list[list[Run]]:
        """Returns every rank's runs."""
        arrived = of_ranks(self._circle, runs).tolist()
        return [[Run(*own) for own in rank] for rank in arrived]


def blocks(runs: Sequence[Run], count: int) -> list[Run]:
    """Returns the means of so many blocks of consecutive runs, of nearly equal size; no block is
    empty."""
    count = min(count, len(runs))
    ends = [len(runs) * i // count for i in range(count + 1)]
    return [Run(*map(mean, zip(*runs[a:b]))) for a, b in pairwise(ends)]


def combined(by_rank: Sequence[Sequence[Run]]) -> list[Run]:
    """Combines the ranks' runs, run by run: the slowest rank's total, with the mean of local work
    over ranks."""
    made = []
    for ranks in zip(*by_rank):
        encode, decode = (mean(getattr(r, part) for r in ranks) for part in ("encode", "decode"))
        whole = max(map(_total, ranks))
        wire = max(whole - encode - decode, min(r.wire for r in ranks))
        made.append(Run(encode, wire, decode, max(r.bytes for r in ranks)))
    return made


def _fit(measured: Mapping[int, Sequence[Run]], part: str) -> Fit:
    return fit([
        (size, [max(getattr(run, part), _LEAST) for run in runs])
        for size, runs in sorted(measured.items())
    ])  # fmt: skip


def _total(run: Run) -> float:
    return run.encode + run.wire + run.decode


def _ladder(sizes: Sequence[int], largest: int) -> list[int]:
    """Returns the sizes below the largest bucket, and its own size, unless it is close to the last
    of them."""
    below = [size for size in sizes if size < largest]
    return below if below and largest < 1.2 * below[-1] else [*below, max(1, largest)]


class _Clock:
    """Measures laps; on CUDA, it waits until the device's work is done."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._last = device, now(device)

    def lap(self) -> float:
        before, self._last = self._last, now(self._device)
        return self._last - before
