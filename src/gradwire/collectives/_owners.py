"""What travels by way of owners: every rank sums a part, and tells all."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from gradwire.local import Domains, Stream, Streams
from gradwire.moves import AllGather, Exchange, Move
from gradwire.strategy import Context


def through_owners(ctx: Context) -> Generator[Move, Any, None]:
    """Pieces to their owners, summed and compressed again there, gathered by all. Two moves."""
    arrived = yield ctx.scatter()
    messages = yield AllGather(ctx.reduce(arrived))
    ctx.collect(messages)


def push_and_pull(
    ctx: Context, work: Streams, mine: Stream, domains: Domains, finite: bool = True
) -> Generator[Move, Any, list[Stream] | None]:
    """Entries to their owners, merged and averaged there, the averages to all.

        counts ──► all      entries ══► owners      counts ──► all      averages ══► all

    Four moves, two of them a few bytes. An owner that received damage says so in the third.
    Returns the averages by place in the flat vector, owner by owner; None if the step is spoiled.
    """
    mean = yield from push(ctx, work, mine, domains, finite)
    if mean is None:
        return None
    return (yield from pull(ctx, work, mean, domains))


def push(
    ctx: Context, work: Streams, mine: Stream, domains: Domains, finite: bool = True
) -> Generator[Move, Any, Stream | None]:
    """Two moves. The average of what this rank owns, by place in its domain; None if spoiled."""
    me, parts, sizes = ctx.rank, domains.split(mine), domains.sizes
    heads = yield work.announce(*(part.count for part in parts), finite=finite)
    counts = work.heard(heads)
    if counts is None:
        return None
    others = [r for r in range(ctx.world) if r != me]
    arrived = yield Exchange(
        {r: work.coded(sizes[r], parts[r]) for r in others},
        {r: work.coded_bytes(sizes[me], counts[r][me], mine) for r in others},
    )
    return work.average(sizes[me], parts[me], {r: (counts[r][me], arrived[r]) for r in others})


def pull(
    ctx: Context, work: Streams, mean: Stream, domains: Domains
) -> Generator[Move, Any, list[Stream] | None]:
    """Two moves. What every rank owns, by place in the flat vector."""
    me, sizes = ctx.rank, domains.sizes
    owned = work.heard((yield work.announce(mean.count)))
    if owned is None:
        return None
    others = [r for r in range(ctx.world) if r != me]
    arrived = yield Exchange(
        dict.fromkeys(others, work.coded(sizes[me], mean)),
        {r: work.coded_bytes(sizes[r], owned[r][0], mean) for r in others},
    )
    means = {r: work.read(sizes[r], owned[r][0], mean, arrived[r]) for r in others}
    means[me] = mean
    return [replace(means[r], places=domains.flat(r, means[r].places)) for r in range(ctx.world)]
