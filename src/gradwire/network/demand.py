"""The flows of a strategy's moves between ranks, as the algorithms of collectives carry them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gradwire.errors import NetworkError
from gradwire.families import TRAFFIC
from gradwire.network.built import called
from gradwire.network.checked import Ints
from gradwire.network.fabric import count
from gradwire.network.flows import Flows, joined
from gradwire.network.patterns import (
    gather,
    pairwise,
    ring,
    ring_gather,
    ring_scatter,
    scatter,
)
from gradwire.network.placement import Placement
from gradwire.network.workload import Workload
from gradwire.notation import Notation

if TYPE_CHECKING:
    from gradwire.planner.priced import PricedMove
    from gradwire.planner.traffic import BucketTraffic

Pattern = Callable[[int, int], Flows]

NOTATION = Notation(
    "traffic", "a pattern, or a reader with its file", "ring", NetworkError,
    elsewhere={"./contrib/formats": ("tokens",)},
)  # fmt: skip

ALGORITHMS: dict[str, Pattern] = {
    "all_reduce": ring, "all_gather": ring_gather, "reduce_scatter": ring_scatter,
    "all_to_all": pairwise, "gather": gather, "reduce": gather, "broadcast": scatter,
}  # fmt: skip
"""The pattern that carries each kind of move."""


def flows_of(moves: Sequence[Sequence[PricedMove]], placement: Placement) -> Flows:
    """Returns the flows of all ranks' moves, between hosts: move after move, each in its steps.

    Raises NetworkError as `flows_between` does.
    """
    return placement.placed(flows_between(moves, placement))


def flows_between(moves: Sequence[Sequence[PricedMove]], placement: Placement) -> Flows:
    """Returns the same flows as `flows_of`, between ranks.

    moves: a row for each rank, or one row if all do the same. "node" is the ranks of a machine,
    "cross" those of equal place on every machine. Raises NetworkError for exchanges of which not
    all ranks are given, rows that do not fit together, and moves across machines of unequal size.
    """
    _refuse_unfit(moves, placement)
    parts, step = list[Flows](), 0
    for turn in zip(*moves):
        own = [
            Flows(flows.src, flows.dst, flows.bytes, flows.step + step)
            for flows in _of_move(turn, placement)
        ]
        parts += own
        step = max((int(flows.step.max()) + 1 for flows in own if len(flows)), default=step)
    return joined(parts)


def workload_of(
    buckets: Iterable[BucketTraffic], placement: Placement, backward_seconds: float = 0.0,
    around_seconds: float = 0.0,
) -> Workload:  # fmt: skip
    """Builds the workload of a plan's step, until all buckets are decoded and `backward_seconds`
    are over. A lane takes its buckets in their order. around_seconds: of forward, optimizer and
    data, all of which is put before backward. Raises NetworkError as `flows_of` does.

        compute and backward  ├───────┼───●────────●────────┤       ● a bucket is ready
        lane 0                            ├ encode ┄ moves ┄ decode ┤
        lane 1                                     ├ encode ┄ moves ┄ …

    These are a rank's; its moves are messages, which wait for those of other ranks.
    """
    ranks = placement.ranks
    workload, lanes, every = Workload(ranks), dict[int, Ints](), np.arange(ranks)
    around = workload.work(around_seconds, ranks)
    workload.show("compute", "", every, around)

    def computed(seconds: float) -> Ints:
        """Adds work that begins when backward does."""
        rows = workload.work(seconds, ranks)
        workload.wait(around, rows)
        return rows

    workload.show("backward", "", every, computed(backward_seconds))
    for bucket in buckets:
        begin = workload.work(bucket.before_seconds, ranks)
        before = [computed(bucket.ready_seconds), *_taken(lanes, bucket.lane)]
        for rows in before:
            workload.wait(rows, begin)
        _show_start(workload, bucket, before, begin)
        flows = flows_between(bucket.moves, placement)
        end = workload.exchange(begin, flows, bucket.lane, bucket.name)
        lanes[bucket.lane] = workload.work(bucket.after_seconds, ranks)
        workload.show("decode", bucket.name, every, lanes[bucket.lane])
        workload.wait(end, lanes[bucket.lane])
    return workload


def _taken(lanes: Mapping[int, Ints], lane: int) -> list[Ints]:
    return [lanes[lane]] if lane in lanes else []


def _show_start(
    workload: Workload, bucket: BucketTraffic, before: Sequence[Ints], begin: Ints
) -> None:
    """Shows what a bucket does before its messages, for which `begin` waits: encoding; starting
    moves is time of the wire. before: what it waits for."""
    every = np.arange(workload.ranks)
    if not bucket.starting_seconds:
        workload.show("encode", bucket.name, every, begin)
        return
    encoded = workload.work(bucket.before_seconds - bucket.starting_seconds, workload.ranks)
    started = workload.work(0.0, workload.ranks)
    for rows in before:
        workload.wait(rows, encoded)
    workload.wait(encoded, started)
    workload.show("encode", bucket.name, every, encoded)
    workload.show("wire", bucket.name, every, started, begin)


def pattern_of(text: str) -> Pattern:
    """Returns the pattern of a text, or traffic of another package with its parameters. If it is
    none, the pattern raises NetworkError when it is called."""
    return partial(called, NOTATION, TRAFFIC, text)


def in_groups(pattern: Pattern, ranks: int, each: int, bytes: int) -> Flows:
    """Returns the flows of the pattern in each group of `each` consecutive ranks, all at once: for
    experts, or replicas of a stage. Raises NetworkError if ranks are left over."""
    if ranks % count("ranks of a group", each):
        raise NetworkError(
            f"every group must have {each} ranks; got {ranks} ranks in all. Use a multiple of "
            f"{each}."
        )
    one = pattern(each, bytes)
    one.refuse_beyond(each, "rank")
    return joined([
        Flows(one.src + first, one.dst + first, one.bytes, one.step, one.start_ns)
        for first in range(0, ranks, each)
    ])  # fmt: skip


def _refuse_unfit(moves: Sequence[Sequence[PricedMove]], placement: Placement) -> None:
    names = {tuple(move.name for move in row) for row in moves}
    if len(moves) not in (1, placement.ranks) or len(names) > 1:
        raise NetworkError(
            f"moves must be those of one rank, or of each of {placement.ranks} ranks, of the same "
            f"kinds in the same order; got {len(moves)} rows of {len(names)} kinds. Price the "
            "strategy for every rank."
        )
    if len(moves) < placement.ranks and any(move.name == "exchange" for move in moves[0]):
        raise NetworkError(
            "the partners of an exchange differ from rank to rank; got the moves of only 1 rank "
            f"of {placement.ranks}. Price the strategy for every rank."
        )


def _of_move(turn: Sequence[PricedMove], placement: Placement) -> Iterator[Flows]:
    """Yields the flows of one move, between ranks of the world."""
    first = turn[0]
    for ranks in _groups(first.group, placement):
        if first.name == "exchange":
            rows = [
                (rank, ranks[place], size)
                for rank in ranks
                for place, size in turn[rank].to
                if size
            ]
            yield Flows.of(rows)
            continue
        if first.name not in ALGORITHMS:
            raise NetworkError(
                f"a move must be one of {', '.join([*ALGORITHMS, 'exchange'])}; got "
                f"'{first.name}'. Leave it out."
            )
        if len(ranks) > 1 and first.bytes:
            flows, names = ALGORITHMS[first.name](len(ranks), first.bytes), np.array(ranks)
            yield Flows(names[flows.src], names[flows.dst], flows.bytes, flows.step)


def _groups(name: str, placement: Placement) -> list[list[int]]:
    if name == "world":
        return [list(range(placement.ranks))]
    machine = placement.machine or placement.host
    members: dict[int, list[int]] = {}
    for rank, own in enumerate(machine):
        members.setdefault(own, []).append(rank)
    if name == "node":
        return list(members.values())
    sizes = {len(own) for own in members.values()}
    if len(sizes) > 1:
        raise NetworkError(
            f"moves across machines need equally many ranks on each machine; got {sorted(sizes)}. "
            "Place as many ranks on every machine."
        )
    return [list(own) for own in zip(*members.values())]
