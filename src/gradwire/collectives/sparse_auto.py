"""sparse_auto: measures tensors, the network and the members themselves, and chooses.

step 0, 8, then every 50th:  facts ──► all      the same numbers, so the same choice everywhere
steps 8 to 28, or fewer:     likely members in turn, timed; then times ──► all
some steps more:             the close ones again
every step:                  the rounds of the member whose turn it is, or that was chosen
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.collectives._chooser import Chooser
from gradwire.collectives._prices import SAMPLE, Facts, prices, sampled
from gradwire.errors import StrategyError
from gradwire.moves import AllReduce
from gradwire.strategy import Collective, Context, Rounds
from gradwire.streams.rows import Rows

_EARLY = 8  # by this step enough moves have been timed to know the network
_MOST = 1 << 60
_USUAL = 300_000, 125_000_000  # nanoseconds and bytes per second, until moves have been timed
_TELLING_BYTES = 100_000  # moves from this size on show bandwidth, small ones latency


@dataclass(frozen=True)
class SparseAuto(Collective):
    """allgather, sparcml, zen, columns or a dense all-reduce, whichever is fastest here.

    Every `every` steps ranks exchange the number of their entries and rows, a sample of both
    (16 KB), and how fast recent moves were; from these numbers, which are the same everywhere,
    each rank prices all members. The first choice assumes a network of 1 Gbit/s. At step 8 its
    speed has been measured: members priced within twice the cheapest then take turns, five steps
    each, close ones ten more, and the fastest stays. Measured times correct the prices; a later
    change needs a price that is lower by a tenth, or another race, which is run once a member
    becomes likely that never ran.
    Sums in the present member's order: if runs must repeat to the bit, name one member.
    Memory: that of the member, and 32 KB.
    """

    every: int = 50
    name: ClassVar[str] = "sparse_auto"
    sizes: ClassVar = "measured"
    needs: ClassVar[tuple[str, ...]] = ("entries",)
    takes_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise StrategyError(
                "sparse_auto's every must be the number of steps between two measurements, at "
                f"least 1; got {self.every!r}. Use sparse_auto, or sparse_auto(every=100)."
            )

    def rounds(self, ctx: Context) -> Rounds[None]:
        memory = ctx.memory
        number: int = memory.get("number", 0)
        chooser: Chooser = memory.setdefault("chooser", Chooser())
        if number % self.every == 0 or number == _EARLY:
            if (facts := (yield from _facts(ctx))) is None:
                return  # the step is spoiled
            chooser.price(prices(facts), network_is_known=number >= min(_EARLY, self.every))
        if chooser.race_is_over:
            times = yield from ctx.streams.tell(*chooser.times(), most=_MOST)
            if times is None:
                return
            chooser.learn(times)
        memory["number"] = number + 1
        member = chooser.member
        rounds = _dense(ctx) if member == "dense" else _named(member).rounds(ctx)
        seconds = yield from _timed(rounds, memory, ctx.world)
        if ctx.finite:  # else the member stopped early, and its turn is repeated
            chooser.took(seconds)


@cache
def _named(member: str) -> Collective:
    """Returns a member, read once: that takes as long as some members' local work."""
    return Collective.parse(member)


def _facts(ctx: Context) -> Rounds[Facts | None]:
    """Exchange facts. Returns the same ones on all ranks; None if the step is spoiled."""
    mine = ctx.streams.entries()
    if ctx.has_rows:
        rows, first, width = mine.places.long(), mine.n, mine.values.shape[1]
    else:
        rows, first = _rows(ctx)
        width = mine.n // first if first else 0
    nanoseconds, speed = _network(ctx.memory)
    numbers = [mine.count, rows.numel(), nanoseconds, speed]
    numbers += [*sampled(mine.places.long(), mine.n), *sampled(rows, first)]
    heard = yield from ctx.streams.tell(*numbers, most=_MOST)
    if heard is None:
        return None
    return Facts(
        world=ctx.world, size=mine.n, rows=first, width=width,
        item_bytes=mine.values.element_size(),
        mean_bytes=ctx.streams.mean_dtype.itemsize,
        entries=[row[0] for row in heard], full_rows=[row[1] for row in heard],
        latency_seconds=1e-9 * max(1, *(row[2] for row in heard)),
        bytes_per_second=float(min(row[3] for row in heard)),
        entry_samples=[row[4 : 4 + SAMPLE] for row in heard],
        row_samples=[row[4 + SAMPLE :] for row in heard], of_rows=ctx.has_rows,
    )  # fmt: skip


def _rows(ctx: Context) -> tuple[Tensor, int]:
    """Returns the non-zero rows of dense gradients, and the number of all rows; none if gradients
    are not sent as they are."""
    ids, first = [torch.empty(0, dtype=torch.int64, device="cpu")], 0
    for table in [Rows(local) for local in ctx.locals()] if ctx.is_exact else []:
        ids.append(table.nonzero().long() + first)
        first += table.count
    return torch.cat(ids), first


def _dense(ctx: Context) -> Rounds[None]:
    """Sums all elements by one dense all-reduce."""
    mine = ctx.streams.entries()
    if (yield from ctx.streams.tell()) is None:
        return
    if "whole" not in ctx.memory:
        ctx.memory["whole"] = kernels.zeros(mine.n)
    total = ctx.memory["whole"].zero_()
    kernels.place_stream(total, mine.places, mine.values)
    ctx.streams.write(kernels.quotient((yield AllReduce(total)), float(ctx.world)))


def _timed(rounds: Rounds[None], memory: dict[str, Any], world: int) -> Rounds[float]:
    """Run the rounds, and keep the time of each move in memory. Returns the seconds of all without
    the first move, which waits for slower ranks."""
    times: list[tuple[float, float]] = memory.setdefault("times", [])
    began, arrived, first = perf_counter(), None, None
    while True:
        try:
            move = next(rounds) if arrived is None else rounds.send(arrived)
        except StopIteration:
            break
        asked = perf_counter()
        arrived = yield move
        seconds = perf_counter() - asked
        first = seconds if first is None else first
        carried = max(move.bytes_sent(world), move.bytes_received(world))  # full duplex
        times.append((carried, seconds))
    del times[:-256]
    return perf_counter() - began - (first or 0.0)


def _network(memory: dict[str, Any]) -> tuple[int, int]:
    """Returns the nanoseconds of a small move, and the bytes per second of large ones."""
    times: list[tuple[float, float]] = memory.get("times", [])
    small = [seconds for sent, seconds in times if sent < _TELLING_BYTES // 10]
    late = median(small) if small else 1e-9 * _USUAL[0]
    large = [sent / max(s - late, 0.1 * s) for sent, s in times if sent >= _TELLING_BYTES]
    return int(1e9 * late), int(median(large)) if large else _USUAL[1]
